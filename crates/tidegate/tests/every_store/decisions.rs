//! What each algorithm decides, and several keys together.

use crate::play::Scenario;
use tidegate::Algorithm;

pub(crate) const ALL: [Scenario; 11] = [
    Scenario {
        name: "a token bucket refills",
        limiters: &[("tokens", Algorithm::TokenBucket, &["3 per 3s"], None)],
        matches: &[],
        script: "
            0    k hit 1  -> allow left=2
            0    k hit 3  -> deny left=2 retry=1 limited
            0    k hit 2  -> allow left=0
            0.5  k peek 1 -> deny left=0 retry=0.500000 limited
            1    k hit 1  -> allow left=0
            1    k hit 4  -> deny left=0 retry=never cost_above_limit
            9    k hit 0  -> allow left=3",
    },
    Scenario {
        name: "a fixed window begins with the first hit",
        limiters: &[("fixed", Algorithm::FixedWindow, &["2 per 10s"], None)],
        matches: &[],
        script: "
            3         k hit 1  -> allow left=1
            4         k hit 1  -> allow left=0
            5         k hit 1  -> deny left=0 retry=8 limited
            12.999999 k hit 1  -> deny left=0 retry=0.000001 limited
            13        k peek 1 -> allow left=2
            13        k hit 1  -> allow left=1",
    },
    Scenario {
        name: "aligned windows begin at multiples of the period",
        limiters: &[("aligned", Algorithm::AlignedWindow, &["2 per 10s"], None)],
        matches: &[],
        script: "
            3    k hit 2  -> allow left=0
            9    k hit 1  -> deny left=0 retry=1 limited
            10   k peek 1 -> allow left=2
            10   k hit 1  -> allow left=1
            10   k hit 3  -> deny left=1 retry=never cost_above_limit
            10   k hit 0  -> allow left=1",
    },
    Scenario {
        name: "two limits are charged together and a denial blocks",
        limiters: &[("blocking", Algorithm::AlignedWindow, &["2 per minute", "3 per hour block 2h"], None)],
        matches: &[],
        script: "
            0    k hit 1  -> allow left=1
            0    k peek 2 -> deny left=1 retry=40 limited
            0    k hit 2  -> deny left=1 retry=40 limited
            1    k hit 1  -> allow left=0
            40   k hit 1  -> allow left=0
            41   k peek 1 -> deny left=0 retry=2759 limited
            41   k hit 1  -> deny left=0 retry=7200 limited
            42   k hit 1  -> deny left=0 retry=7199 blocked
            42   k peek 1 -> deny left=0 retry=7199 blocked
            7240.999999 k hit 1 -> deny left=0 retry=0.000001 blocked
            7241 k hit 1  -> allow left=1",
    },
    Scenario {
        name: "a sliding log is exact",
        limiters: &[("log", Algorithm::SlidingLog, &["2 per 10s"], None)],
        matches: &[],
        script: "
            0    k hit 1  -> allow left=1
            4    k hit 1  -> allow left=0
            5    k hit 1  -> deny left=0 retry=5 limited
            10   k hit 1  -> allow left=0
            10   k peek 1 -> deny left=0 retry=4 limited
            14   k hit 1  -> allow left=0",
    },
    Scenario {
        name: "a sliding window weighs the one before",
        limiters: &[("sliding", Algorithm::SlidingWindow, &["10 per 10s"], None)],
        matches: &[],
        script: "
            0    k hit 10 -> allow left=0
            9    k hit 1  -> deny left=0 retry=2 limited
            12   k peek 1 -> allow left=2
            15   k hit 5  -> allow left=0
            15   k hit 1  -> deny left=0 retry=1 limited",
    },
    Scenario {
        name: "a strict average decides by its rate",
        limiters: &[("strict", Algorithm::StrictAverage, &["2 per 10s"], None)],
        matches: &[],
        script: "
            0    k hit 1  -> allow left=1
            1    k hit 1  -> allow left=1
            1    k hit 1  -> allow left=0
            2    k peek 1 -> deny left=0 retry=7.419775 limited
            30   k hit 1  -> allow left=1",
    },
    Scenario {
        name: "a leaky average decides by its rate",
        limiters: &[("leaky", Algorithm::LeakyAverage, &["2 per 10s"], None)],
        matches: &[],
        script: "
            0    k hit 1  -> allow left=1
            1    k hit 1  -> allow left=1
            1    k hit 1  -> allow left=0
            2    k peek 1 -> deny left=0 retry=3.811671 limited
            30   k hit 1  -> allow left=1",
    },
    Scenario {
        name: "buckets count and block",
        limiters: &[("buckets", Algorithm::Buckets, &["5 per 20s block 40s"], None)],
        matches: &[],
        script: "
            0    k hit 4  -> allow left=1
            5    k peek 2 -> deny left=1 retry=25 limited
            5    k hit 2  -> deny left=0 retry=40 limited
            44   k hit 1  -> deny left=0 retry=1 blocked
            45   k hit 5  -> allow left=0
            45   k hit 1  -> deny left=0 retry=40 limited",
    },
    Scenario {
        name: "keys of different algorithms are charged together or not at all",
        limiters: &[
            ("user", Algorithm::SlidingLog, &["2 per minute"], Some("user")),
            ("address", Algorithm::FixedWindow, &["3 per minute"], Some("ip")),
        ],
        matches: &[],
        script: "
            0    user=u1 ip=a hit 1  -> allow left=1 by user
            0    user=u1 ip=a hit 1  -> allow left=0 by user
            0    user=u1 ip=a hit 1  -> deny left=0 retry=60 limited by user
            0    user=u1 ip=b hit 1  -> deny left=0 retry=60 limited by user
            0    user=u2 ip=a hit 1  -> allow left=0 by address
            0    user=u2 ip=a hit 1  -> deny left=0 retry=60 limited by address
            0    user=u2 ip=b peek 1 -> allow left=1 by user
            0    user=u2 ip=b hit 1  -> allow left=0 by user
            0    ip=b         hit 1  -> allow left=1 by address
            60   user=u1 ip=a hit 1  -> allow left=1 by user",
    },
    Scenario {
        name: "keys in aligned windows are charged together or not at all",
        limiters: &[
            ("person", Algorithm::AlignedWindow, &["2 per day"], Some("user")),
            ("team", Algorithm::AlignedWindow, &["3 per day"], Some("team")),
        ],
        matches: &[],
        script: "
            0    user=u1 team=a hit 1  -> allow left=1 by person
            0    user=u1 team=a hit 2  -> deny left=1 retry=6400 limited by person
            0    user=u2 team=a hit 2  -> allow left=0 by person
            0    user=u1 team=a hit 1  -> deny left=0 retry=6400 limited by team
            0    user=u1 team=b peek 1 -> allow left=1 by person
            0    user=u1 team=b hit 1  -> allow left=0 by person",
    },
];

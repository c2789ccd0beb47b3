//! The steps of requests, in an order that the test chooses.

use super::*;
use tidegate_core::{Algorithm, Rules};
use tidegate_testkit::servers::Server;

const START: Micros = Micros::from_secs(1_000_000);
const LIMIT: usize = 3;

/// One key of a limiter that blocks, and the steps of requests that have another key in another slot.
struct Key<'a> {
    redis: &'a Redis,
    question: Question<'a>,
}

impl Key<'_> {
    fn asked(at: Micros) -> Asked {
        let by = Instant::now() + Duration::from_secs(5);
        Asked { now: Some(at), cost: 1, intent: Intent::Hit, explain: false, by }
    }

    async fn charge(&self, at: Micros) -> Vec<Vec<u8>> {
        let ((_, answer), marks) = self.charge_of(at).await;
        assert!(answer.ruling.is_allowed());
        marks
    }

    async fn charge_of(&self, at: Micros) -> (One, Vec<Vec<u8>>) {
        self.redis.charge(&self.question, &Key::asked(at), true).await.unwrap()
    }

    async fn end(&self, at: Micros, marks: &[Vec<u8>]) {
        self.redis.end_charge(&self.question, &Key::asked(at), marks).await.unwrap();
    }

    /// Does a denial start a block?
    async fn denial_blocks(&self, at: Micros) -> bool {
        let denied = self.redis.deny(&self.question, &Key::asked(at)).await.unwrap();
        denied.expect("it is denied").1.blocked_until > at
    }
}

async fn on_every_algorithm(check: impl AsyncFn(Key<'_>)) {
    let server = Server::redis(&[]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let averages = [Algorithm::StrictAverage, Algorithm::LeakyAverage];
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !averages.contains(algorithm)) {
        let rules = Rules::new(algorithm, &[format!("{LIMIT} per day block 1h").parse().unwrap()]).unwrap();
        let limiter = format!("{algorithm:?}");
        let question = Question {
            limiter: &limiter,
            rules: &rules,
            names: true,
            key: b"x",
            layout: Layout::Native,
            role: Default::default(),
            own: None,
        };
        check(Key { redis: &redis, question }).await;
    }
}

#[tokio::test]
async fn a5_a_pending_charge_starts_no_block_and_a_confirmed_one_does() {
    on_every_algorithm(async |key| {
        let mut marks = Vec::new();
        for _ in 0..LIMIT {
            marks.push(key.charge(START).await);
        }
        assert!(!key.charge_of(START).await.0.1.ruling.is_allowed());
        assert!(!key.denial_blocks(START).await, "{}", key.question.limiter);
        // One is taken back and made again, the others stay.
        key.end(START, &marks[0]).await;
        key.charge(START).await;
        for _ in 1..LIMIT {
            key.end(START, &[]).await;
            assert!(!key.denial_blocks(START).await, "{}: one is pending still", key.question.limiter);
        }
        key.end(START, &[]).await;
        assert!(key.denial_blocks(START).await, "{}", key.question.limiter);
    })
    .await;
}

#[tokio::test]
async fn a5_what_a_crash_leaves_pending_is_so_for_as_long_as_its_request_could_last() {
    on_every_algorithm(async |key| {
        for _ in 0..LIMIT {
            key.charge(START).await;
        }
        let at = |seconds| START.saturating_add(Micros::from_secs(seconds));
        assert!(!key.denial_blocks(at(4)).await, "{}", key.question.limiter);
        assert!(key.denial_blocks(at(7)).await, "{}", key.question.limiter);
    })
    .await;
}

/// A log is kept in chunks of 64; a refund that found its chunk full used to leave the charge counted.
#[tokio::test]
async fn a5_a_refund_finds_its_entry_in_a_full_chunk() {
    let server = Server::redis(&[]);
    let redis = Redis::open(server.url().parse().unwrap()).await;
    let rules = Rules::new(Algorithm::SlidingLog, &["500 per minute".parse().unwrap()]).unwrap();
    let question = Question {
        limiter: "log",
        rules: &rules,
        names: true,
        key: b"x",
        layout: Layout::Native,
        role: Default::default(),
        own: None,
    };
    let key = Key { redis: &redis, question };
    let at = |ms| START.saturating_add(Micros::from_millis(ms));
    let left_at = async |ms| {
        let peek = Asked { intent: Intent::Peek, cost: 0, ..Key::asked(at(ms)) };
        redis.decide(&[question], &peek).await.unwrap().1[0].ruling.decision.remaining
    };
    let mut marks = Vec::new();
    for ms in 0..300 {
        marks.push(key.charge(at(ms)).await);
    }
    for taken_back in [299, 290, 150, 10] {
        key.end(at(300), &marks[taken_back]).await;
    }
    assert_eq!(left_at(300).await, 500 - 296);
    // A minute after the hundredth, those before it are gone: a hundred, but for the one that was taken back.
    assert_eq!(left_at(60_099).await, 500 - 296 + 99);
    assert_eq!(left_at(60_299).await, 500);
}

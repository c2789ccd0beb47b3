//! Envoy's rate limit service: the rows of its acceptance table.

use crate::server::{Server, ask, check, check_method, connect, request};
use tidegate::Micros;
use tidegate_wire::grpc::ratelimit::{
    CHECK_RATE_LIMIT, REPORT, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT,
};

#[test]
fn a_descriptor_meets_the_limiters_of_exactly_its_keys() {
    check(
        &Server::start(),
        "
        0   user=a           -> ok user 4 of 5/MINUTE 60s
        0   user=b           -> ok user 4 of 5/MINUTE 60s
        0   user=a path=/x   -> ok user-path 1 of 2/30xSECOND 30s
        0   path=/x user=a   -> ok
        0   user=a ip=1      -> ok
        0   other=a          -> ok
        0   cost=1           -> ok
        0   cost=1 & user=c  -> ok & ok user 4 of 5/MINUTE 60s
        1   user=a & path=/x & other=1 -> ok user 3 of 5/MINUTE 59s & ok path 2 of 3/HOUR 3600s & ok",
    );
}

/// `by` names an attribute once, and a descriptor may have a key twice.
#[test]
fn the_second_entry_of_a_key_is_an_attribute_of_its_own() {
    check(
        &Server::start(),
        "
        0   file=a file=b         -> ok inner 1 of 2/MINUTE 60s
        0   file=a file=b         -> ok inner 0 of 2/MINUTE 60s
        0   file=a file=b         -> over inner 0 of 2/MINUTE 60s
        0   file=b file=a         -> ok inner 1 of 2/MINUTE 60s
        0   file=a file=b file=c  -> ok
        0   file=a path=/ file=b  -> ok",
    );
}

#[test]
fn a5_descriptors_are_charged_together_or_not_at_all() {
    check(
        &Server::start(),
        "
        0   path=/x cost=3            -> ok path 0 of 3/HOUR 3600s
        0   user=a & path=/x          -> ok user 5 of 5/MINUTE 0s & over path 0 of 3/HOUR 3600s
        0   user=a cost=5 & path=/y cost=2 -> ok user 0 of 5/MINUTE 60s & ok path 1 of 3/HOUR 3600s
        0   user=b cost=6 & path=/y   -> over user 5 of 5/MINUTE 60s & ok path 1 of 3/HOUR 3600s
        0   user=c & user=d cost=2    -> ok user 4 of 5/MINUTE 60s & ok user 3 of 5/MINUTE 60s
        0   user=e cost=3 & user=e cost=3 -> over user 5 of 5/MINUTE 60s & over user 5 of 5/MINUTE 60s
        0   user=e cost=3 & user=e cost=2 -> ok user 0 of 5/MINUTE 60s & ok user 0 of 5/MINUTE 60s",
    );
}

#[test]
fn costs_are_the_descriptors_then_the_requests_then_one_and_zero_looks() {
    check(
        &Server::start(),
        "
        0   hits=2 user=a             -> ok user 3 of 5/MINUTE 60s
        0   hits=2 user=a cost=1      -> ok user 2 of 5/MINUTE 60s
        0   hits=2 user=a cost=0      -> ok user 2 of 5/MINUTE 60s
        0   user=a cost=0             -> ok user 2 of 5/MINUTE 60s
        0   user=a cost=2             -> ok user 0 of 5/MINUTE 60s
        0   user=a cost=0             -> over user 0 of 5/MINUTE 60s
        0   user=a cost=0 & path=/x   -> over user 0 of 5/MINUTE 60s & ok path 3 of 3/HOUR 0s
        60  user=a cost=0 & path=/x   -> ok user 5 of 5/MINUTE 0s & ok path 2 of 3/HOUR 3600s
        60  user=a cost=99999999999   -> over user 5 of 5/MINUTE 60s",
    );
}

/// Envoy cuts fractions of a second off, and a client that comes back too early is denied once more.
#[test]
fn waits_are_rounded_up_to_whole_seconds() {
    check(
        &Server::start(),
        "
        0     user=a cost=5   -> ok user 0 of 5/MINUTE 60s
        0.4   user=a          -> over user 0 of 5/MINUTE 60s
        59.9  user=a          -> over user 0 of 5/MINUTE 1s
        0     bucket=x cost=10 -> ok bucket 0 of 3/SECOND 4s
        0.1   bucket=x        -> over bucket 0 of 3/SECOND 1s
        0     strict=x        -> ok strict 0 of 1/MINUTE 60s
        0     strict=x        -> over strict 0 of 1/MINUTE 600s
        0     two=x           -> ok two 1 of 2/MINUTE 60s
        0     two=x           -> ok two 0 of 2/MINUTE 60s
        60    two=x           -> ok two 0 of 3/HOUR 3600s
        61    two=x           -> over two 0 of 3/HOUR 3539s",
    );
}

#[test]
fn a_value_that_is_empty_or_no_text_counts_and_one_that_is_too_long_is_over() {
    let server = Server::start();
    check(
        &server,
        "
        0   user=            -> ok user 4 of 5/MINUTE 60s
        0   user=            -> ok user 3 of 5/MINUTE 60s
        0   user=a path=     -> ok user-path 1 of 2/30xSECOND 30s",
    );
    let long = format!("0 user={} & path=/x -> over & over", "x".repeat(513));
    check(&server, &long);
    check(&server, "0 path=/x -> ok path 2 of 3/HOUR 3600s");
    let mut odd = request("user=odd");
    odd.descriptors[0].entries[0].value = vec![0xff, 0, 0xfe].into();
    let ended =
        server.runtime.block_on(async { ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &odd).await });
    assert_eq!(ended.said::<RateLimitResponse>().statuses[0].limit_remaining, 4);
}

#[test]
fn what_is_no_question_is_an_error() {
    let server = Server::start();
    let refused = |request: RateLimitRequest, status: u32, part: &str| {
        let ended = server
            .runtime
            .block_on(async { ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request).await });
        assert_eq!(ended.status, status, "{}", ended.message);
        assert!(ended.message.contains(part), "{}", ended.message);
    };
    refused(RateLimitRequest { domain: String::new(), ..request("user=a") }, 3, "no domain");
    refused(RateLimitRequest { descriptors: Vec::new(), ..request("user=a") }, 3, "no descriptors");
    let many = vec!["user=a"; 33].join("&");
    refused(request(&many), 8, "33 descriptors are more than 32");
    let wide: Vec<String> = (0..17).map(|n| format!("a{n}=x")).collect();
    refused(request(&wide.join(" ")), 8, "17 entries");
    let elsewhere = RateLimitRequest { domain: "elsewhere".to_owned(), ..request("user=a") };
    let ended =
        server.runtime.block_on(async { ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &elsewhere).await });
    assert!(ended.said::<RateLimitResponse>().statuses[0].current_limit.is_none(), "an unknown domain has no limits");
}

#[test]
fn limits_by_value_hold_and_a_denial_by_value_charges_nobody() {
    let server = Server::start();
    check(
        &server,
        "
        0   plan=gold        -> ok plan 8 of 9/MINUTE 60s
        0   plan=silver      -> ok plan 1 of 2/MINUTE 60s
        0   plan=pro         -> ok plan 0 of 1/MINUTE 60s
        0   plan=pro         -> over plan 0 of 1/MINUTE 60s
        0   plan=            -> ok plan 1 of 2/MINUTE 60s
        0   plan=free        -> ok
        0   plan=bad         -> over plan 0 of 0/MINUTE 60s
        0   plan=bad & user=a -> over plan 0 of 0/MINUTE 60s & ok user 5 of 5/MINUTE 0s
        0   plan=free & user=a -> ok & ok user 4 of 5/MINUTE 60s",
    );
    let ended = server.runtime.block_on(async {
        ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request("plan=free & x=1")).await
    });
    let left: Vec<u32> = ended.said::<RateLimitResponse>().statuses.iter().map(|one| one.limit_remaining).collect();
    assert_eq!(left, [u32::MAX, 0], "unlimited, and unknown");
}

#[test]
fn limits_that_were_set_by_hand_hold() {
    let server = Server::start();
    let limits = ["7 per minute".parse().unwrap()];
    server.runtime.block_on(server.gate.set_override("user", b"vip", &limits, None, None)).unwrap();
    check(&server, "0 user=vip & user=a -> ok user 6 of 7/MINUTE 60s & ok user 4 of 5/MINUTE 60s");
}

/// Candidates are charged at each descriptor's own cost, and none of them decides.
#[test]
fn candidates_are_counted_and_decide_nothing() {
    let server = Server::start();
    check(
        &server,
        "
        0   plan=a              -> ok plan 1 of 2/MINUTE 60s
        0   plan=a              -> ok plan 0 of 2/MINUTE 60s
        0   path=/x & plan=b cost=2 -> ok path 2 of 3/HOUR 3600s & ok plan 0 of 2/MINUTE 60s
        0   path=/x & plan=c    -> ok path 1 of 3/HOUR 3600s & ok plan 1 of 2/MINUTE 60s
        0   path=/x & plan=c cost=0 -> ok path 0 of 3/HOUR 3600s & ok plan 1 of 2/MINUTE 60s",
    );
    let info = |name: &str| server.gate.limiters().into_iter().find(|info| info.spec.name == name).unwrap();
    let plan = info("plan");
    let candidate = plan.candidate.unwrap();
    assert_eq!((plan.counts.allowed, plan.counts.denied, plan.counts.peeked), (4, 0, 1));
    assert_eq!((candidate.allowed, candidate.denied, candidate.peeked), (2, 2, 1));
    let tried = info("tried").counts;
    assert_eq!((tried.allowed, tried.denied), (1, 2));
}

#[test]
fn a_limit_in_the_request_stands_in_where_the_limiter_takes_it() {
    let server = Server::start();
    check(
        &server,
        "
        0   brought=a limit=9/60    -> ok brought 8 of 9/MINUTE 60s
        0   brought=a               -> ok brought 3 of 5/MINUTE 60s
        0   brought=a limit=2/60    -> over brought 0 of 2/MINUTE 60s
        0   brought=b limit=3/7200 cost=2 -> ok brought 1 of 3/2xHOUR 7200s
        0   brought=b limit=0/60    -> over brought 0 of 0/MINUTE 60s
        0   brought=c limit=1/0     -> ok brought 4 of 5/MINUTE 60s
        0   user=a limit=9/60       -> ok user 4 of 5/MINUTE 60s",
    );
    let limits = ["7 per minute".parse().unwrap()];
    server.runtime.block_on(server.gate.set_override("brought", b"d", &limits, None, None)).unwrap();
    check(&server, "0 brought=d limit=9/60 -> ok brought 6 of 7/MINUTE 60s");
}

/// The table drops what is fresh; by the limiter's own minute this key would be.
#[test]
fn m2_what_counts_by_a_longer_period_of_a_request_is_not_dropped() {
    let server = Server::start();
    check(&server, "0 brought=a limit=3/7200 cost=3 -> ok brought 0 of 3/2xHOUR 7200s");
    server.clock.set(Micros::from_secs(1_000 + 3_600));
    (0..32).for_each(|_| server.gate.tend());
    check(&server, "3600 brought=a limit=3/7200 -> over brought 0 of 3/2xHOUR 3600s");
}

/// Never above the limit, and of a request that is denied nothing: a client whose requests are denied by one limit could fill up another.
#[test]
fn a_negative_cost_is_given_back_and_never_above_the_limit() {
    let server = Server::start();
    check(
        &server,
        "
        0   user=a cost=4        -> ok user 1 of 5/MINUTE 60s
        10  user=a cost=3 back   -> ok user 4 of 5/MINUTE 50s
        10  user=a cost=4        -> ok user 0 of 5/MINUTE 50s
        10  user=a cost=9 back   -> ok user 5 of 5/MINUTE 0s
        10  user=new back        -> ok user 5 of 5/MINUTE 0s
        10  hits=2 user=a        -> ok user 3 of 5/MINUTE 60s
        10  hits=2 user=a back   -> ok user 5 of 5/MINUTE 0s
        10  user=a cost=0 back   -> ok user 5 of 5/MINUTE 0s
        20  bucket=x cost=10     -> ok bucket 0 of 3/SECOND 4s
        20  bucket=x cost=7 back -> ok bucket 7 of 3/SECOND 1s
        20  two=x cost=2         -> ok two 0 of 2/MINUTE 60s
        30  two=x back           -> ok two 1 of 2/MINUTE 50s
        30  other=x back         -> ok
        30  plan=free back       -> ok
        30  path=/x cost=3       -> ok path 0 of 3/HOUR 3600s
        30  user=b cost=3        -> ok user 2 of 5/MINUTE 60s
        30  path=/x & user=b cost=3 back -> over path 0 of 3/HOUR 3600s & ok user 2 of 5/MINUTE 60s
        30  user=b cost=3 back & bytes=n -> ok user 5 of 5/MINUTE 0s & ok bytes 999 of 1000/DAY 86400s
        40  strict=x             -> ok strict 0 of 1/MINUTE 60s
        40  strict=x             -> over strict 0 of 1/MINUTE 600s
        41  strict=x back        -> ok strict 0 of 1/MINUTE 599s",
    );
    check_method(&server, CHECK_RATE_LIMIT, "50 bucket=y back -> ok bucket 10 of 3/SECOND 0s");
    check(&server, "50 user=c cost=5 -> ok user 0 of 5/MINUTE 60s");
    check_method(&server, CHECK_RATE_LIMIT, "50 user=c cost=5 back -> ok user 0 of 5/MINUTE 60s");
    // What has happened already, a report or a charge that overdraws, gives back beside a denial.
    check_method(
        &server,
        REPORT,
        "50 path=/x & user=c cost=2 back -> over path 0 of 3/HOUR 3580s & ok user 2 of 5/MINUTE 60s",
    );
    check(
        &server,
        "50 spent=a cost=11 & user=c cost=1 back -> over spent 10 of 10/HOUR 3600s & ok user 3 of 5/MINUTE 60s",
    );
}

/// Quotas: the request is over only if all of them are, and their statuses say which. Those that allow are charged, as is everything else then.
#[test]
fn a5_one_of_the_alternatives_has_to_allow() {
    check(
        &Server::start(),
        "
        0   monthly=a & bought=a          -> ok monthly 0 of 1/HOUR 3600s & ok bought 1 of 2/HOUR 3600s
        0   monthly=a & bought=a & user=a -> over monthly 0 of 1/HOUR 3600s & ok bought 0 of 2/HOUR 3600s & ok user 4 of 5/MINUTE 60s : ok
        0   monthly=a & bought=a & user=a -> over monthly 0 of 1/HOUR 3600s & over bought 0 of 2/HOUR 3600s & ok user 4 of 5/MINUTE 60s
        0   monthly=a & user=a            -> over monthly 0 of 1/HOUR 3600s & ok user 4 of 5/MINUTE 60s
        0   monthly=b & user=b cost=6     -> ok monthly 1 of 1/HOUR 0s & over user 5 of 5/MINUTE 60s
        0   monthly=a & other=a           -> over monthly 0 of 1/HOUR 3600s & ok",
    );
}

/// Only among the descriptors of one request. A key that is not limited has no status, as one that no limiter knows.
#[test]
fn a_limiter_is_left_out_where_another_of_the_request_replaces_it() {
    let server = Server::start();
    check(
        &server,
        "
        0   user=a cost=5      -> ok user 0 of 5/MINUTE 60s
        0   user=a             -> over user 0 of 5/MINUTE 60s
        0   user=a & vip=a     -> ok & ok vip 8 of 9/MINUTE 60s
        0   vip=a cost=9 & user=b -> over vip 8 of 9/MINUTE 60s & ok
        0   user=b             -> ok user 4 of 5/MINUTE 60s",
    );
    let tried = || server.gate.limiters().into_iter().find(|info| info.spec.name == "tried").unwrap().counts;
    check(&server, "0 path=/x & vip=a -> ok path 2 of 3/HOUR 3600s & ok vip 7 of 9/MINUTE 60s");
    assert_eq!((tried().allowed, tried().denied), (0, 0), "a candidate is replaced as well");
    let asked = server.runtime.block_on(async {
        ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request("user=a & vip=a")).await
    });
    assert_eq!(asked.said::<RateLimitResponse>().statuses[0].limit_remaining, 0);
}

#[test]
fn values_that_count_together_have_one_count() {
    check(
        &Server::start(),
        "
        0   file=/a/x cost=2     -> ok file 1 of 3/MINUTE 60s
        0   file=/a/y            -> ok file 0 of 3/MINUTE 60s
        0   file=/a/z            -> over file 0 of 3/MINUTE 60s
        0   file=/b/z            -> ok file 2 of 3/MINUTE 60s
        0   file=/c              -> ok file 1 of 2/MINUTE 60s
        0   file=/b/x cost=2 & file=/b/y cost=2 -> over file 2 of 3/MINUTE 60s & over file 2 of 3/MINUTE 60s
        0   file=/a/q cost=2 back -> ok file 2 of 3/MINUTE 60s",
    );
}

#[test]
fn kuadrants_check_charges_nothing() {
    let server = Server::start();
    check_method(&server, CHECK_RATE_LIMIT, "0 user=a cost=5 -> ok user 5 of 5/MINUTE 0s");
    check_method(&server, CHECK_RATE_LIMIT, "0 user=a cost=6 -> over user 5 of 5/MINUTE 60s");
    check(&server, "0 user=a -> ok user 4 of 5/MINUTE 60s");
}

/// A client with 3 left whose every answer costs 4 would never be over its limit.
#[test]
fn what_is_known_afterwards_uses_up_what_is_left() {
    let server = Server::start();
    check(
        &server,
        "
        0   spent=a cost=0   -> ok spent 10 of 10/HOUR 0s
        0   spent=a cost=7   -> ok spent 3 of 10/HOUR 3600s
        0   spent=a cost=4   -> over spent 3 of 10/HOUR 3600s
        0   spent=a cost=0   -> over spent 0 of 10/HOUR 3600s
        0   user=a cost=4    -> ok user 1 of 5/MINUTE 60s
        0   user=a cost=4    -> over user 1 of 5/MINUTE 60s
        0   user=a cost=0    -> ok user 1 of 5/MINUTE 60s",
    );
    check_method(&server, REPORT, "0 user=a cost=4 -> over user 1 of 5/MINUTE 60s");
    check(&server, "0 user=a cost=0 -> over user 0 of 5/MINUTE 60s");
}

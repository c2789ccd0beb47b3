//! `CL.THROTTLE` to the second, as redis-cell documents and answers it.

use crate::server::{Server, check, check_on, policy};

#[test]
fn the_readme_of_redis_cell() {
    check("CL.THROTTLE user123 15 30 60 -> *5 :0 :16 :15 :-1 :2");
    check("cl.throttle user123 15 30 60 1 -> *5 :0 :16 :15 :-1 :2");
}

/// 30 per 60 s with a burst of 16: a token comes back every two seconds.
#[test]
fn a4_a_burst_then_one_in_two_seconds() {
    check(
        "@0      CL.THROTTLE k 15 30 60 15 -> *5 :0 :16 :1 :-1 :30
         @0      CL.THROTTLE k 15 30 60    -> *5 :0 :16 :0 :-1 :32
         @0      CL.THROTTLE k 15 30 60    -> *5 :1 :16 :0 :2 :32
         @1000   CL.THROTTLE k 15 30 60    -> *5 :1 :16 :0 :1 :31
         @1001   CL.THROTTLE k 15 30 60    -> *5 :1 :16 :0 :1 :31
         @1999   CL.THROTTLE k 15 30 60    -> *5 :1 :16 :0 :1 :31
         @2000   CL.THROTTLE k 15 30 60    -> *5 :0 :16 :0 :-1 :32
         @2000   CL.THROTTLE k 15 30 60 2  -> *5 :1 :16 :0 :4 :32
         @6500   CL.THROTTLE k 15 30 60 0  -> *5 :0 :16 :2 :-1 :28
         @6500   CL.THROTTLE k 15 30 60 3  -> *5 :1 :16 :2 :2 :28
         @6500   CL.THROTTLE k 15 30 60 2  -> *5 :0 :16 :0 :-1 :32
         @100000 CL.THROTTLE k 15 30 60    -> *5 :0 :16 :15 :-1 :2",
    );
}

#[test]
fn a_quantity_of_zero_looks_and_a_negative_one_gives_back() {
    check(
        "CL.THROTTLE k 4 5 50 0   -> *5 :0 :5 :5 :-1 :0
         CL.THROTTLE k 4 5 50 -3  -> *5 :0 :5 :5 :-1 :0
         CL.THROTTLE k 4 5 50 5   -> *5 :0 :5 :0 :-1 :50
         CL.THROTTLE k 4 5 50 0   -> *5 :0 :5 :0 :-1 :50
         CL.THROTTLE k 4 5 50     -> *5 :1 :5 :0 :10 :50
         CL.THROTTLE k 4 5 50 -2  -> *5 :0 :5 :2 :-1 :30
         CL.THROTTLE k 4 5 50 2   -> *5 :0 :5 :0 :-1 :50
         CL.THROTTLE k 4 5 50 -99 -> *5 :0 :5 :5 :-1 :0
         CL.THROTTLE k 4 5 50 5   -> *5 :0 :5 :0 :-1 :50
         CL.THROTTLE k 4 5 50 -9223372036854775807 -> *5 :0 :5 :5 :-1 :0",
    );
}

#[test]
fn a5_a_quantity_above_the_limit_never_passes_and_charges_nothing() {
    check(
        "CL.THROTTLE k 4 5 50 6          -> *5 :1 :5 :5 :-1 :0
         CL.THROTTLE k 4 5 50 4294967296 -> *5 :1 :5 :5 :-1 :0
         CL.THROTTLE k 4 5 50 5          -> *5 :0 :5 :0 :-1 :50
         CL.THROTTLE k 4 5 50 6          -> *5 :1 :5 :0 :-1 :50",
    );
}

/// One state a key, whatever limit a call brings: it keeps the time until empty, at most the new burst's.
#[test]
fn the_limit_comes_with_each_call() {
    check(
        "CL.THROTTLE k 9 10 100 5  -> *5 :0 :10 :5 :-1 :50
         CL.THROTTLE k 9 10 10     -> *5 :1 :10 :0 :1 :10
         CL.THROTTLE k 9 10 100 0  -> *5 :0 :10 :9 :-1 :10
         CL.THROTTLE k 99 10 100 0 -> *5 :0 :100 :99 :-1 :10
         CL.THROTTLE j 9 10 10     -> *5 :0 :10 :9 :-1 :1",
    );
    // More limits than a connection keeps worked out, on one key and in one go.
    let calls = (1..200).map(|n| format!("CL.THROTTLE k{n} {n} 1 1 -> *5 :0 :{} :{n} :-1 :1", n + 1));
    check(&calls.collect::<Vec<_>>().join("\n"));
}

#[test]
fn t3_parameters_that_make_no_limit_are_an_error_and_the_next_command_works() {
    check(
        "CL.THROTTLE k 2147483648 1 1099511627776 -> -ERR period 1099511627776 is out of range; use a whole number from 1 to 31622400
         CL.THROTTLE k 15 30 60 -> *5 :0 :16 :15 :-1 :2
         CL.THROTTLE k -1 30 60 -> -ERR max_burst -1 is out of range…
         CL.THROTTLE k 1 0 60   -> -ERR count 0 is out of range…
         CL.THROTTLE k 1 30 0   -> -ERR period 0 is out of range…
         CL.THROTTLE k 9223372036854775807 9223372036854775807 9223372036854775807 -> -ERR max_burst…
         CL.THROTTLE k 99999999999999999999 1 1 -> -ERR max_burst '99999999999999999999' is no whole number, or out of range
         CL.THROTTLE k x 30 60  -> -ERR max_burst 'x' is no whole number, or out of range
         CL.THROTTLE k 1 30 60 1.5 -> -ERR quantity '1.5' is no whole number, or out of range
         CL.THROTTLE k 4294967294 1 31622400 -> -ERR …
         CL.THROTTLE '' 1 30 60 -> -ERR the key is empty; use 1 to 512 bytes
         CL.THROTTLE k 1 30     -> -ERR wrong number of arguments for 'cl.throttle' command
         CL.THROTTLE k 1 30 60 1 1 -> -ERR wrong number of arguments for 'cl.throttle' command
         CL.THROTTLE k 15 30 60 -> *5 :0 :16 :14 :-1 :4",
    );
}

/// Faster than redis-cell can count: intervals below a millisecond.
#[test]
fn a4_ten_thousand_per_second_is_exactly_that() {
    check(
        "@0 CL.THROTTLE k 0 10000 1 -> *5 :0 :1 :0 :-1 :1
         @0 CL.THROTTLE k 0 10000 1 -> *5 :1 :1 :0 :1 :1
         @1 CL.THROTTLE k 0 10000 1 -> *5 :0 :1 :0 :-1 :1",
    );
}

/// Keys of different periods cannot share a sketch: without a place a key is limited, and those that have one keep their limits.
#[test]
fn m2_a_full_table_lifts_no_limit_that_a_call_brought() {
    let server = Server::with_memory(3 << 20);
    let mut client = server.connect();
    assert_eq!(client.ask("CL.THROTTLE first 0 1 86400"), "*5 :0 :1 :0 :-1 :86400");
    let (mut limited, mut batch) = (0, Vec::new());
    for round in 0..100 {
        for number in 0..500 {
            batch.extend(crate::server::encode(&format!("CL.THROTTLE filling-the-table-{round}-{number} 0 1 3600")));
        }
        client.send(&batch);
        batch.clear();
        for _ in 0..500 {
            limited += u64::from(client.receive() == "*5 :1 :1 :0 :3600 :0");
        }
    }
    assert!(limited > 1_000, "{limited} found no place");
    assert_eq!(client.ask("CL.THROTTLE first 0 1 86400"), "*5 :1 :1 :0 :86400 :86400");
    // Some parts of the table have a place left; a key that finds none waits for its period, an hour at most.
    let mut ask = |n: usize, period: u64| client.ask(&format!("CL.THROTTLE new-{period}-{n} 9 10 {period}"));
    let count = |replies: Vec<String>, reply: &str| replies.iter().filter(|told| *told == reply).count();
    assert!(count((0..50).map(|n| ask(n, 60)).collect(), "*5 :1 :10 :0 :60 :0") > 10);
    assert!(count((0..50).map(|n| ask(n, 31_622_400)).collect(), "*5 :1 :10 :0 :3600 :0") > 10);
    // An hour later the table is free again.
    server.at(3_600_000);
    // The clock is ours, and so is the housekeeping.
    (0..16).for_each(|_| server.gate.tend());
    for n in 0..50 {
        assert_eq!(client.ask(&format!("CL.THROTTLE later-{n} 9 10 60")), "*5 :0 :10 :9 :-1 :6");
    }
    assert_eq!(client.ask("CL.THROTTLE first 0 1 86400"), "*5 :1 :1 :0 :82800 :82800");
}

#[test]
fn its_limiter_is_one_of_the_policy_that_cannot_be_asked_by_name() {
    let server = Server::start();
    check_on(
        &server,
        "CL.THROTTLE k 1 1 60 -> *5 :0 :2 :1 :-1 :60
         TG.HIT cl.throttle k -> -ERR limiter \"cl.throttle\" is decided by the limit that each CL.THROTTLE brings; ask it with CL.THROTTLE, or name another limiter
         TG.BLOCK cl.throttle k 10000 -> +OK
         CL.THROTTLE k 1 1 60 -> *5 :1 :2 :0 :10 :60
         TG.UNBLOCK cl.throttle k -> :1
         CL.THROTTLE k 1 1 60 -> *5 :0 :2 :1 :-1 :60",
    );
    // A block by hand leaves what the key owes as it was.
    check_on(
        &server,
        "CL.THROTTLE j 9 1 3600 10 -> *5 :0 :10 :0 :-1 :36000
         TG.BLOCK cl.throttle j 1000 -> +OK
         @1000 CL.THROTTLE j 9 1 3600 -> *5 :1 :10 :0 :3599 :35999",
    );
    server.gate.reload(&policy("1 per hour")).unwrap();
    server.door.reload();
    check_on(&server, "CL.THROTTLE j 9 1 3600 -> *5 :1 :10 :0 :3599 :35999");
}

//! Counting and asking as separate steps. The limiter `notify` has 5 per 20s block 40s and 7 per 40s block 40s, in blocks of 10 s.

use crate::server::{Server, check};

#[test]
fn increments_count_and_analyses_block() {
    check(
        &Server::start(),
        r#"
        POST /v1/limiters/notify/keys/u1/analyze -> 200 {"limiter":"notify","key":"u1","status":"ok","timestamp":1000}
        POST /v1/limiters/notify/keys/u1/increment {"count":4,"timestamp":970} -> 200 {"limiter":"notify","key":"u1","count":4,"timestamp":970,"counted":true}
        POST /v1/limiters/notify/keys/u1/increment {"count":2.0} -> 200 "count":2,"timestamp":1000,"counted":true
        POST /v1/limiters/notify/keys/u1/analyze -> 200 "status":"ok"
        POST /v1/limiters/notify/keys/u1/increment -> 200 "count":1,"timestamp":1000,"counted":true
        POST /v1/limiters/notify/keys/u1/analyze -> 200 "status":"limited","sum":7,"limit":"7 per 40s block 40s","timestamp":1000,"blocked_until":1040}
        POST /v1/limiters/notify/keys/u1/analyze {} -> 200 "status":"blocked","timestamp":1000,"blocked_until":1040} & !"sum" & !"limit":
        POST /v1/hit {"limiter":"notify","key":"u1"} -> 429 "reason":"blocked"
        GET /v1/limiters/notify/keys?state=blocked -> 200 {"keys":["u1"],"next":null}
        at 1040
        GET /v1/limiters/notify/keys?state=blocked -> 200 {"keys":[],"next":null}
        POST /v1/limiters/notify/keys/u1/analyze -> 200 "status":"ok","timestamp":1040}
        POST /v1/limiters/notify/keys/%FF/increment {"timestamp":1035.25} -> 200 "binary_key":"%FF","count":1,"timestamp":1035.25,"counted":true
        POST /v1/limiters/notify/keys/u2/increment {"timestamp":979} -> 200 "counted":false
        POST /v1/limiters/notify/keys/u2/increment {"count":0} -> 200 "counted":false
        GET /v1/limiters/notify -> 200 "algorithm":"buckets","aligned":false,"limits":["5 per 20s block 40s","7 per 40s block 40s"],"resolution":"10s","history":"1m","domain":null"#,
    );
}

#[test]
fn a_hit_blocks_for_its_limit_s_time_and_explains_itself() {
    check(
        &Server::start(),
        r#"
        POST /v1/hit {"limiter":"notify","key":"u1","cost":5} -> 200 "limit":5,"remaining":0,"retry_after_ms":null,"reset_after_ms":30000
        GET /v1/limiters/notify/keys/u1 -> 429 "retry_after_ms":30000 & {"rule":"7 per 40s block 40s","allowed":true,"limit":7,"remaining":2,"retry_after_ms":null,"reset_after_ms":50000}
        POST /v1/hit {"limiter":"notify","key":"u1"} -> 429 "reason":"limited" & "retry_after_ms":40000
        at 1040
        POST /v1/hit {"limiter":"notify","key":"u1","cost":2} -> 200 "remaining":0"#,
    );
}

#[test]
fn a_disabled_limiter_is_always_fine() {
    check(
        &Server::start(),
        r#"
        POST /v1/limiters/notify/disable -> 200
        POST /v1/limiters/notify/keys/u1/increment {"count":9} -> 200 "counted":false
        POST /v1/limiters/notify/keys/u1/analyze -> 200 "status":"ok"
        POST /v1/limiters/notify/enable -> 200
        POST /v1/limiters/notify/keys/u1/analyze -> 200 "status":"ok""#,
    );
}

#[test]
fn refusals_name_the_remedy() {
    check(
        &Server::start(),
        r#"
        POST /v1/limiters/api/keys/u1/increment -> 409 "code":"needs_buckets","detail":"increment needs algorithm = \"buckets\", and limiter \"api\" has \"sliding-log\"; use a hit, or change its algorithm"
        POST /v1/limiters/api/keys/u1/analyze -> 409 "code":"needs_buckets" & analyze needs
        POST /v1/limiters/none/keys/u1/analyze -> 404 "code":"unknown_limiter"
        POST /v1/limiters/notify/keys//analyze -> 400 "code":"bad_key"
        POST /v1/limiters/notify/keys/u1/increment {"count":-1} -> 400 "code":"bad_count","detail":"\"count\" must be a whole number from 0 to 4294967295","field":"count","value":"-1"
        POST /v1/limiters/notify/keys/u1/increment {"count":"1"} -> 400 "code":"wrong_type"
        POST /v1/limiters/notify/keys/u1/increment {"timestamp":-0.5} -> 400 "code":"bad_timestamp" & from 0 to 4503599627
        POST /v1/limiters/notify/keys/u1/increment {"timestamp":1700000000000} -> 400 "code":"bad_timestamp"
        POST /v1/limiters/notify/keys/u1/increment {"at":1} -> 400 "code":"unknown_field" & the fields are count, timestamp
        GET /v1/limiters/notify/keys/u1/analyze -> 405 allow: POST
        POST /v1/limiters/notify/keys/u1/analyze -> 200 "status":"ok""#,
    );
}

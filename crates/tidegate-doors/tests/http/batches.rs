//! `/v1/hits`: many requests in one body.

use crate::server::{Server, check};
use std::sync::Arc;
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::http::HttpSettings;

#[test]
fn each_is_answered_by_itself_in_order() {
    check(
        &Server::start(),
        r#"
        POST /v1/hits {"requests":[{"limiter":"api","key":"a"},{"limiter":"api","key":"a","cost":2},{"limiter":"api","key":"a"},{"limiter":"burst","key":"a"}]} -> 200 {"answers":[{"allowed":true,"limiter":"api","limit":3,"remaining":2,"retry_after_ms":null,"reset_after_ms":60000,"reason":"ok"},{"allowed":true,"limiter":"api","limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":60000,"reason":"ok"},{"allowed":false,"limiter":"api","limit":3,"remaining":0,"retry_after_ms":60000,"reset_after_ms":60000,"reason":"limited"},{"allowed":true,"limiter":"burst","limit":40,"remaining":39,"retry_after_ms":null,"reset_after_ms":3000,"reason":"ok"}]} & content-type: application/json & !retry-after & !"allowed":true,"answers"
        POST /v1/hits {"together":false,"requests":[{"limiter":"ten","key":"b","peek":true},{"domain":"login","attributes":{"user":"u","ip":"192.0.2.1"},"explain":true}]} -> 200 "remaining":10 & "limiter":"login-user" & "explanation":[{"limiter":"login-user"
        POST /v1/hits {"requests":[{"limiter":"nobody","key":"a"},{"limiter":"ten","key":"c"}]} -> 200 {"answers":[{"type":"about:blank","title":"Not Found","status":404,"code":"unknown_limiter" & "field":"requests[0].limiter" & "limiter":"ten","limit":10,"remaining":9"#,
    );
}

#[test]
fn a5_together_all_are_charged_or_none() {
    check(
        &Server::start(),
        r#"
        POST /v1/hits {"together":true,"requests":[{"limiter":"api","key":"a"},{"limiter":"api","key":"b","cost":3},{"limiter":"burst","key":"a","cost":7}]} -> 200 {"allowed":true,"answers":[{"allowed":true,"limiter":"api","limit":3,"remaining":2, & "remaining":0, & "limit":40,"remaining":33
        POST /v1/hits {"together":true,"requests":[{"limiter":"api","key":"a"},{"limiter":"api","key":"b"},{"limiter":"burst","key":"a"}]} -> 429 {"allowed":false,"answers":[{"allowed":true,"limiter":"api","limit":3,"remaining":2, & {"allowed":false,"limiter":"api","limit":3,"remaining":0,"retry_after_ms":60000 & "limit":40,"remaining":33 & retry-after: 60
        POST /v1/hit {"limiter":"api","key":"a","peek":true} -> 200 "remaining":2
        POST /v1/hits {"together":true,"requests":[{"limiter":"api","key":"a"},{"limiter":"api","key":"a"}]} -> 200 "allowed":true,"answers" & "remaining":0
        POST /v1/hits {"together":true,"requests":[{"limiter":"ten","key":"a","cost":6},{"limiter":"ten","key":"a","cost":5}]} -> 429 "reason":"cost_above_limit" & !retry-after
        POST /v1/hits {"together":true,"requests":[{"limiter":"ten","key":"a","cost":10,"peek":true},{"limiter":"ten","key":"b","peek":true}]} -> 200 "allowed":true
        POST /v1/hits {"together":true,"requests":[{"limiter":"ten","key":"a","cost":11,"peek":true},{"limiter":"ten","key":"b"}]} -> 429 "allowed":false,"answers"
        POST /v1/hits {"together":true,"requests":[{"limiter":"ten","key":"a","peek":true},{"limiter":"ten","key":"b"}]} -> 200 "remaining":10 & "remaining":9
        POST /v1/hit {"limiter":"ten","key":"a","peek":true} -> 200 "remaining":10
        POST /v1/hits {"together":true,"requests":[{"domain":"login","attributes":{"user":"u","ip":"192.0.2.1"}},{"domain":"login","attributes":{"user":"v","ip":"192.0.2.1"},"cost":2}]} -> 200 "limiter":"login-ip","limit":3,"remaining":0
        POST /v1/hits {"together":true,"requests":[{"domain":"login","attributes":{"user":"w","ip":"192.0.2.1"}},{"limiter":"ten","key":"c"}]} -> 429 "limiter":"login-ip"
        POST /v1/hit {"limiter":"ten","key":"c","peek":true} -> 200 "remaining":10
        POST /v1/hits {"together":true,"requests":[{"limiter":"ten","key":"c"},{"limiter":"nobody","key":"c"}]} -> 404 unknown_limiter
        POST /v1/hit {"limiter":"ten","key":"c","peek":true} -> 200 "remaining":10"#,
    );
}

/// Keys of one limiter share shards: thirty-two of them lie in all ways.
#[test]
fn a5_many_keys_of_one_limiter_together() {
    let server = Server::start();
    for round in 0..40 {
        let requests: Vec<String> =
            (0..32).map(|key| format!("{{\"limiter\":\"api\",\"key\":\"{round}-{key}\",\"cost\":2}}")).collect();
        let body = format!("{{\"together\":true,\"requests\":[{}]}}", requests.join(","));
        let first = server.ask(&format!("POST /v1/hits {body}"));
        assert_eq!((first.status, first.body.matches("\"remaining\":1,").count()), (200, 32), "{}", first.body);
        let again = server.ask(&format!("POST /v1/hits {body}"));
        assert_eq!((again.status, again.body.matches("\"remaining\":1,").count()), (429, 32), "{}", again.body);
    }
}

#[test]
fn what_is_wrong_is_named_by_its_place_and_nothing_is_charged() {
    let many = |count: usize, more: &str| {
        let one = r#"{"limiter":"ten","key":"x"}"#;
        format!("POST /v1/hits {{\"requests\":[{}]{more}}}", vec![one; count].join(","))
    };
    let script = format!(
        r#"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x"}},{{"limiter":"ten","key":"x","cost":-1}}]}} -> 400 "code":"bad_cost" & "field":"requests[1].cost" & "value":"-1"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x"}},{{}}]}} -> 400 "code":"missing_field" & "field":"requests[1].limiter"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x","nonsense":1}}]}} -> 400 "code":"unknown_field" & "field":"requests[0].nonsense"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x"}}],"more":1}} -> 400 "code":"unknown_field" & "field":"more"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x"}}],"together":1}} -> 400 "code":"wrong_type" & "field":"together"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x"}}],"requests":[]}} -> 400 "code":"duplicate_field"
        POST /v1/hits {{"requests":[1]}} -> 400 "code":"bad_json"
        POST /v1/hits {{"requests":{{}}}} -> 400 "code":"bad_json"
        POST /v1/hits {{"requests":[{{"limiter":"ten","key":"x"}}] -> 400 "code":"bad_json"
        POST /v1/hits {{}} -> 400 "code":"missing_field" & "field":"requests"
        POST /v1/hits {{"requests":[]}} -> 400 "code":"bad_batch"
        {} -> 400 "code":"bad_batch" & has more than 1000
        {} -> 400 "code":"bad_batch" & at most 32 are decided together
        POST /v1/hits {{"together":true,"requests":[{{"limiter":"ten","key":"x"}},{{"limiter":"ten","key":"y","explain":true}}]}} -> 400 "code":"conflicting_fields" & "field":"requests[1].explain"
        POST /v1/hit {{"limiter":"ten","key":"x","peek":true}} -> 200 "remaining":10
        {} -> 200 "remaining":0"#,
        many(1_001, ""),
        many(33, ",\"together\":true"),
        many(1_000, ""),
    );
    check(&Server::start(), &script);
}

#[test]
fn s5_a_narrowed_token_gets_what_it_may_and_a_word_on_the_rest() {
    let grant = Grant {
        scopes: [Scope::Check].into_iter().collect(),
        limiters: vec!["api".parse().unwrap()],
        ..Grant::default()
    };
    let token = Token { name: "one".to_owned(), hash: Hash::of(b"tg_one"), grant, expires: None };
    let tokens = Some(Tokens::new(vec![token], Vec::new()).unwrap());
    let access = Arc::new(Access::new(Rules { tokens, ..Rules::default() }));
    let server = Server::with(HttpSettings { access, ..HttpSettings::default() });
    let ask = |body: &str| server.ask_with(&format!("POST /v1/hits {body}"), "authorization: Bearer tg_one\r\n");
    let both = r#"{"requests":[{"limiter":"ten","key":"k"},{"limiter":"api","key":"k"}]"#;
    let apart = ask(&format!("{both}}}"));
    assert_eq!(apart.status, 200, "{}", apart.body);
    assert!(apart.body.contains("\"status\":403,\"code\":\"forbidden\"") && apart.body.contains("\"remaining\":2"));
    let together = ask(&format!("{both},\"together\":true}}"));
    assert_eq!(together.status, 403, "{}", together.body);
    assert_eq!(server.gate.peek("api", "k").unwrap().remaining, Some(2), "nothing more was charged");
}

//! Bad input: the field, the value, the bound and the remedy; nothing charged; the server goes on.

use crate::server::{Server, check, check_response};

#[test]
fn s1_bad_bodies_are_told_what_is_wrong() {
    let server = Server::start();
    check(
        &server,
        r#"
        POST /v1/hit -> 400 "code":"bad_json" & the body is empty & "field":"body" & content-type: application/problem+json
        POST /v1/hit nonsense -> 400 "code":"bad_json" & line 1 column 2
        POST /v1/hit {"limiter":"api","key":"u1" -> 400 "code":"bad_json" & line 1 column 27
        POST /v1/hit {"limiter":"api","key":"u1"}} -> 400 "code":"bad_json" & trailing characters
        POST /v1/hit [] -> 400 "code":"bad_json" & expected an object
        POST /v1/hit {"limiter":"api","key":"u1","kost":1} -> 400 "code":"unknown_field" & "field":"kost" & the fields are limiter, key, cost
        POST /v1/hit {"limiter":"api","key":"u1","key":"u2"} -> 400 "code":"duplicate_field" & "field":"key"
        POST /v1/hit {"domain":"login","attributes":{"user":"a","user":"b"}} -> 400 "code":"duplicate_field" & "field":"attributes.user"
        POST /v1/hit {} -> 400 "code":"missing_field"
        POST /v1/hit {"limiter":"api"} -> 400 "code":"missing_field" & "field":"key"
        POST /v1/hit {"key":"u1"} -> 400 "code":"missing_field" & "field":"limiter"
        POST /v1/hit {"domain":"login"} -> 400 "code":"missing_field"
        POST /v1/hit {"limiter":"api","key":"u1","domain":"login"} -> 400 "code":"conflicting_fields" & "field":"domain"
        POST /v1/hit {"limiter":"api","key":"u1","attributes":{"ip":"x"}} -> 400 "code":"conflicting_fields" & "field":"attributes"
        POST /v1/hit {"domain":"login","attributes":{}} -> 400 "code":"bad_attributes" & 1 to 16
        POST /v1/hit {"limiter":"none","key":"u1"} -> 404 "code":"unknown_limiter" & no limiter is named \"none\"; there are: api, two
        POST /v1/hit {"limiter":"","key":"u1"} -> 400 "code":"bad_name" & 1 to 64
        GET /v1/limiters/api/keys/u1 -> 200 "remaining":3"#,
    );
}

#[test]
fn s1_bad_costs_and_keys_are_told_the_bound() {
    let server = Server::start();
    check(
        &server,
        r#"
        POST /v1/hit {"limiter":"api","key":"u1","cost":-1} -> 400 "code":"bad_cost" & "field":"cost" & "value":"-1" & from 0 (look only) to 4294967295
        POST /v1/hit {"limiter":"api","key":"u1","cost":1.5} -> 400 "code":"bad_cost" & "value":"1.5"
        POST /v1/hit {"limiter":"api","key":"u1","cost":1e400} -> 400 "code":"bad_cost" & "field":"cost" & "value":"out of range" & to 4294967295
        POST /v1/hit {"limiter":"api","key":1e400} -> 400 "code":"wrong_type" & "field":"key"
        POST /v1/hit {"limiter":"api","key":"u1","cots":1e400} -> 400 "code":"bad_json" & number out of range
        POST /v1/hit {"limiter":"api","key":"u1","cost":4294967296} -> 400 "code":"bad_cost" & "value":"4294967296"
        POST /v1/hit {"limiter":"api","key":"u1","cost":99999999999999999999999} -> 400 "code":"bad_cost"
        POST /v1/hit {"limiter":"api","key":"u1","cost":"1"} -> 400 "code":"wrong_type" & "field":"cost" & "value":"1" & must be a whole number
        POST /v1/hit {"limiter":"api","key":"u1","cost":null} -> 400 "code":"wrong_type" & "value":"null"
        POST /v1/hit {"limiter":"api","key":7} -> 400 "code":"wrong_type" & "field":"key" & "value":"7" & must be a string
        POST /v1/hit {"limiter":"api","key":""} -> 400 "code":"bad_key" & \"key\" is empty; use 1 to 512 bytes
        POST /v1/hit {"limiter":"api","key":["u1"]} -> 400 "code":"wrong_type" & "value":"an array"
        POST /v1/hit {"limiter":"api","key":{"a":{"b":1}}} -> 400 "code":"wrong_type" & "value":"an object"
        POST /v1/hit {"limiter":"api","key":"u1","peek":1} -> 400 "code":"wrong_type" & must be true or false
        POST /v1/hit {"attributes":{"ip":7}} -> 400 "code":"wrong_type" & "field":"attributes.ip"
        POST /v1/hit {"attributes":{"ip":""}} -> 400 "code":"bad_key" & "field":"attributes.ip"
        POST /v1/hit {"attributes":"ip"} -> 400 "code":"wrong_type" & "field":"attributes"
        GET /v1/limiters/api/keys/u1 -> 200 "remaining":3"#,
    );
    let cases = [
        ("k".repeat(512), "200"),
        ("k".repeat(513), "400 \"code\":\"bad_key\" & has 513 bytes, more than 512 & … (513 bytes)"),
        ("é".repeat(256), "200"),
        ("k".repeat(100_000), "413 \"code\":\"body_too_large\" & more than 65536 bytes; a key has at most 512"),
    ];
    for (key, expected) in cases {
        let response = server.ask(&format!(r#"POST /v1/hit {{"limiter":"api","key":"{key}"}}"#));
        check_response(&key[..10], &response, expected);
    }
}

#[test]
fn s1_depth_and_size_are_bounded() {
    let server = Server::start();
    let deep = "[".repeat(60_000);
    let response = server.ask(&format!(r#"POST /v1/hit {{"key":{deep}"#));
    check_response("deep and broken", &response, "400 \"code\":\"bad_json\"");
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    let response = server.ask(&format!(r#"POST /v1/hit {{"key":{deep}}}"#));
    check_response("deep", &response, "400 \"code\":\"wrong_type\" & \"value\":\"an array\"");
    let many: Vec<String> = (0..17).map(|i| format!("\"a{i}\":\"x\"")).collect();
    let response = server.ask(&format!(r#"POST /v1/hit {{"attributes":{{{}}}}}"#, many.join(",")));
    check_response("17 attributes", &response, "400 \"code\":\"bad_attributes\" & 1 to 16 members, and has 17");
    let response = server.ask_with("GET /livez", &format!("x-long: {}\r\n", "x".repeat(17_000)));
    check_response("long header", &response, "431 \"code\":\"headers_too_large\" & connection: close");
    let response = server.ask_with("GET /livez", &"x-one-of-many: 1\r\n".repeat(70));
    check_response("many headers", &response, "431 \"code\":\"headers_too_large\" & at most 16384 bytes in 64 fields");
    let response = server.ask_with("GET /livez", &"x-one-of-many: 1\r\n".repeat(2_000));
    check_response("too many for hyper", &response, "431");
    let chunks = format!("{:x}\r\n{}\r\n", 8_192, "x".repeat(8_192)).repeat(9) + "0\r\n\r\n";
    let mut client = server.connect();
    client.send("POST /v1/hit", "transfer-encoding: chunked\r\n");
    std::io::Write::write_all(&mut client.stream, chunks.as_bytes()).unwrap();
    check_response("chunked", &client.response().unwrap(), "413 \"code\":\"body_too_large\"");
    check(&server, "GET /livez -> 200");
}

#[test]
fn wrong_paths_methods_and_queries_are_told_the_right_ones() {
    check(
        &Server::start(),
        r#"
        GET /v1/nothing -> 404 "code":"not_found" & GET / lists what there is
        GET /v1/limiters/api/keys/u1/analysis -> 404 "code":"not_found"
        GET /ws -> 426 "code":"not_a_websocket"
        GET /v1/hit -> 405 allow: POST & "code":"method_not_allowed"
        OPTIONS /v1/limiters/api/keys/u1/block -> 405 allow: PUT, DELETE
        POST /livez -> 405 allow: GET, HEAD
        GET /v1/allowed?user=u1&usr=u2 -> 400 "code":"unknown_field" & "field":"usr"
        GET /v1/allowed?user=u1&user=u2 -> 400 "code":"duplicate_field"
        GET /v1/allowed?user=u1&deny_status=500 -> 400 "code":"bad_deny_status" & "value":"500" & 401, 403 or 429
        GET /v1/allowed?user=%zz -> 400 "code":"bad_percent_encoding" & "field":"user" & %25
        GET /v1/limiters/none -> 404 "code":"unknown_limiter"
        GET /v1/limiters/%FF -> 404 "code":"unknown_limiter"
        GET /v1/limiters/none/keys -> 404 "code":"unknown_limiter"
        GET /v1/limiters/none/keys/u1 -> 404 "code":"unknown_limiter"
        PUT /v1/limiters/none/keys/u1/block {"for":"10m"} -> 404 "code":"unknown_limiter"
        GET /v1/limiters/api/keys/ -> 400 "code":"bad_key" & the key is empty
        GET /v1/limiters/api/keys/%4 -> 400 "code":"bad_percent_encoding"
        GET /v1/limiters/api/keys/u1?cost=-1 -> 400 "code":"bad_cost" & from 0 to 4294967295
        GET /v1/limiters/api/keys?state=all -> 400 "code":"bad_state" & tracked, blocked or overridden
        GET /v1/limiters/api/keys?most=0 -> 400 "code":"bad_number" & from 1 to 1000
        GET /v1/limiters/api/keys?after=x -> 400 "code":"bad_cursor"
        GET /v1/limiters/hashed/keys -> 501 "code":"no_names" & set names = true
        PUT /v1/limiters/api/keys/u1/block -> 400 "code":"bad_json"
        PUT /v1/limiters/api/keys/u1/block {} -> 400 "code":"missing_field" & "field":"for"
        PUT /v1/limiters/api/keys/u1/block {"for":10} -> 400 "code":"wrong_type"
        PUT /v1/limiters/api/keys/u1/block {"for":"10"} -> 400 "code":"bad_duration" & has no unit; write 10s
        PUT /v1/limiters/api/keys/u1/block {"for":"0s"} -> 400 "code":"bad_duration" & outside 1ms to
        PUT /v1/limiters/api/keys/u1/block {"for":"400d"} -> 400 "code":"bad_duration"
        PUT /v1/limiters/api/keys/u1/block {"for":"10m","by":"me"} -> 400 "code":"unknown_field" & "field":"by""#,
    );
}

#[test]
fn s1_what_is_not_http_ends_the_connection_and_nothing_else() {
    let server = Server::start();
    for junk in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "HIT api u1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n"] {
        let mut client = server.connect();
        std::io::Write::write_all(&mut client.stream, junk.as_bytes()).unwrap();
        let status = client.response().map(|response| response.status);
        assert!(matches!(status, None | Some(400)), "{junk:?}: {status:?}");
        assert!(client.response().is_none(), "{junk:?}");
    }
    check(&server, "GET /livez -> 200");
}

#[test]
fn s1_a_request_line_too_long_is_refused_bare() {
    let server = Server::start();
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(65_535));
    let mut client = server.connect();
    let _ = std::io::Write::write_all(&mut client.stream, long.as_bytes());
    assert_eq!(client.response().map(|response| response.status), Some(414));
    assert!(client.response().is_none(), "the connection is closed");
    check(&server, "GET /livez -> 200");
}

/// A user named `r1#` cut the address and the status out of nginx's request, which was allowed: hyper drops what stands
/// behind a `#`. Heads that somebody put together from pieces are refused, and nothing is charged.
#[test]
fn s2_a_fragment_in_the_target_and_a_missing_or_second_host_are_refused() {
    let server = Server::start();
    let allowed = "GET /v1/allowed?domain=login&user=r1";
    for (head, expected) in [
        (format!("{allowed}#&ip=192.0.2.1 HTTP/1.1\r\nHost: a\r\n\r\n"), "400"),
        (format!("{allowed}&ip=192.0.2.1# HTTP/1.0\r\nHost: a\r\n\r\n"), "400"),
        ("GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /livez# HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "200, then 400"),
        (
            format!("{allowed} HTTP/1.0\r\n\r\n&ip=192.0.2.1 HTTP/1.0\r\nHost: a\r\n\r\n"),
            "400 \"code\":\"bad_host\" & no Host field; send one",
        ),
        ("GET /livez HTTP/1.1\r\n\r\n".to_owned(), "400 \"code\":\"bad_host\""),
        ("GET /nowhere HTTP/1.1\r\n\r\n".to_owned(), "400 \"code\":\"bad_host\""),
        (format!("{allowed} HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), "400 \"code\":\"bad_host\" & more than one Host"),
        (format!("{allowed} HTTP/1.1\r\nHost: a b\r\n\r\n"), "400 \"code\":\"bad_host\" & \"value\":\"a b\""),
        (format!("{allowed} HTTP/1.1\r\nHost:\r\n\r\n"), "400 \"code\":\"bad_host\""),
    ] {
        let mut client = server.connect();
        std::io::Write::write_all(&mut client.stream, head.as_bytes()).unwrap();
        for expected in expected.split(", then ") {
            check_response(&head, &client.response().unwrap(), expected);
        }
        assert!(client.response().is_none(), "the connection is closed: {head:?}");
    }
    check(&server, r#"GET /v1/limiters/login-user/keys/r1 -> 200 "remaining":2"#);
    let mut client = server.connect();
    std::io::Write::write_all(&mut client.stream, b"GET /readyz HTTP/1.0\r\n\r\n").unwrap();
    check_response("a health check of HTTP/1.0", &client.response().unwrap(), "200");
}

#[test]
fn s1_the_user_may_come_in_a_header_field() {
    let server = Server::start();
    let ask = |query: &str, fields: &str| server.ask_with(&format!("GET /v1/allowed?{query}"), fields);
    let limit = "domain=login&user_header=X-Limit-User";
    for (name, left) in [("a#b&c \"d\" 'e' %+é", "1"), ("a#b&c \"d\" 'e' %+é", "0"), ("a", "1")] {
        let response = ask(limit, &format!("x-limit-user: {name}\r\n"));
        check_response(name, &response, &format!("200 \"remaining\":{left}"));
    }
    check(&server, r#"GET /v1/limiters/login-user/keys -> 200 {"keys":["a","a#b&c \"d\" 'e' %+é"],"next":null}"#);
    for (query, fields, expected) in [
        (limit, "", "400 \"code\":\"missing_field\""),
        (limit, "x-limit-user:\r\n", "400 \"code\":\"missing_field\""),
        (
            limit,
            "x-limit-user: a\r\nx-limit-user: b\r\n",
            "400 \"code\":\"duplicate_field\" & \"field\":\"x-limit-user\"",
        ),
        ("user=a&user_header=b", "", "400 \"code\":\"conflicting_fields\" & \"field\":\"user_header\""),
        ("user_header=a%20b", "", "400 \"code\":\"bad_name\" & \"value\":\"a b\""),
        ("user_header=", "", "400 \"code\":\"bad_name\""),
    ] {
        check_response(query, &ask(query, fields), expected);
    }
}

/// Bodies that are nearly right, from a fixed seed: each gets an answer that is not our fault, on
/// one connection that stays usable.
#[test]
fn s1_mutated_bodies_never_break_the_door() {
    let server = Server::start();
    let good = [
        r#"{"limiter":"ten","key":"u\u00e9\n1","cost":1,"peek":false,"explain":true}"#,
        r#"{"domain":"login","attributes":{"user":"u1","ip":"192.0.2.1"},"cost":2}"#,
    ];
    let mut seed = 7_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let mut client = server.connect();
    for round in 0..3_000 {
        let mut body = good[round % 2].as_bytes().to_vec();
        for _ in 0..=random(3) {
            if body.len() < 2 {
                break;
            }
            let at = random(body.len());
            match random(4) {
                0 => drop(body.remove(at)),
                1 => body.insert(at, b"{}[]\",:0e-.tn\\\xff\0"[random(16)]),
                2 => body[at] = u8::try_from(random(256)).unwrap(),
                _ => body.truncate(at.max(1)),
            }
        }
        let head = format!("POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        std::io::Write::write_all(&mut client.stream, &[head.as_bytes(), &body].concat()).unwrap();
        let status = client.response().map(|response| response.status);
        assert!(
            matches!(status, Some(200 | 400 | 404 | 429)),
            "{status:?} for {:?}, round {round}",
            String::from_utf8_lossy(&body)
        );
    }
}

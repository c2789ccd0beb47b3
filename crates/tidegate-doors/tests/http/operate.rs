//! Health, metrics, the index and the OpenAPI text.

use crate::server::{Server, check, limiter};
use tidegate::{Algorithm, Clock, Gate, Micros, Policy, Settings};
use tidegate_doors::http::HttpSettings;

#[test]
fn health_index_and_description() {
    let server = Server::start();
    check(
        &server,
        r#"
        GET /livez -> 200 {"status":"ok"}
        GET /readyz -> 200 {"status":"ok"}
        HEAD /readyz -> 200
        GET / -> 200 content-type: text/plain & POST   /v1/hit & /v1/limiters/{limiter}/keys/{key}/block
        GET /openapi.json -> 200 content-type: application/json"#,
    );
    let document = server.ask("GET /openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

/// Every route of the index page, asked as a web page of another host and as a proxy on this machine would.
#[test]
fn s2_no_route_is_without_its_rule() {
    const PUBLIC: [&str; 7] =
        ["/livez", "/readyz", "/healthcheck", "/openapi.json", "/dashboard.js", "/dashboard.css", "/"];
    let server = Server::start();
    let index = server.ask("GET /").body;
    let routes: Vec<(&str, &str)> = index
        .lines()
        .skip(2)
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    assert_eq!(routes.len(), 40);
    for (method, template) in routes {
        let path = template.replace("{limiter}", "api").replace("{stream}", "none").replace("{key}", "k");
        let code = |headers: &str| {
            let response = server.ask_with(&format!("{method} {path}"), headers);
            let code = response.body.split("\"code\":\"").nth(1).map(|rest| rest.split('"').next().unwrap().to_owned());
            if response.status == 403 { code.unwrap_or_default() } else { String::new() }
        };
        let page = if PUBLIC.contains(&template) { "" } else { "cross_origin" };
        assert_eq!(code("origin: http://evil.example\r\n"), page, "{method} {template}");
        let decides = template.starts_with("/v1/reservations/");
        let changes = !decides && ["PUT", "DELETE"].contains(&method) || template.ends_with("able");
        let proxied = if changes { "not_loopback" } else { "" };
        assert_eq!(code("x-forwarded-for: 6.6.6.6\r\n"), proxied, "{method} {template}");
    }
}

#[test]
fn s2_the_default_address_is_loopback() {
    let address: std::net::SocketAddr = tidegate_doors::http::DEFAULT_ADDRESS.parse().unwrap();
    assert!(address.ip().is_loopback());
}

#[test]
fn metrics_count_decisions_requests_and_connections() {
    let server = Server::start();
    check(
        &server,
        r#"
        POST /v1/hit {"limiter":"api","key":"u1","cost":3} -> 200
        POST /v1/hit {"limiter":"api","key":"u1"} -> 429
        POST /v1/hit {"limiter":"api","key":"u1"} -> 429
        POST /v1/hit {"limiter":"none","key":"u1"} -> 404
        GET /v1/limiters/api/keys/u1 -> 429
        GET /nowhere -> 404
        GET /metrics -> 200 content-type: text/plain; version=0.0.4 & tidegate_decisions_total{limiter="api",role="enforced",verdict="allowed",door="http"} 1 & tidegate_decisions_total{limiter="api",role="enforced",verdict="denied",door="http"} 2 & tidegate_peeks_total{limiter="api"} 1 & tidegate_sketched_decisions_total{limiter="api",role="enforced",verdict="denied"} 0
        GET /metrics -> 200 tidegate_http_requests_total{route="/v1/hit",method="POST",status="429"} 2 & tidegate_http_requests_total{route="/v1/hit",method="POST",status="404"} 1 & tidegate_http_requests_total{route="/v1/limiters/{limiter}/keys/{key}",method="GET",status="429"} 1 & tidegate_http_requests_total{route="none",method="none",status="404"} 1
        GET /metrics -> 200 tidegate_http_request_duration_seconds_bucket{route="/v1/hit",method="POST",le="+Inf"} 4 & tidegate_http_request_duration_seconds_count{route="/v1/hit",method="POST"} 4 & tidegate_table_entries 1 & tidegate_table_max_bytes 268435456 & tidegate_http_connections "#,
    );
}

/// Places for statistics are bounded, and nothing told when there was none left. Idle ones make room.
#[test]
fn m6_hits_whose_keys_find_no_place_for_statistics_are_counted() {
    let policy = Policy::new(vec![limiter("ws", Algorithm::TokenBucket, &["5 per minute"]).with_stats()]).unwrap();
    let clock = Clock::manual(Micros::from_secs(1_000));
    let server = Server::on(Gate::open(policy, &Settings::default(), clock).unwrap(), HttpSettings::default());
    let refused = || {
        let page = server.ask("GET /metrics").body;
        let told = page.lines().find_map(|line| line.strip_prefix("tidegate_stats_refused_total{limiter=\"ws\"} "));
        told.unwrap_or_else(|| panic!("{page}")).parse::<u64>().unwrap()
    };
    let hit = |keys: std::ops::Range<u32>| keys.for_each(|key| drop(server.gate.hit("ws", key.to_string()).unwrap()));
    hit(0..10_000);
    assert_eq!(refused(), 0);
    // There are 131,072 places.
    hit(10_000..140_000);
    let full = refused();
    assert!((140_000 - 131_072..140_000).contains(&full), "{full}");
    // Later they are idle. A hit looks at a few places only, so that some still find none.
    server.gate.clock().set(Micros::from_secs(1_000 + 900));
    hit(200_000..201_000);
    assert!(refused() - full < 100, "{} of 1,000", refused() - full);
}

#[test]
fn metrics_are_well_formed() {
    let server = Server::start();
    check(&server, r#"POST /v1/hit {"limiter":"api","key":"u1"} -> 200"#);
    let text = server.ask("GET /metrics").body;
    let mut typed = std::collections::HashMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(typed.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has two types");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let name = series.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let kind = typed.get(name).or_else(|| typed.get(base)).unwrap_or_else(|| panic!("{name} has no type"));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        }
    }
}

#[test]
fn m3_keys_never_become_labels() {
    let server = Server::start();
    check(
        &server,
        r#"
        POST /v1/hit {"limiter":"api","key":"sentinel"} -> 200
        GET /v1/limiters/api/keys/sentinel -> 200
        GET /v1/allowed?user=sentinel&domain=sentinel -> 200
        GET /sentinel -> 404
        GET /v1/limiters/sentinel -> 404
        POST /v1/hit {"limiter":"sentinel","key":"u1"} -> 404
        GET /metrics -> 200 !sentinel"#,
    );
}

/// A monitor keeps every series that it ever saw: there must be as many after a million keys as after none.
#[test]
fn m3_a_million_keys_add_no_series() {
    let server = Server::start();
    let series = || {
        let page = server.ask("GET /metrics").body;
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>()
    };
    // The page counts itself, from the second time on.
    series();
    let before = series();
    for key in 0..1_000_000_u32 {
        let _ = server.gate.hit("api", key.to_le_bytes()).unwrap();
    }
    assert_eq!(series(), before);
}

//! `[grpc]`, and what limiters tell those who ask there.

use super::read;
use tidegate_doors::ratelimit::{HeaderNames, RateLimitSettings};

#[test]
fn grpc_says_what_answers_carry() {
    let check = |text: &str, expected: RateLimitSettings| {
        assert_eq!(read(&format!("[grpc]\n{text}"), &[]).unwrap().grpc, expected, "{text}");
    };
    check("", RateLimitSettings::default());
    check("shadow = true", RateLimitSettings { shadow: true, ..RateLimitSettings::default() });
    let with = |headers| RateLimitSettings { headers, ..RateLimitSettings::default() };
    check("headers = false", with(HeaderNames::default()));
    check("headers = true", with(HeaderNames::standard()));
    let name = |name: &str| Some(name.to_owned());
    let named = HeaderNames { limit: name("RateLimit-Limit"), reset: name("x-reset"), ..HeaderNames::default() };
    check("headers = { limit = \"RateLimit-Limit\", reset = \"x-reset\" }", with(named));
}

#[test]
fn metadata_is_a_table_and_becomes_json() {
    let text = r#"
[[limiter]]
name = "a"
by = ["user"]
limits = ["1 per day"]
metadata = { team = "sh\"op", size = 3, part = 0.5, on = true, of = [1, "x"], inner = { at = 2026-01-02 } }
[[limiter.match]]
user = "gold"
limits = ["2 per day"]
metadata = {}
[[limiter.match]]
user = "tin"
limits = ["3 per day"]
"#;
    let policy = read(text, &[]).unwrap().policy;
    let limiter = &policy.limiters()[0];
    let expected = r#"{"team":"sh\"op","size":3,"part":0.5,"on":true,"of":[1,"x"],"inner":{"at":"2026-01-02"}}"#;
    assert_eq!(limiter.metadata.as_deref(), Some(expected));
    let of_matches: Vec<Option<&str>> = limiter.matches.iter().map(|one| one.metadata.as_deref()).collect();
    assert_eq!(of_matches, [Some("{}"), None]);
    let long = text.replace("sh\\\"op", &"x".repeat(4096));
    assert!(read(&long, &[]).unwrap_err().contains("bytes, more than 4096; make it shorter"));
}

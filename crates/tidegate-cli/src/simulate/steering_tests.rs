//! Limits by value and limits of single keys in a replay.

use super::tests::{check, limiter};

#[test]
fn a11_limits_by_value_on_every_kind_of_line() {
    let config = r#"
[[limiter]]
name = "ws"
algorithm = "fixed-window"
limits = ["2 per 20s"]
[[limiter.match]]
key = "ws ip=10.*"
limits = ["3 per 40s"]
[[limiter.match]]
key = ["ws ip=127.*", "ws ip=192.*"]
unlimited = true
[[limiter.match]]
key = "*evil*"
deny = true
[[udp.route]]
match = '^ws '
limiter = "ws"
"#;
    check(
        config,
        r#"
        {"at":0,"udp":"1 over_limit ws ip=9.9.9.9"} -> {"at":0,"udp":"1 ok N 1.0 2.0 20"}
        {"at":0,"udp":"2 over_limit ws ip=10.1.2.3"} -> {"at":0,"udp":"2 ok N 1.0 3.0 40"}
        {"at":0,"udp":"3 over_limit ws ip=127.0.0.1"} -> {"at":0,"udp":"3 ok N 0.0 1.0 1"}
        {"at":0,"udp":"4 over_limit ws evil"} -> {"at":0,"udp":"4 ok Y 0.0 0.0 20"}
        {"at":30,"limiter":"ws","key":"ws ip=10.1.2.3","cost":2} -> {"at":30,"limiter":"ws","key":"ws ip=10.1.2.3","allowed":true,"limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":10000}
        {"at":30,"limiter":"ws","key":"ws ip=192.0.2.1","cost":9} -> {"at":30,"limiter":"ws","key":"ws ip=192.0.2.1","allowed":true,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null}
        {"at":30,"op":"peek","limiter":"ws","key":"evil"} -> {"at":30,"op":"peek","limiter":"ws","key":"evil","allowed":false,"limit":0,"remaining":0,"retry_after_ms":null,"reset_after_ms":0}"#,
    );
}

#[test]
fn a11_overrides_are_ops_of_a_trace() {
    check(
        &limiter("fixed-window", "2 per 20s"),
        r#"
        {"at":0,"op":"override","limiter":"api","key":"u","limits":["3 per 20s"],"for":"10s"} -> {"at":0,"op":"override","limiter":"api","key":"u","until":10}
        {"at":0,"limiter":"api","key":"u","cost":3} -> {"at":0,"limiter":"api","key":"u","allowed":true,"limit":3,"remaining":0,"retry_after_ms":null,"reset_after_ms":20000}
        {"at":10,"op":"peek","limiter":"api","key":"u"} -> {"at":10,"op":"peek","limiter":"api","key":"u","allowed":false,"limit":2,"remaining":0,"retry_after_ms":10000,"reset_after_ms":10000}
        {"at":10,"op":"override","limiter":"api","key":"u","limits":["4 per 20s"]} -> {"at":10,"op":"override","limiter":"api","key":"u","until":null}
        {"at":10,"op":"clear_override","limiter":"api","key":"u"} -> {"at":10,"op":"clear_override","limiter":"api","key":"u","cleared":true}"#,
    );
}

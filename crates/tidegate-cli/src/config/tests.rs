//! Configurations as data: what a text becomes, and what exactly is said when it is refused.

mod access;
mod grpc;
mod refusals;

use super::{Config, parse};
use std::path::Path;
use std::time::Duration;
use tidegate::{Gate, Replicas};
use tidegate_doors::http::Limits;
use tidegate_events::{Mode, Overdue, StreamRules, StreamSpec};

fn read(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    parse("t.toml", text.to_owned(), Path::new("folder"), variables).map_err(|error| error.to_string())
}

/// The text is refused with exactly this message.
#[track_caller]
fn check(text: &str, expected: &str) {
    check_env(text, &[], expected);
}

#[track_caller]
fn check_env(text: &str, variables: &[(&str, &str)], expected: &str) {
    let error = read(text, variables).unwrap_err();
    assert!(error == expected, "got:\n{error}\n\nexpected:\n{expected}");
}

/// The text is refused, and the message has all these parts.
#[track_caller]
fn check_parts(text: &str, parts: &[&str]) {
    let error = read(text, &[]).unwrap_err();
    for part in parts {
        assert!(error.contains(part), "{text}\ngives:\n{error}\n\nwithout: {part}");
    }
}

/// How many problems a text has.
fn problems(text: &str) -> usize {
    read(text, &[]).unwrap_err().matches("error: ").count()
}

#[test]
fn the_proxy_is_read_and_checked() {
    let text = r#"
[proxy]
listen = "[::1]:0"
admin = "127.0.0.1:0"
upstream = "https://h:8443"
limit = "3 per 2s"
in_flight = 0
when_limited = "reject"
max_waiting = 7
max_waiting_bytes = "1MiB"
max_waiting_per_client = 5
max_in_flight_per_client = 8
max_wait = "5m"
max_upstream = 9
max_connections = 11
max_paths = 13
key = ["path", "method", "host", "ip", "header.x-api-key"]
templates = ["/users/{id}"]
trusted_hops = 2
connect_timeout = "1s"
upstream_timeout = "2s"
client_timeout = "3s"
"#;
    let told = |text: &str| {
        let config = read(text, &[]).unwrap();
        config.proxy.unwrap().policy(&Gate::embedded(config.policy)).unwrap()
    };
    let limit = |policy: &tidegate_proxy::Policy| policy.limiter.spec().rules.limits()[0].to_string();
    let policy = told(text);
    assert_eq!((limit(&policy).as_str(), policy.in_flight, policy.max_waiting), ("3 per 2s", 0, 7));
    assert_eq!((policy.max_upstream, policy.max_keys, policy.trusted_hops), (9, 13, 2));
    assert_eq!((policy.max_waiting_per_client, policy.max_in_flight_per_client), (Some(5), Some(8)));
    assert_eq!((policy.key.len(), policy.templates.len(), policy.max_wait), (5, 1, Some(Duration::from_secs(300))));
    let default = "[proxy]\nupstream = \"http://h\"";
    assert_eq!(read(default, &[]).unwrap().proxy.unwrap().listen.to_string(), "127.0.0.1:4040");
    assert_eq!(limit(&told(default)), "100 per 1m");
    for (setting, part) in [
        ("upstream = \"h:80\"", "has no scheme or no host; write http://HOST:PORT"),
        ("limit = \"5 per minute burst 9\"", "counts starts per window, leave them out"),
        ("limit = \"five\"", "does not start with a count"),
        ("limit = \"0 per minute\"", "lets no request start, ever"),
        ("in_flight = -1", "-1 is no whole number from 0 to 10000000; write one, such as in_flight = 100"),
        ("in_flight = \"100\"", "is a string, not a number"),
        ("max_upstream = 0", "0 is no whole number from 1"),
        ("when_limited = \"queue\"", "use \"wait\" or \"reject\""),
        ("max_wait = \"2d\"", "is outside 1ms to 1d"),
        ("key = [\"query\"]", "use path, method, host, ip or header.NAME"),
        ("key = []", "all requests would share one limit"),
        ("templates = [\"/users\"]", "has no blank"),
        ("replicas = \"some\"", "\"some\" is not known; use \"exact\" or \"share\""),
        ("replica = \"1/3\"", "replica: it has no effect without replicas = \"share\""),
        ("limits = \"x\"", "did you mean \"limit\"?"),
    ] {
        check_parts(&format!("[proxy]\n{setting}\n"), &["t.toml:2:", part]);
    }
}

#[test]
fn limiters_are_shared_by_number_or_through_a_store() {
    let limiter = |more: &str| {
        format!(
            "[[limiter]]\nname = \"a\"\nalgorithm = \"fixed-window\"\naligned = true\nlimits = [\"9 per minute\"]\n{more}\n"
        )
    };
    let replicas = |text: &str| read(text, &[]).unwrap().policy.limiters()[0].replicas;
    assert_eq!(replicas(&limiter("")), Replicas::Exact);
    assert_eq!(replicas(&limiter("replicas = \"share\"\nreplica = \"2/3\"")), Replicas::Share(Some((1, 3))));
    let on_etcd = format!("[store]\nkind = \"etcd\"\n{}", limiter("replicas = \"share\""));
    assert_eq!(replicas(&on_etcd), Replicas::Share(None));
    check_parts(
        &limiter("replicas = \"share\""),
        &["limiter \"a\"", "servers find each other through a store", "replica = \"1/3\""],
    );
    check_parts(&limiter("replica = \"1/3\""), &["t.toml:6:", "it has no effect without replicas = \"share\""]);
    let bucket = "[[limiter]]\nname = \"a\"\nlimits = [\"9 per minute\"]\nreplicas = \"share\"\nreplica = \"1/3\"\n";
    check_parts(
        bucket,
        &["t.toml:4:", "needs algorithm = \"fixed-window\" with aligned = true, one limit, and no block"],
    );
}

#[test]
fn replicas_share_by_number_or_through_a_redis() {
    let replicas = |text: &str| {
        let limiters = read(text, &[]).unwrap().policy;
        limiters.limiters().iter().find(|limiter| limiter.name == "proxy").map(|limiter| limiter.replicas)
    };
    assert_eq!(replicas("[proxy]\n"), Some(Replicas::Exact));
    let numbered = "[proxy]\nreplicas = \"share\"\nreplica = \"2/3\"\non_failure = \"deny\"";
    assert_eq!(replicas(numbered), Some(Replicas::Share(Some((1, 3)))));
    for kind in ["redis", "etcd"] {
        let shared = format!("[store]\nkind = \"{kind}\"\n[proxy]\nreplicas = \"share\"");
        assert_eq!(replicas(&shared), Some(Replicas::Share(None)));
        assert_eq!(replicas(&format!("[store]\nkind = \"{kind}\"\n[proxy]")), Some(Replicas::Exact));
    }
    check_parts(
        "[proxy]\nreplicas = \"share\"",
        &["t.toml:1:", "set kind = \"redis\" or \"etcd\" in [store], or number them"],
    );
    for (setting, part) in [
        ("replica = \"4/3\"", "\"4/3\" is none of 1/1 to 1000/1000; write \"1/3\""),
        (
            "replica = \"1/3\"\non_failure = \"allow\"",
            "\"allow\" would start requests outside this replica's share; use \"deny\"",
        ),
    ] {
        check_parts(&format!("[proxy]\nreplicas = \"share\"\n{setting}\n"), &["t.toml:", part]);
    }
}

#[test]
fn an_empty_file_is_valid() {
    assert_eq!(read("", &[]), Ok(Config::default()));
    assert_eq!(read("# nothing\n", &[]), Ok(Config::default()));
    let config = read("[store]\n", &[]).unwrap();
    assert_eq!(config.doors.http.unwrap().to_string(), "127.0.0.1:7400");
    assert_eq!(config.doors.udp.unwrap().to_string(), "127.0.0.1:7401");
    assert_eq!(config.store.max_memory, 256 << 20);
}

#[test]
fn every_setting_of_a_stream_is_read() {
    let text = "[[stream]]\nname = \"orders\"\nmode = \"strictly-once\"\nduration = \"3s\"\nmax_events = 5\nsnapshot_every = \"1m\"\noverdue = \"invalidate\"\n[[stream]]\nname = \"b\"\nmode = \"only-once\"\nduration = \"2s\"";
    let streams = read(text, &[]).unwrap().streams;
    let mut orders = StreamSpec::new("orders", Mode::StrictlyOnce);
    orders.rules = StreamRules { duration_ms: 3_000, max_events: 5, snapshot_every_ms: 60_000, ..orders.rules };
    orders.overdue = Overdue::Invalidate;
    let mut other = StreamSpec::new("b", Mode::OnlyOnce);
    (other.rules.duration_ms, other.rules.snapshot_every_ms) = (2_000, 2_000);
    assert_eq!(streams, [orders, other]);
}

#[test]
fn every_setting_is_read() {
    let text = r#"
[store]
kind = "memory"
max_memory = "64MiB"
path = "data"
snapshot_every = "1500ms"
[doors]
http = "[::1]:0"
udp = "[::1]:7"
[[limiter]]
name = "login-user"
domain = "login"
by = ["user"]
algorithm = "sliding-log"
limits = ["5 per minute", "500 per hour block 1d"]
names = false
honour_disable = false
top_keys = false
last_decisions = 500
[[limiter]]
name = "minute"
algorithm = "fixed-window"
aligned = true
limits = ["100 per minute"]
[[limiter]]
name = "ws-ip"
algorithm = "average"
strict = true
limits = ["22 per 20s"]
[[limiter]]
name = "ws-global"
algorithm = "average"
limits = ["2500 per 10s"]
stats = true
[[limiter]]
name = "notify"
scope = "un:v1"
algorithm = "buckets"
resolution = "1h"
history = "7d"
limits = ["1 per 2h block 4h", "3 per day", "7 per week"]
[[limiter]]
name = "by-default"
algorithm = "buckets"
limits = ["3 per day"]
"#;
    let config = read(text, &[]).unwrap();
    assert_eq!(config.store.max_memory, 64 << 20);
    assert_eq!(config.store.path.as_deref(), Some(Path::new("folder/data")));
    assert_eq!(config.store.snapshot_every, Duration::from_millis(1500));
    assert_eq!((config.audit.path, config.audit.log), (None, false));
    assert_eq!(config.limits, Limits::default());
    let text =
        "[limits]\nconnections = 50\nconnections_per_token = 5\nidle_sessions = 7\nunread = \"2MiB\"\nreservations = 3";
    let limits = read(text, &[("TIDEGATE_LIMITS__SUBSCRIPTIONS", "9")]).unwrap().limits;
    assert_eq!((limits.connections, limits.reserved(), limits.connections_per_token), (50, 5, Some(5)));
    assert_eq!((limits.idle_sessions, limits.subscriptions, limits.unread_bytes), (7, 9, 2 << 20));
    assert_eq!(limits.reservations, 3);
    let audit = read("[audit]\npath = \"who\"\nlog = true", &[]).unwrap().audit;
    assert_eq!((audit.path.as_deref(), audit.log), (Some(Path::new("folder/who")), true));
    assert_eq!(config.record, None);
    let record = read("[record]\npath = \"seen\"", &[]).unwrap().record.unwrap();
    let (sample, keys) = (tidegate::Sample::millionths(10_000), tidegate::RecordedKeys::Hashes);
    assert_eq!(record, tidegate::RecordSettings { folder: "folder/seen".into(), sample, keys, max_bytes: 256 << 20 });
    let all = "[record]\npath = \"seen\"\nsample = \"100%\"\nkeys = \"names\"\nmax_size = \"8MiB\"";
    let record = read(all, &[]).unwrap().record.unwrap();
    assert_eq!(
        (record.sample, record.keys, record.max_bytes),
        (tidegate::Sample::ALL, tidegate::RecordedKeys::Names, 8 << 20)
    );
    assert_eq!(config.doors.http.unwrap().to_string(), "[::1]:0");
    assert_eq!(config.doors.udp.unwrap().to_string(), "[::1]:7");
    assert_eq!(read("[doors]\nhttp = \"[::1]:0\"", &[]).unwrap().doors.udp, None, "only those it names");
    let [user, minute, ip, global, notify, by_default] = config.policy.limiters() else { panic!("six limiters") };
    assert_eq!((user.name.as_str(), user.domain.as_deref(), user.names), ("login-user", Some("login"), false));
    assert_eq!((user.by.as_slice(), user.honour_disable), (["user".to_owned()].as_slice(), false));
    assert_eq!((user.top_keys, user.last_decisions), (false, 500));
    assert_eq!((minute.top_keys, minute.last_decisions, minute.log_denials), (true, 0, false));
    assert_eq!(user.rules.limits()[1].to_string(), "500 per 1h block 1d");
    assert_eq!(minute.rules.algorithm(), tidegate::Algorithm::AlignedWindow);
    assert_eq!(ip.rules.algorithm(), tidegate::Algorithm::StrictAverage);
    assert_eq!(global.rules.algorithm(), tidegate::Algorithm::LeakyAverage);
    assert_eq!((ip.stats, global.stats), (false, true));
    let grid = |spec: &tidegate::LimiterSpec| {
        let grid = spec.rules.grid();
        (grid.resolution().to_string(), grid.history().to_string())
    };
    assert_eq!((notify.scope(), by_default.scope()), ("un:v1", "by-default"));
    assert_eq!((grid(notify), grid(by_default)), (("1h".into(), "1w".into()), ("10m".into(), "1d".into())));
}

#[test]
fn the_message_names_file_line_column_setting_value_bound_and_remedy() {
    check(
        "[store]\nmax_memory = \"64KiB\" # small\n",
        r#"error: t.toml:2:14: [store] max_memory: "64KiB" is below 1MiB, the least; use "1MiB" or more
   |
 2 | max_memory = "64KiB" # small
   |              ^^^^^^^"#,
    );
    check(
        "[[limiter]]\nname = \"api\"\nlimits = [\"5 per minute\", \"5 per fortnight\"]\n",
        r#"error: t.toml:3:27: limiter "api" limits: "5 per fortnight": the period after "per" must be a unit, or a number and a unit, such as second, 20s, 10m, 2h, day or week; write COUNT per [N]UNIT [burst B] [block DURATION], such as "5 per minute" or "1 per 2h block 4h"
   |
 3 | limits = ["5 per minute", "5 per fortnight"]
   |                           ^^^^^^^^^^^^^^^^^"#,
    );
    check(
        "[store]\nmax_memroy = \"64MiB\"\n",
        r#"error: t.toml:2:1: [store]: unknown setting "max_memroy"; did you mean "max_memory"?
   |
 2 | max_memroy = "64MiB"
   | ^^^^^^^^^^"#,
    );
}

#[test]
fn several_problems_are_told_at_once() {
    let text = r#"
[stoer]
[[limiter]]
name = "a"
limits = ["x", "5 per minute", "0 per minute burst 2"]
[[limiter]]
name = "b c"
limits = ["1 per day"]
[[limiter]]
limits = ["1 per day"]
[[limiter]]
name = "d"
algorithm = "sliding-lgo"
limits = ["1 per day"]
"#;
    check_parts(
        text,
        &[
            "t.toml:2:2: unknown setting \"stoer\"; did you mean \"store\"?",
            "t.toml:5:11: limiter \"a\" limits: \"x\": it does not start with a count",
            "t.toml:5:32: limiter \"a\" limits: \"0 per minute burst 2\": burst 2 on a count of 0",
            "t.toml:7:8: limiter \"b c\": the name \"b c\" is not 1 to 64",
            "t.toml:9:1: limiter 3: it has no name; add name = \"api\"",
            "t.toml:13:13: limiter \"d\" algorithm: \"sliding-lgo\" is no algorithm; did you mean \"sliding-log\"?",
        ],
    );
    assert_eq!(read(text, &[]).unwrap_err().matches("error: ").count(), 6);
}

#[test]
fn what_is_not_toml_says_so() {
    check_parts("[store]\nmax_memory = 64MiB\n", &["t.toml:2:14: this is not TOML", "strings stand in quotes", "^^"]);
    check_parts("[store\n", &["t.toml:1:7: this is not TOML"]);
    check_parts("[store]\nkind = \"memory\"\nkind = \"memory\"", &["t.toml:3:1: this is not TOML", "duplicate key"]);
    check_parts(&"[".repeat(100_000), &["this is not TOML"]);
    check_parts(&format!("a = {}", "[".repeat(100_000)), &["this is not TOML"]);
    check_parts("\u{0}\u{1b}[31m", &["this is not TOML", "\u{fffd}"]);
}

#[test]
fn the_environment_overrides_the_file() {
    let file = "[store]\nmax_memory = \"64MiB\"\npath = \"data\"\n";
    let config = read(
        file,
        &[
            ("TIDEGATE_DOORS__HTTP", "0.0.0.0:80"),
            ("TIDEGATE_ACCESS__OPEN", "[\"http\"]"),
            ("TIDEGATE_STORE__MAX_MEMORY", "2MiB"),
            ("TIDEGATE_STORE__PATH", "'elsewhere'"),
        ],
    )
    .unwrap();
    assert_eq!(config.store.max_memory, 2 << 20);
    assert_eq!(config.store.path.as_deref(), Some(Path::new("elsewhere")), "seen from the working directory");
    assert_eq!(config.doors.http.unwrap().to_string(), "0.0.0.0:80");
}

#[test]
fn an_error_in_the_environment_names_the_variable() {
    check_env(
        "[store]\nmax_memory = \"64MiB\"\n",
        &[("TIDEGATE_STORE__MAX_MEMORY", "5KiB")],
        r#"error: environment variable TIDEGATE_STORE__MAX_MEMORY: [store] max_memory: "5KiB" is below 1MiB, the least; use "1MiB" or more
   |
   | TIDEGATE_STORE__MAX_MEMORY=5KiB
   |                            ^^^^"#,
    );
    for (name, value, part) in [
        ("TIDEGATE_STORE__COLOUR", "1", "variable TIDEGATE_STORE__COLOUR: [store]: unknown setting \"colour\""),
        ("TIDEGATE_STOER__PATH", "x", "unknown setting \"stoer\"; did you mean \"store\"?"),
        ("TIDEGATE_LIMITER__0__NAME", "x", "[[limiter]] comes many times, so no variable can change it"),
        ("TIDEGATE_UDP__ROUTE__MATCH", "x", "[[udp.route]] comes many times"),
        ("TIDEGATE_STORE__", "x", "its name has an empty part; write TIDEGATE_TABLE__SETTING"),
        ("TIDEGATE_STORE__PATH__X", "x", "\"path\" is a string and no table"),
        ("TIDEGATE_STORE__PATH", "12", "[store] path: 12 is a number, not a string; write path = \"data\""),
    ] {
        let error = read("[store]\npath = \"data\"\n", &[(name, value)]).unwrap_err();
        assert!(error.contains(part) && error.contains(&format!("{name}={value}")), "{error}");
    }
}

#[test]
fn s1_no_text_makes_it_panic() {
    let example = include_str!("../example.toml");
    for bytes in crate::mangled::texts(example, 7, 3_000) {
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = read(&text, &[]) {
            assert!(error.starts_with("error: t.toml:"), "{text}\n{error}");
        }
    }
}

#[test]
fn udp_rules_are_read_in_order() {
    let text = r#"
[[udp.rewrite]]
match = ' ip=132\.185\.\d+\.\d+$'
replace = ' cust=bbc'
[[udp.route]]
match = '^b'
limiter = "b"
[[limiter]]
name = "a"
limits = ["1 per day"]
[[udp.route]]
match = '^a'
limiter = "a"
[[limiter]]
name = "b"
limits = ["1 per day"]
"#;
    let udp = read(text, &[]).unwrap().udp;
    assert_eq!(udp.rewrites[0].replacement, " cust=bbc");
    let routes: Vec<(&str, &str)> = udp.routes.iter().map(|r| (r.pattern.as_str(), r.limiter.as_str())).collect();
    assert_eq!(routes, [("^b", "b"), ("^a", "a")]);
}

#[test]
fn udp_rules_are_checked() {
    let limiter = "[[limiter]]\nname = \"ws-ip\"\nlimits = [\"1 per day\"]\n";
    check(
        &format!("{limiter}[[udp.route]]\nmatch = '^ws (ip'\nlimiter = \"ws-ip\"\n"),
        r#"error: t.toml:5:9: udp.route 1 match: this is no regular expression: unclosed group; write one such as '^ws ip='
   |
 5 | match = '^ws (ip'
   |         ^^^^^^^^^"#,
    );
    for (settings, part) in [
        ("[[udp.route]]\nlimiter = \"ws-ip\"", "4:1: udp.route 1: it has no match; add match = '^ws ip='"),
        ("[[udp.route]]\nmatch = 'x'", "4:1: udp.route 1: it has no limiter; add limiter = 'ws-ip'"),
        (
            "[[udp.route]]\nmatch = 'x'\nlimiter = \"ws-pi\"",
            "6:11: udp.route 1 limiter: no limiter is named \"ws-pi\"; did you mean \"ws-ip\"?",
        ),
        ("[[udp.route]]\nmatch = 7\nlimiter = \"ws-ip\"", "5:9: udp.route 1 match: 7 is a number, not a string"),
        ("[[udp.rewrite]]\nmatch = 'x'\nreplace = '$1'", "6:11: udp.rewrite 1 replace: it refers to the group \"1\""),
        ("[[udp.rewrite]]\nmatch = 'x'", "4:1: udp.rewrite 1: it has no replace"),
        ("[[udp.route]]\nregex = 'x'", "5:1: udp.route 1: unknown setting \"regex\""),
        ("[udp]\nroutes = []", "5:1: [udp]: unknown setting \"routes\"; did you mean \"route\"?"),
        ("[udp]\nroute = 3", "5:9: udp.route: it must be an array of tables; write [[udp.route]]"),
        ("[[udp]]", "udp: it must be tables; write [[udp.route]]"),
    ] {
        check_parts(&format!("{limiter}{settings}"), &[part]);
    }
    let many = "[[udp.route]]\nmatch = 'x'\nlimiter = \"ws-ip\"\n".repeat(1_001);
    check_parts(
        &format!("{limiter}{many}"),
        &["udp: 0 rules that count, 0 rewrite rules and 1001 routes are more than 100, 100 and 1000"],
    );
}

/// The quick start of the gem has blocks of ten minutes and a check of two: a finer resolution, which was asked for, would
/// not share its counts.
#[test]
fn a_check_of_pause_may_be_shorter_than_its_resolution() {
    let limiter =
        "[[limiter]]\nname = \"a\"\nalgorithm = \"buckets\"\nresolution = \"10m\"\nlimits = [\"20 per 2m\"]\n";
    let store = "[store]\nkind = \"redis\"\n";
    let config = read(&format!("{store}{limiter}layout = \"pause\""), &[]).unwrap();
    let rules = &config.policy.limiters()[0].rules;
    assert_eq!(
        (rules.limits()[0].to_string(), rules.grid().resolution().to_string()),
        ("20 per 2m".into(), "10m".into())
    );
    let refused = read(&format!("{store}{limiter}"), &[]).unwrap_err();
    assert!(refused.contains("resolution 10m is longer than its period 2m"), "{refused}");
}

/// Aligned weeks begin on Mondays, those of the proxy, too: they once began on Thursdays, as the epoch did.
#[test]
fn aligned_weeks_begin_on_a_monday_or_on_the_day_that_is_written() {
    let limiter =
        "[[limiter]]\nname = \"a\"\nalgorithm = \"fixed-window\"\naligned = true\nlimits = [\"7 per week\"]\n";
    let days = |text: &str| {
        let config = read(text, &[]).unwrap();
        config.policy.limiters().last().unwrap().rules.limits()[0].lead().to_string()
    };
    assert_eq!(days(limiter), "3d", "before the epoch, a Thursday");
    assert_eq!(days(&format!("{limiter}week_starts = \"sunday\"")), "4d");
    let proxy = "[proxy]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\n";
    assert_eq!(days(&format!("{proxy}limit = \"7 per week\"")), "3d");
    assert_eq!(days(&format!("{proxy}limiter = \"a\"\n{limiter}week_starts = \"sunday\"")), "4d");
    for (text, problem) in [
        (format!("{limiter}week_starts = \"mon\""), "\"mon\" is no day; use \"monday\" to \"sunday\""),
        (limiter.replace("per week", "per day") + "week_starts = \"sunday\"", "only aligned windows of whole weeks"),
        (limiter.replace("aligned = true", "week_starts = \"sunday\""), "only aligned windows of whole weeks"),
    ] {
        let refused = read(&text, &[]).unwrap_err();
        assert!(refused.contains(problem), "{text}: {refused}");
    }
}

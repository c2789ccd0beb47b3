//! Settings out of their bounds: the store, the doors and limiters.

use super::{check_parts, problems};

#[test]
fn s2_ipv6_prefixes_are_checked() {
    let limiter = "[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]\n";
    for (settings, parts) in [
        (
            "by = [\"ip\"]\nipv6_prefix = 129",
            "5:15: limiter \"a\" ipv6_prefix: 129 is no whole number from 1 to 128; write one, such as ipv6_prefix = 64",
        ),
        ("by = [\"ip\"]\nipv6_prefix = \"/64\"", "5:15: limiter \"a\" ipv6_prefix: \"/64\" is a string, not a number"),
        (
            "by = [\"user\"]\nipv6_prefix = 64",
            "5:15: limiter \"a\" ipv6_prefix: \"by\" has no \"ip\" and no \"remote_address\", so that no address counts; leave it out",
        ),
        (
            "by = [\"remote_address\"]\nipv6_prefix = 0",
            "5:15: limiter \"a\" ipv6_prefix: 0 is no whole number from 1 to 128",
        ),
        ("ipv6_prefix = 64", "4:15: limiter \"a\" ipv6_prefix: \"by\" has no \"ip\""),
    ] {
        check_parts(&format!("{limiter}{settings}"), &[parts]);
    }
}

#[test]
fn store_and_doors_are_checked() {
    for (text, parts) in [
        (
            "[store]\nkind = \"tape\"",
            "2:8: [store] kind: \"tape\" is no kind of store; use kind = \"memory\", \"redis\" or \"etcd\"",
        ),
        (
            "[store]\nendpoints = [\"http://x\"]",
            "2:13: [store] endpoints: it has no effect here; add kind = \"etcd\", or leave it out",
        ),
        (
            "[store]\nkind = \"etcd\"\nurl = \"redis://x\"",
            "3:7: [store] url: it has no effect here; add kind = \"redis\", or leave it out",
        ),
        (
            "[store]\nkind = \"etcd\"\nsnapshot_every = \"1s\"",
            "3:18: [store] snapshot_every: it has no effect here; etcd keeps the states, or leave it out",
        ),
        (
            "[store]\nkind = \"etcd\"\nendpoints = [\"x:2379\"]",
            "3:13: [store] endpoints: an endpoint has no scheme; write endpoints as [\"http://host:2379\", …]",
        ),
        ("[store]\nkind = \"etcd\"\nendpoints = []", "3:13: [store] endpoints: there is no endpoint"),
        ("[store]\nkind = \"etcd\"\nuser = \"u\"", "3:8: [store] user: it has no password; add password_file"),
        (
            "[store]\nkind = \"etcd\"\npassword = \"hush\"",
            "3:12: [store] password: it has no effect without a user; add user = \"tidegate\"",
        ),
        (
            "[store]\nkind = \"etcd\"\nca_file = \"ca.pem\"",
            "3:11: [store] ca_file: it has no effect without TLS; write endpoints = [\"https://…\"], or leave it out",
        ),
        (
            "[store]\nkind = \"etcd\"\n[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]",
            "3:3: limiter \"a\": etcd counts in aligned windows only; write algorithm = \"fixed-window\" and aligned = true",
        ),
        (
            "[store]\nkind = \"etcd\"\n[[stream]]\nname = \"s\"\nmode = \"only-once\"",
            "3:3: [[stream]]: etcd keeps no streams; set kind = \"redis\" or \"memory\" in [store]",
        ),
        ("[store]\nkind = \"disk\"", "2:8: [store] kind: \"disk\" is no kind of store"),
        ("[store]\nkind = 3", "2:8: [store] kind: 3 is a number, not a string; write kind = \"memory\""),
        (
            "[store]\nmax_memory = 64",
            "2:14: [store] max_memory: 64 is a number, not a string; write max_memory = \"256MiB\"",
        ),
        ("[store]\nmax_memory = \"64\"", "\"64\" has no unit; write \"64MiB\""),
        ("[store]\npath = \"\"", "2:8: [store] path: \"\" is no path"),
        (
            "[limits]\nconnections = 0",
            "2:15: [limits] connections: 0 is no whole number from 1 to 1000000; write one, such as connections = 10000",
        ),
        (
            "[limits]\nconnections = 100\nreserved_connections = 100",
            "[limits] reserved_connections: 100 is no whole number from 0 to 99",
        ),
        (
            "[limits]\nconnections = 100\nconnections_per_token = 101",
            "[limits] connections_per_token: 101 is no whole number from 1 to 100",
        ),
        (
            "[limits]\nunread = \"64KiB\"",
            "2:10: [limits] unread: 64KiB is less than 1MiB, and large answers would be refused; write 1MiB or more",
        ),
        ("[limits]\nconnection = 1", "unknown setting \"connection\"; did you mean \"connections\""),
        ("[audit]\npath = \"\"", "2:8: [audit] path: it is empty; write a folder, or leave it out"),
        ("[audit]\nlog = \"yes\"", "2:7: [audit] log: \"yes\" is a string, not true or false; write log = true"),
        ("[audit]\nfile = \"a\"", "unknown setting \"file\"; the settings here are: path, log"),
        (
            "[record]\nsample = \"1%\"",
            "1:2: [record]: it has no path; add path = \"recorded\", the folder of its files",
        ),
        (
            "[record]\npath = \"r\"\nsample = \"0%\"",
            "3:10: [record] sample: \"0%\" is no share of the keys; write one above 0%",
        ),
        (
            "[record]\npath = \"r\"\nkeys = \"some\"",
            "3:8: [record] keys: \"some\" is not known; use \"hashes\" or \"names\"",
        ),
        (
            "[record]\npath = \"r\"\nmax_size = \"1MiB\"",
            "3:12: [record] max_size: 1MiB is less than 8MiB, the least; raise it",
        ),
        ("[store]\nsnapshot_every = \"1s\"", "2:18: [store] snapshot_every: it has no effect without path"),
        (
            "[store]\npath = \"d\"\nsnapshot_every = \"1ms\"",
            "3:18: [store] snapshot_every: \"1ms\" is outside 100ms to 1d",
        ),
        ("[store]\npath = \"d\"\nsnapshot_every = \"soon\"", "duration \"soon\" does not start with a number"),
        (
            "[store]\nurl = \"redis://x\"",
            "2:7: [store] url: it has no effect here; add kind = \"redis\", or leave it out",
        ),
        ("[store]\non_failure = \"local\"", "[store] on_failure: it has no effect here; add kind = \"redis\""),
        (
            "[store]\nkind = \"redis\"\npath = \"data\"",
            "3:8: [store] path: it has no effect here; Redis keeps the states",
        ),
        (
            "[store]\nkind = \"redis\"\nurl = \"http://x\"",
            "3:7: [store] url: the scheme \"http\" is not known; write it as redis://",
        ),
        (
            "[store]\nkind = \"redis\"\nlocal_share = 1.5",
            "3:15: [store] local_share: 1.5 is not from 0 to 1; write local_share = 0.5",
        ),
        ("[store]\nkind = \"redis\"\ndeadline = \"1ms\"", "3:12: [store] deadline: \"1ms\" is outside 5ms to 10s"),
        (
            "[store]\nkind = \"redis\"\nca_file = \"ca.pem\"",
            "3:11: [store] ca_file: it has no effect without TLS; write url = \"rediss://",
        ),
        (
            "[store]\nkind = \"redis\"\nurl = \"rediss://x\"\nca_file = \"nowhere.pem\"",
            "4:11: [store] ca_file: folder/nowhere.pem cannot be read as certificates",
        ),
        (
            "[store]\nkind = \"redis\"\nurl = \"rediss://x\"\nclient_key = \"k.pem\"",
            "4:14: [store] client_key: client_cert and client_key belong together",
        ),
        ("[store]\nkind = \"redis\"\npassword_file = \"nowhere\"", "3:17: [store] password_file: it cannot be read"),
        ("[store]\nkind = \"redis\"\non_failure = \"hope\"", "3:14: [store] on_failure: \"hope\" is no way to decide"),
        ("store = 3", "1:9: [store]: this is a number, not a table; write [store]"),
        ("[doors]\nhttp = \"7400\"", "2:8: [doors] http: \"7400\" is no address; write an IP address and a port"),
        ("[doors]\nhttp = \"127.0.0.1:70000\"", "port from 0 to 65535"),
        ("[doors]\ngrpc = \"7402\"", "2:8: [doors] grpc: \"7402\" is no address; write an IP address and a port"),
        ("[doors]\ngrpc = \"0.0.0.0:7402\"", "2:8: [doors] grpc: 0.0.0.0:7402 can be reached from other machines"),
        ("[grpc]\nheaders = 1", "2:11: [grpc] headers: 1 is a number, not true or false"),
        (
            "[grpc]\nheaders = { limits = \"x\" }",
            "2:13: [grpc] headers: unknown setting \"limits\"; did you mean \"limit\"?",
        ),
        (
            "[grpc]\nheaders = { limit = \"a b\" }",
            "2:21: [grpc] headers limit: \"a b\" is no name of a header field, which has 1 to 64",
        ),
        (
            "[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]\nmetadata = \"x\"",
            "4:12: limiter \"a\" metadata: this is a string, not a table; write metadata = { team = \"shop\" }",
        ),
        (
            "[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]\nmetadata = { x = nan }",
            "limiter \"a\" metadata: nan is no number of JSON",
        ),
        ("[grpc]\nheader = true", "2:1: [grpc]: unknown setting \"header\"; did you mean \"headers\"?"),
        ("[doors]\nudp = \"7401\"", "2:7: [doors] udp: \"7401\" is no address; write an IP address and a port"),
        (
            "[[limiter]]\nname = \"cl.throttle\"\nlimits = [\"1 per day\"]",
            "limiter \"cl.throttle\": this name is CL.THROTTLE's own",
        ),
        ("[doors]\nresp = \"0.0.0.0:7403\"", "[doors] resp: 0.0.0.0:7403 can be reached from other machines"),
        ("[doors]\nhtpp = \"127.0.0.1:7400\"", "did you mean \"http\"?"),
        ("[doors]\n", "1:2: [doors]: it names no door"),
        ("[admin]\n", "[admin] is not in this version"),
        ("stream = 1", "1:10: stream: it must be an array of tables; write [[stream]]"),
        ("[[stream]]\nname = \"orders\"", "1:1: stream \"orders\": it has no mode; add mode = \"strictly-once\""),
        ("[[stream]]\nmode = \"once\"", "2:8: stream 1 mode: \"once\" is no mode; use \"only-once\" or"),
        (
            "[[stream]]\nname = \"time\"\nmode = \"only-once\"",
            "2:8: stream \"time\" name: \"time\" has a meaning of its own",
        ),
        (
            "[[stream]]\nname = \"a\"\nmode = \"only-once\"\nmax_events = 0",
            "4:14: stream \"a\" max_events: 0 is not a whole number from 1 to 10000000; write max_events = 1 or more",
        ),
        (
            "[[stream]]\nname = \"a\"\nmode = \"only-once\"\nduration = \"0s\"",
            "4:12: stream \"a\" duration: 0s is outside 1ms to 366d",
        ),
        (
            "[[stream]]\nname = \"a\"\nmode = \"only-once\"\noverdue = \"drop\"",
            "4:11: stream \"a\" overdue: \"drop\" is unknown; use \"publish\" or \"invalidate\"",
        ),
        (
            "[[stream]]\nname = \"a\"\nmode = \"only-once\"\n[[stream]]\nname = \"a\"\nmode = \"only-once\"",
            "5:8: stream \"a\" name: \"a\" is taken by a stream above",
        ),
        ("colour = 1", "1:1: unknown setting \"colour\"; the settings here are: store, doors, access, limiter, udp"),
    ] {
        check_parts(text, &[parts]);
    }
}

#[test]
fn limiters_are_checked() {
    let limiter = |settings: &str| format!("[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]\n{settings}");
    for (settings, part) in [
        (
            "[[limiter]]\nname = \"b\"\nlimits = [\"1 per day\", \"2 per week\"]\nrequest_limits = true",
            "request_limits needs one limit",
        ),
        (
            "replaces = [\"b\"]",
            "2:8: limiter: \"a\" replaces \"b\", and no limiter is named so; name another, or leave it out",
        ),
        ("replaces = [\"a\"]", "\"a\" replaces itself, so that nothing would limit; name another limiter"),
        (
            "alternative = true\ncandidate = true",
            "5:13: limiter \"a\": \"a\": a candidate decides nothing, and one of the alternatives has to allow; leave one of them out",
        ),
        (
            "[[limiter.match]]\nkey = \"x*\"\ntogether = [\"user\"]\nlimits = [\"2 per day\"]",
            "together names \"user\", and values count together that this match has patterns for",
        ),
        (
            "algorithm = \"buckets\"\nhistory = \"5m\"",
            "5:11: limiter \"a\" history: history 5m is shorter than one block of resolution 10m, so nothing would be counted; use a history of 10m or more",
        ),
        (
            "algorithm = \"buckets\"\nresolution = \"2d\"",
            "5:14: limiter \"a\" resolution: history 1d is shorter than one block of resolution 2d",
        ),
        (
            "algorithm = \"buckets\"\nhistory = \"366d\"",
            "5:11: limiter \"a\" history: history 366d has more than 16384 blocks of resolution 10m",
        ),
        (
            "algorithm = \"buckets\"\nhistory = \"12h\"",
            "3:11: limiter \"a\" limits: \"1 per 1d\": history 12h is shorter than its period 1d; use history = \"1d\" or more",
        ),
        (
            "[[limiter]]\nname = \"b\"\nalgorithm = \"buckets\"\nlimits = [\"3 per 5m\", \"1 per 2m\"]",
            "7:23: limiter \"b\" limits: \"1 per 2m\": resolution 10m is longer than its period 2m; use resolution = \"2m\" or less",
        ),
        ("algorithm = \"buckets\"\nresolution = \"10\"", "5:14: limiter \"a\" resolution: duration \"10\" has no unit"),
        ("layout = \"pause\"", "4:10: limiter \"a\" layout: Pause counts in buckets; use algorithm = \"buckets\""),
        ("layout = \"flat\"", "4:10: limiter \"a\" layout: \"flat\" is no layout; use \"native\" or \"pause\""),
        (
            "layout = \"pause\"\nalgorithm = \"buckets\"",
            "1:3: limiter \"a\": layout = \"pause\" is a layout in Redis; set kind = \"redis\" in [store], or leave it out",
        ),
        (
            "layout = \"pause\"\nalgorithm = \"buckets\"\nresolution = \"20500ms\"\nhistory = \"2d\"",
            "4:10: limiter \"a\" layout: Pause counts in whole seconds, and 20500ms is none",
        ),
        ("on_failure = \"panic\"", "4:14: limiter \"a\" on_failure: \"panic\" is no way to decide; use \"local\""),
        (
            "strict = true",
            "4:10: limiter \"a\" strict: token-bucket forgets its denials, strict or not; leave it out or use algorithm = \"average\"",
        ),
        ("algorithm = \"average\"\nstrict = 1", "5:10: limiter \"a\" strict: 1 is a number, not true or false"),
        ("algorithm = \"average\"\naligned = true", "limiter \"a\" aligned: average has no windows to align"),
        ("algorithm = \"magic\"", "\"magic\" is no algorithm; use one of token-bucket"),
        ("aligned = true", "4:11: limiter \"a\" aligned: token-bucket has no windows to align"),
        ("aligned = \"yes\"", "\"yes\" is a string, not true or false; write aligned = true"),
        (
            "by = \"user\"",
            "4:6: limiter \"a\" by: \"user\" is a string, not an array of strings; write by = [\"user\"]",
        ),
        ("by = [\"user\", 7]", "4:15: limiter \"a\" by: 7 is a number, not a string"),
        ("by = [\"ip\", \"user\", \"ip\"]", "4:21: limiter \"a\": \"by\" names \"ip\" twice"),
        ("domain = \"login\"", "4:10: limiter \"a\": domain \"login\" has no effect without \"by\""),
        (
            "scope = \"x|y\"",
            "4:9: limiter \"a\": the scope \"x|y\" is not 1 to 64 of A-Z a-z 0-9 _ . - :; choose another",
        ),
        (
            "[[limiter]]\nname = \"b\"\nscope = \"a\"\nlimits = [\"1 per day\"]",
            "5:8: limiter: the scope \"a\" is that of limiter \"a\", so that they would count together; choose another",
        ),
        (
            "resolution = \"10m\"",
            "4:14: limiter \"a\" resolution: token-bucket counts in no blocks; leave it out or use algorithm = \"buckets\"",
        ),
        ("algorithm = \"average\"\nhistory = \"1d\"", "5:11: limiter \"a\" history: average counts in no blocks"),
        ("stats = \"yes\"", "4:9: limiter \"a\" stats: \"yes\" is a string, not true or false; write stats = true"),
        ("limit = \"1 per day\"", "4:1: limiter \"a\": unknown setting \"limit\"; did you mean \"limits\"?"),
        (
            "[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]",
            "5:8: limiter \"a\" name: \"a\" is taken by the limiter at t.toml:2:8; names must differ",
        ),
        ("[[limiter]]\nname = \"b\"", "4:1: limiter \"b\": it has no limits; add limits = [\"5 per minute\"]"),
        ("[[limiter]]\nname = \"b\"\nlimits = []", "6:10: limiter \"b\" limits: a limiter needs at least one limit"),
        (
            "[[limiter]]\nname = \"b\"\nalgorithm = \"sliding-log\"\nlimits = [\"1 per day\", \"1 per day burst 2\"]",
            "7:24: limiter \"b\" limits: \"1 per 1d burst 2\": sliding-log has no burst",
        ),
        (
            "[[limiter]]\nname = \"b\"\nlimits = [\"1000003 per week\"]",
            "6:11: limiter \"b\" limits: \"1000003 per 1w\" is too fine",
        ),
    ] {
        check_parts(&limiter(settings), &[part]);
    }
    check_parts(
        &limiter("[[limiter]]\nname = \"b\"\nlimits = [\"1000003 per week\", \"1000033 per week\"]"),
        &[
            "6:11: limiter \"b\" limits: \"1000003 per 1w\" is too fine",
            "6:31: limiter \"b\" limits: \"1000033 per 1w\" is too fine",
        ],
    );
    check_parts("limiter = 3", &["1:11: limiter: it must be an array of tables; write [[limiter]]"]);
    check_parts("[limiter]\nname = \"a\"", &["write [[limiter]] above"]);
    let many: String = (0..1001).map(|i| format!("[[limiter]]\nname = \"l{i}\"\nlimits = [\"1 per day\"]\n")).collect();
    check_parts(&many, &["1001 limiters are more than 1000"]);
}

/// One mistake is reported once, and a mistake in one section hides none in another.
#[test]
fn every_mistake_is_told_and_none_twice() {
    let bad_limiter = "[[limiter]]\nname = \"a\"\nlimits = [\"1 per fortnight\"]\n";
    let route = "[[udp.route]]\nmatch = 'x'\nlimiter = \"a\"\n";
    let proxy = "[proxy]\nlimiter = \"a\"\nupstream = \"http://127.0.0.1:9000\"\n";
    let pause = "[[limiter]]\nname = \"p\"\nalgorithm = \"buckets\"\nlayout = \"pause\"\nlimits = [\"1 per day\"]\n";
    let same_scope = |name: &str| format!("[[limiter]]\nname = \"{name}\"\nscope = \"s\"\nlimits = [\"1 per day\"]\n");
    for (text, parts) in [
        (format!("{bad_limiter}{route}"), vec!["limiter \"a\" limits"]),
        (format!("{bad_limiter}{proxy}"), vec!["limiter \"a\" limits"]),
        (format!("[store]\nkind = \"rediss\"\n{pause}"), vec!["[store] kind: \"rediss\" is no kind of store"]),
        (
            format!("{}{}{}[[udp.route]]\nmatch = '('\nlimiter = \"b\"\n", same_scope("a"), same_scope("b"), same_scope("c")),
            vec!["the scope \"s\" is that of limiter \"a\"", "the scope \"s\" is that of limiter \"a\"", "udp.route 1 match"],
        ),
        (
            "[[limiter]]\nname = \"a\"\nalgorithm = \"buckets\"\nresolution = \"x\"\nhistory = \"y\"\nlimits = [\"1 per day\"]".to_owned(),
            vec!["limiter \"a\" resolution", "limiter \"a\" history"],
        ),
        (format!("{bad_limiter}{}", route.replace("\"a\"", "\"c\"")), vec!["limiter \"a\" limits", "no limiter is named \"c\""]),
    ] {
        check_parts(&text, &parts);
        let told = problems(&text);
        assert_eq!(told, parts.len(), "{text}");
    }
}

#[test]
fn a11_matches_are_checked() {
    let limiter =
        "[[limiter]]\nname = \"a\"\nby = [\"user\"]\nlimits = [\"5 per minute\", \"9 per hour\"]\n[[limiter.match]]\n";
    for (settings, parts) in [
        (
            "user = \"gold*\"",
            "5:1: limiter \"a\" match 1: it says nothing; add limits = [\"…\"], unlimited = true or deny = true",
        ),
        ("user = \"x\"\ndeny = true\nunlimited = true", "limiter \"a\" match 1: it says two things; keep one of"),
        ("deny = true", "5:1: limiter \"a\": match 1: it has no condition; add one, such as user = \"gold*\""),
        (
            "user = 7\ndeny = true",
            "6:8: limiter \"a\" match 1 user: 7 is a number, not a string; write user = \"gold*\"",
        ),
        ("user = [\"a\", \"\"]\ndeny = true", "6:14: limiter \"a\" match 1 user: \"\" matches nothing"),
        (
            "ip = \"10.0.0.1/8\"\ndeny = true",
            "6:6: limiter \"a\" match 1 ip: \"10.0.0.1/8\" is an address inside a network",
        ),
        (
            "user = \"x\"\nlimits = [\"50 per minute\"]",
            "7:10: limiter \"a\" match 1 limits: 1 limits cannot stand in for the limiter's 2; write 2, by position",
        ),
        (
            "user = \"x\"\nlimits = [\"9 per hour\", \"5 per minute\"]",
            "7:11: limiter \"a\" match 1 limits: \"9 per 1h\" has the period of another limit of the limiter",
        ),
        (
            "user = \"x\"\nlimits = [\"50 per minute\", \"9 per moon\"]",
            "7:28: limiter \"a\" match 1 limits: \"9 per moon\"",
        ),
        ("\"a b\" = \"x\"\ndeny = true", "limiter \"a\": the name \"a b\" is not 1 to 64"),
    ] {
        check_parts(&format!("{limiter}{settings}"), &[parts]);
    }
    let by_name = "[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]\n[[limiter.match]]\nuser = \"x\"\ndeny = true";
    check_parts(
        by_name,
        &["4:1: limiter \"a\": match 1: the limiter is asked by name, and a request by name has no \"user\""],
    );
    let fine = "[[limiter]]\nname = \"a\"\nby = [\"ip\"]\nlimits = [\"1 per day\"]\n[[limiter.match]]\nip = \"2001:db8::1\"\ndeny = true";
    check_parts(fine, &["5:1: limiter \"a\": match 1: \"2001:db8::1/128\" is finer than the networks of 64 bits"]);
    check_parts(
        "[[limiter]]\nname = \"a\"\nlimits = [\"1 per day\"]\nmatch = 1",
        &["limiter \"a\" match: it must be an array of tables"],
    );
}

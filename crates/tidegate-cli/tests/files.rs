//! `validate` and `simulate`, run as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod server;

use server::{Folder, TIDEGATE, stderr, stdout, tidegate};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

#[test]
fn every_example_is_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|ext| ext == "toml")).collect();
    assert!(!files.is_empty());
    for file in files {
        let output = tidegate(&["validate", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stdout(&output).contains("is valid: "));
    }
}

#[test]
fn validate_tells_every_problem_and_exits_with_1() {
    let folder = Folder::new();
    let file =
        folder.write("bad.toml", "[store]\nmax_memory = \"1KiB\"\n[[limiter]]\nname = \"a\"\nlimits = [\"x\"]\n");
    let output = tidegate(&["validate", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    for part in ["bad.toml:2:14: [store] max_memory", "bad.toml:5:11: limiter \"a\" limits", "\n2 problems"] {
        assert!(said.contains(part), "{said}");
    }
    let output = tidegate(&["validate", folder.path("none.toml").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot be read"), "{}", stderr(&output));
    let empty = folder.write("ok.toml", "");
    let mut with_variable = Command::new(TIDEGATE);
    with_variable.arg("validate").arg(empty).env("TIDEGATE_STORE__KIND", "tape");
    let output = with_variable.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("environment variable TIDEGATE_STORE__KIND"), "{}", stderr(&output));
}

/// Routes that nothing would ask were valid, and were counted nowhere.
#[test]
fn validate_refuses_routes_without_a_udp_door_and_counts_those_with_one() {
    let folder = Folder::new();
    let routes = "[[limiter]]\nname = \"ws\"\nlimits = [\"5 per minute\"]\n\
                  [[udp.route]]\nmatch = \"^ws \"\nlimiter = \"ws\"\n[[udp.route]]\nmatch = \"^other \"\nlimiter = \"ws\"\n";
    let validate = |doors: &str| {
        let file = folder.write("routes.toml", &format!("[doors]\n{doors}\n{routes}"));
        tidegate(&["validate", file.to_str().unwrap()])
    };
    let output = validate("http = \"127.0.0.1:0\"");
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let said = stderr(&output);
    assert!(said.contains("[doors] opens no UDP door") && said.contains("add udp = \"127.0.0.1:7401\""), "{said}");
    let output = validate("udp = \"127.0.0.1:0\"");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("is valid: 1 limiter, 2 UDP routes"), "{}", stdout(&output));
}

fn simulate(args: &[&str], input: &str) -> Output {
    let mut command = Command::new(TIDEGATE);
    command.arg("simulate").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A replay that ends early leaves the rest unread, which is none of a test's business.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output().unwrap()
    })
}

fn hit(at: u64, key: &str) -> String {
    format!("{{\"at\":{at},\"limiter\":\"api\",\"key\":\"{key}\"}}\n")
}

#[test]
fn simulate_answers_line_by_line_from_standard_input() {
    let trace = hit(0, "u1") + "\n" + &hit(1, "u1");
    let output = simulate(&[], &trace);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output).lines().next().unwrap(),
        r#"{"at":0,"limiter":"api","key":"u1","allowed":true,"limit":5,"remaining":4,"retry_after_ms":null,"reset_after_ms":12000}"#
    );
    assert!(stderr(&output).contains("2 requests: 2 allowed, 0 denied (0 %)"), "{}", stderr(&output));
    assert_eq!(stderr(&simulate(&["--quiet"], &trace)), "");
}

#[test]
fn simulate_ends_at_a_bad_line_and_keeps_what_was_before() {
    for (bad, part) in [
        ("nonsense\n".to_owned(), "error: line 3 of standard input: this is not JSON (column 2)"),
        (hit(0, "u"), "error: line 3 of standard input: at: 0 is before the line above, at 2; sort the trace by time"),
        ("\u{fffd}".to_owned(), "line 3 of standard input"),
        ("x".repeat(2 << 20), "line 3 of standard input: it is longer than 1048576 bytes"),
    ] {
        let output = simulate(&[], &(hit(1, "u") + &hit(2, "u") + &bad + &hit(3, "u")));
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).starts_with("error: line 3") && stderr(&output).contains(part), "{}", stderr(&output));
        assert_eq!(stdout(&output).lines().count(), 2);
    }
    let output = simulate(&["--input", "no-such-file"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the trace no-such-file cannot be read"), "{}", stderr(&output));
    let output = simulate(&["--limiter", "api"], "");
    assert!(stderr(&output).contains("add --format clf"), "{}", stderr(&output));
}

#[test]
fn simulate_is_deterministic() {
    let trace: String = (0..20_000_u64).map(|i| hit(i / 100, &format!("u{}", i * 7919 % 701))).collect();
    let trace = trace + "{\"at\":200,\"op\":\"keys\",\"limiter\":\"api\"}\n";
    let (first, second) = (simulate(&[], &trace), simulate(&[], &trace));
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(first.stderr, second.stderr);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = Folder::new();
    let trace = folder.write("trace", &hit(1, "u").repeat(100_000));
    let script = format!("{TIDEGATE} simulate --input {} | head -n 1", trace.display());
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(stdout(&output).lines().count(), 1);
    assert_eq!(stderr(&output), "");
}

const LOG: &str = r#"192.0.2.1 - - [15/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 5
192.0.2.1 - ann [15/Nov/2026:10:00:02 +0000] "GET /b?x=1 HTTP/1.1" 200 5 "-" "curl/8"
192.0.2.1 - ann [15/Nov/2026:11:00:01 +0100] "GET /a HTTP/1.1" 200 5
2001:db8::1 - - [15/Nov/2026:10:00:03 +0000] "-" 408 0
"#;

const BY_IP: &str = "[[limiter]]\nname = \"api\"\nalgorithm = \"sliding-log\"\nlimits = [\"2 per minute\"]\n";

#[test]
fn simulate_takes_access_logs() {
    let folder = Folder::new();
    let file = folder.write("c.toml", BY_IP);
    let args = |rest: &[&str]| {
        let all = [&["--config", file.to_str().unwrap(), "--format", "clf", "--limiter", "api"], rest].concat();
        simulate(&all, LOG)
    };
    let short = |output: &Output| -> Vec<String> {
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let key = line["key"].as_str().unwrap_or("-").to_owned();
            format!("{} {key} {}", line["at"].as_u64().unwrap() - 1_794_736_800, line["allowed"])
        };
        stdout(output).lines().map(line).collect()
    };
    let by_ip = args(&["--by", "ip"]);
    assert_eq!(
        short(&by_ip),
        ["0 192.0.2.1 true", "1 192.0.2.1 true", "2 192.0.2.1 false", "3 2001:db8::/64 true"],
        "in the order of time: {}",
        stderr(&by_ip)
    );
    assert!(stderr(&by_ip).contains("MOST DENIED"), "{}", stderr(&by_ip));
    assert_eq!(short(&args(&["--by", "user"])), ["0 - true", "1 ann true", "2 ann true", "3 - true"]);
    assert_eq!(short(&args(&["--by", "path"])), ["0 /a true", "1 /a true", "2 /b true", "3 - true"]);
    assert_eq!(
        short(&args(&["--by", "user,path"])),
        ["0 - true", "1 user=ann,path=/a true", "2 user=ann,path=/b true", "3 - true"]
    );
    let without_by = args(&[]);
    assert_eq!(without_by.status.code(), Some(2));
    assert!(stderr(&without_by).contains("say what makes its key, such as --by ip"), "{}", stderr(&without_by));
}

/// Without --format its lines were answered with "expected struct Fields".
#[test]
fn an_access_log_is_recognised_and_told_of() {
    let folder = Folder::new();
    let file = folder.write("c.toml", BY_IP);
    let args = ["--config", file.to_str().unwrap(), "--limiter", "api", "--by", "ip"];
    let (told, untold) =
        (simulate(&[&args[..], &["--format", "clf"]].concat(), LOG), simulate(&args, &format!("\n{LOG}")));
    assert_eq!((untold.status.code(), stdout(&untold)), (Some(0), stdout(&told)));
    let warning = "warning: standard input begins like an access log and is read as one; add --format clf to say so";
    assert!(stderr(&untold).contains(warning) && !stderr(&told).contains("warning"), "{}", stderr(&untold));
    let neither = simulate(&[], "127.0.0.1 said something\n");
    assert_eq!(neither.status.code(), Some(2));
    let number = simulate(&[], "127\n");
    assert!(stderr(&number).contains("expected an object such as {\"at\":0.5"), "{}", stderr(&number));
}

/// The same requests in every format that is recognised by its first line, packed or not, get the same verdicts.
#[test]
fn every_format_is_recognised() {
    let folder = Folder::new();
    let routes = "[[udp.route]]\nmatch = '^'\nlimiter = \"api\"\n";
    let file = folder.write("c.toml", &format!("{BY_IP}by = [\"ip\"]\n{routes}"));
    let requests: Vec<(u64, String)> = (0..400).map(|i| (i / 5, format!("10.0.0.{}", i * i % 13))).collect();
    let clock = |second: u64| format!("10:{:02}:{:02}", second / 60, second % 60);
    let clf = |(second, ip): &(u64, String)| {
        format!("{ip} - - [15/Nov/2026:{} +0000] \"GET / HTTP/1.1\" 200 1\n", clock(*second))
    };
    let json = |(second, ip): &(u64, String)| {
        format!("{{\"time_iso8601\":\"2026-11-15T{}Z\",\"remote_addr\":\"{ip}\",\"status\":200}}\n", clock(*second))
    };
    let trace = |(second, ip): &(u64, String)| {
        format!("{{\"at\":{},\"attributes\":{{\"ip\":\"{ip}\"}}}}\n", 1_794_736_800 + second)
    };
    let udp = |(second, ip): &(u64, String)| format!("2026-11-15T{}Z 7 over_limit {ip}\n", clock(*second));
    let verdicts = |text: &str| -> Vec<bool> {
        let denied = |line: &str| line.contains("\"allowed\":false") || line.contains("\"udp\":\"7 ok Y");
        text.lines().map(|line| !denied(line)).collect()
    };
    let all = |line: &dyn Fn(&(u64, String)) -> String| requests.iter().map(line).collect::<String>();
    let expected = verdicts(&stdout(&simulate(&["--config", file.to_str().unwrap()], &all(&trace))));
    assert!(expected.contains(&false) && expected.len() == 400);
    for (name, text) in [("clf", all(&clf)), ("nginx-json", all(&json)), ("udp", all(&udp)), ("ndjson", all(&trace))] {
        let plain = folder.write(name, &text);
        let packed = folder.path(&format!("{name}.gz"));
        let packer = Command::new("gzip").arg("-c").arg(&plain).stdout(File::create(&packed).unwrap()).status();
        assert!(packer.unwrap().success());
        for input in [plain, packed] {
            let output = simulate(&["--config", file.to_str().unwrap(), "--input", input.to_str().unwrap()], "");
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            assert!(verdicts(&stdout(&output)) == expected, "{}", input.display());
            assert_eq!(stderr(&output).contains(&format!("add --format {name} to say so")), name != "ndjson");
        }
    }
}

#[test]
fn two_policies_are_compared_and_answers_can_be_left_out() {
    let folder = Folder::new();
    let new = folder.write("new.toml", BY_IP);
    let old = folder.write("old.toml", &BY_IP.replace("2 per", "1 per"));
    let empty = folder.write("empty.toml", "");
    let args = |old: &Path| {
        let args = ["--config", new.to_str().unwrap(), "--compare", old.to_str().unwrap()];
        let log = ["--format", "clf", "--limiter", "api", "--by", "ip"];
        simulate(&[&args[..], &log].concat(), LOG)
    };
    let (plain, compared) = (
        simulate(&["--config", new.to_str().unwrap(), "--format", "clf", "--limiter", "api", "--by", "ip"], LOG),
        args(&old),
    );
    assert_eq!(stdout(&plain), stdout(&compared), "the answers are those of --config");
    let told = stderr(&compared);
    for line in [
        "which denies 2 (50.0 %)",
        "0 requests are newly denied",
        "1 requests are newly allowed",
        "1 requests are denied by both",
    ] {
        assert!(told.contains(line), "{told}");
    }
    let missing = args(&empty);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr(&missing).contains("no limiter is named \"api\"; the policy has none")
            && stderr(&missing).contains("empty.toml")
    );
    // A trace may name what the old policy does not have: it allows that.
    let trace = hit(1, "u") + &hit(1, "u") + &hit(1, "u");
    let output =
        simulate(&["--config", new.to_str().unwrap(), "--compare", empty.to_str().unwrap(), "--no-answers"], &trace);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), ""), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 requests are newly denied"), "{}", stderr(&output));
    assert!(stderr(&output).contains("3 lines cannot be asked of the old policy"), "{}", stderr(&output));
}

#[test]
fn access_logs_meet_a_domain_and_bad_lines_can_be_passed_over() {
    let log = LOG.to_owned() + "garbage\n";
    let output = simulate(&["--format", "clf", "--domain", "login"], &log);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("line 5 of standard input: this is not Common or Combined Log Format"),
        "{}",
        stderr(&output)
    );
    let output = simulate(&["--format", "clf", "--domain", "login", "--skip-bad-lines"], &log);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output).lines().count(), 4);
    assert!(stderr(&output).contains("1 lines could not be read and were passed over"), "{}", stderr(&output));
    let unknown = simulate(&["--format", "clf", "--limiter", "apy", "--by", "ip"], &log);
    assert!(stderr(&unknown).contains("no limiter is named \"apy\"; did you mean \"api\"?"), "{}", stderr(&unknown));
}

#[test]
fn the_report_is_one_page() {
    let folder = Folder::new();
    let page = folder.path("out.html");
    let trace: String = (0..500).map(|i| hit(i, if i % 3 == 0 { "<b>" } else { "u" })).collect();
    let output = simulate(&["--report", page.to_str().unwrap()], &trace);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let html = fs::read_to_string(&page).unwrap();
    for part in ["<svg", "Most denied keys", "&lt;b&gt;", "prefers-color-scheme: dark", "</html>"] {
        assert!(html.contains(part), "{part}");
    }
    let nowhere = folder.path("no/such/folder.html");
    let output = simulate(&["--report", nowhere.to_str().unwrap()], &trace);
    assert_eq!(output.status.code(), Some(2));
}

//! F4: a log that cannot be written, files of others, too little of something: decisions go on, or the process ends in order and
//! says why.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, TIDEGATE, eventually};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use tidegate::{Algorithm, Clock, Gate, Grid, LimiterSpec, Micros, Policy, Rules, Settings};
use tidegate_events::{Mode, Now, Opening, StreamSpec};

fn config(folder: &Folder, more: &str) -> PathBuf {
    folder.write(
        "tidegate.toml",
        &format!(
            "[store]\npath = \"data\"\n{more}\n[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\n\
             [[limiter]]\nname = \"api\"\nlimits = [\"5 per day\"]\nalgorithm = \"fixed-window\"\n\
             [[limiter]]\nname = \"notify\"\nlimits = [\"5 per day\"]\nalgorithm = \"buckets\"\n\
             [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n"
        ),
    )
}

fn get(server: &Server, path: &str) -> String {
    ureq::get(format!("{}{path}", server.url)).call().unwrap().body_mut().read_to_string().unwrap()
}

fn remaining(server: &Server) -> u64 {
    server.json(&["hit", "api", "u1"]).1["remaining"].as_u64().unwrap()
}

/// Log lines, each of a reload, which the old formatter panicked at.
fn say_something(server: &Server, lost: u64) {
    server.signal("HUP");
    let is_lost = |page: String| {
        page.lines().any(|line| {
            line.strip_prefix("tidegate_log_lines_lost_total ")
                .is_some_and(|count| count.parse::<u64>().unwrap() >= lost)
        })
    };
    eventually("lines are lost", || is_lost(get(server, "/metrics")));
}

/// The door died at the next log line (`2>/dev/full`, a pipe whose reader has gone), or hung with it (a reader that stands
/// still); the process ended with 101, or not at all, and the state since the last snapshot was lost.
#[test]
fn f4_a_log_that_cannot_be_written_does_not_matter() {
    let (reader_gone, mut stands_still) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    drop(reader_gone.0);
    stands_still.1.write_all(&[b'-'; 1 << 16]).unwrap();
    let cases: [(&str, Stdio, u64); 3] = [
        ("a full disk", OpenOptions::new().write(true).open("/dev/full").unwrap().into(), 1),
        ("a pipe whose reader has gone", reader_gone.1.into(), 1),
        ("a pipe that is full and that nobody reads", stands_still.1.into(), 0),
    ];
    for (name, stderr, lost) in cases {
        let folder = Folder::new();
        let config = config(&folder, "");
        let mut server = Server::start_with_stderr(&folder, &config, stderr);
        assert_eq!(remaining(&server), 4, "{name}");
        say_something(&server, lost);
        assert_eq!(remaining(&server), 3, "{name}: the door goes on");
        server.stop();
        assert_eq!(remaining(&Server::start(&folder, Some(&config))), 2, "{name}: the state was saved");
    }
}

/// Runs the command by a shell, which closes and redirects what the test says.
fn sh(script: &str, args: &[&str], server: Option<&Server>) -> Output {
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash", TIDEGATE]).args(args);
    command.env("TIDEGATE_SERVER", server.map_or("http://127.0.0.1:9", |server| &server.url));
    command.output().unwrap()
}

#[test]
fn f4_a_closed_stderr_does_not_matter() {
    let folder = Folder::new();
    let config = config(&folder, "");
    let script = "\"$@\" 2>&- & pid=$!; sleep 0.5; kill -HUP $pid; sleep 0.2; kill -TERM $pid; wait $pid";
    let output = sh(script, &["serve", "--config", config.to_str().unwrap()], None);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(folder.path("data/snapshot").exists());
}

/// No command panics at an output that cannot be written. An answer that is lost is exit 2, in place of 0 for nothing.
#[test]
fn f4_no_command_panics_at_an_output_that_cannot_be_written() {
    let folder = Folder::new();
    let config = config(&folder, "");
    let server = Server::start(&folder, Some(&config));
    let (file, udp) = (config.to_str().unwrap(), server.udp());
    let trace = folder.write("trace", "{\"at\":1,\"limiter\":\"api\",\"key\":\"u\"}\n");
    let simulate = ["simulate", "--config", file, "--input", trace.to_str().unwrap()];
    let commands: [&[&str]; 15] = [
        &["validate", file],
        &simulate,
        &["limiters"],
        &["hit", "api", "u"],
        &["peek", "api", "u"],
        &["keys", "api"],
        &["block", "api", "u", "--for", "1h"],
        &["blocked", "api"],
        &["unblock", "api", "u"],
        &["unblock-all", "api"],
        &["disable", "api"],
        &["enable", "api"],
        &["increment", "notify", "7"],
        &["submit", "orders", "taco"],
        &["udp", udp, "ping"],
    ];
    for command in commands {
        let as_usual = sh("\"$@\"", command, Some(&server));
        assert_eq!(as_usual.status.code(), Some(0), "{command:?}: {as_usual:?}");
        let full = sh("\"$@\" >/dev/full", command, Some(&server));
        assert_eq!(full.status.code(), Some(2), "{command:?}: {full:?}");
        let told = String::from_utf8_lossy(&full.stderr);
        assert!(told.contains("cannot be written") && told.contains("No space left"), "{command:?}: {told}");
        let all_full = sh("\"$@\" >/dev/full 2>/dev/full", command, Some(&server));
        assert_eq!(all_full.status.code(), Some(2), "{command:?}: {all_full:?}");
        let gone = sh("\"$@\" | true; exit ${PIPESTATUS[0]}", command, Some(&server));
        assert!([0, 1].contains(&gone.status.code().unwrap()), "{command:?}: {gone:?}");
    }
    for unwritable in ["--help", "--version", "validate"] {
        let output = sh("\"$@\" >/dev/full 2>/dev/full", &[unwritable], None);
        assert_ne!(output.status.code(), Some(101), "{unwritable}");
    }
}

/// The mode of a file, and of a folder.
#[track_caller]
fn check_mode(path: &Path, expected: u32) {
    let mode = fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, expected, "{} has {mode:o}", path.display());
}

/// Journals and the lock had what the umask gave them. Those of a version before are tightened, and a folder that was there and is
/// open to others is told of.
#[test]
fn f4_what_is_kept_is_for_this_user_alone() {
    let folder = Folder::new();
    let config = config(&folder, "");
    let start = || {
        let mut server = Server::start(&folder, Some(&config));
        assert_eq!(server.ask(&["hit", "api", "u1"]).status.code(), Some(0));
        server.stop();
        server.log()
    };
    let check_all = || {
        for (path, mode) in [
            ("data", 0o700),
            ("data/lock", 0o600),
            ("data/snapshot", 0o600),
            ("data/streams", 0o700),
            ("data/streams/lock", 0o600),
            ("data/streams/orders", 0o700),
            ("data/streams/orders/00000001.journal", 0o600),
        ] {
            check_mode(&folder.path(path), mode);
        }
    };
    assert!(!start().contains("chmod"));
    check_all();
    let loosen = "find data -type f -exec chmod 644 {} + ; find data -type d -exec chmod 755 {} +";
    assert!(Command::new("sh").args(["-c", loosen]).current_dir(folder.path("")).status().unwrap().success());
    assert!(start().contains("data has mode 0755: other users may look into it; chmod 700"));
    fs::set_permissions(folder.path("data"), fs::Permissions::from_mode(0o700)).unwrap();
    check_all();
}

/// A link that somebody planted at the name of the lock or of the new snapshot had its target truncated and overwritten.
#[test]
fn f4_planted_links_are_not_followed() {
    for name in ["lock", "snapshot.new", "streams/lock"] {
        let folder = Folder::new();
        let (config, victim) = (config(&folder, ""), folder.write("victim", "precious"));
        let planted = folder.path("data").join(name);
        fs::create_dir_all(planted.parent().unwrap()).unwrap();
        symlink(&victim, &planted).unwrap();
        if name == "snapshot.new" {
            let mut server = Server::start(&folder, Some(&config));
            server.stop();
            assert!(fs::symlink_metadata(folder.path("data/snapshot")).unwrap().is_file());
        } else {
            let output = Command::new(TIDEGATE).args(["serve", "--config"]).arg(&config).output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{name}: {told}");
            assert!(told.contains("symbolic link, which is not followed: remove it"), "{name}: {told}");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
}

/// A disk without room was told by the log alone.
#[test]
fn f4_f6_readyz_says_that_the_disk_is_full() {
    let folder = Folder::new();
    let server = Server::start_on_a_small_disk(&folder, &config(&folder, "snapshot_every = \"1s\""), 4 << 10);
    for key in 0..20 {
        assert_eq!(server.ask(&["hit", "api", &format!("{key:0>400}")]).status.code(), Some(0));
    }
    let full = "{\"status\":\"degraded\",\"reasons\":[\"state is not saved: file too large\"]}";
    eventually("the disk is full", || get(&server, "/readyz") == full);
    assert_eq!(server.ask(&["hit", "api", "u1"]).status.code(), Some(0), "decisions go on");
    server.let_files_grow();
    eventually("it is well", || get(&server, "/readyz") == "{\"status\":\"ok\"}");
}

#[test]
fn f4_too_little_of_something_is_told_with_the_need_and_the_remedy() {
    let folder = Folder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = config(&folder, "");
    let taken_config = folder.write("taken.toml", &format!("[doors]\nhttp = \"{taken}\""));
    let _listener = std::net::TcpListener::bind(taken).unwrap();
    let (config, taken_config) = (config.to_str().unwrap(), taken_config.to_str().unwrap());
    let cases: [(&str, &str, &[&str]); 4] = [
        (
            "ulimit -v 300000",
            config,
            &["may have 292 MiB of address space, and needs", "raise ulimit -v", "lower max_memory"],
        ),
        ("ulimit -n 20", config, &["may open 20 files, and needs 80 at least", "raise ulimit -n"]),
        ("ulimit -n 79", config, &["may open 79 files, and needs 80 at least"]),
        ("true", taken_config, &["Address already in use", "another process has it", "TIDEGATE_DOORS__HTTP"]),
    ];
    for (limit, config, expected) in cases {
        let output = sh(&format!("{limit}; exec \"$@\""), &["serve", "--config", config], None);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{limit}: {told}");
        assert!(expected.iter().all(|part| told.contains(part)), "{limit}: {told}");
        assert!(!told.contains("panicked"), "{limit}: {told}");
    }
    // What it says that it needs is enough to serve.
    let needs = sh("ulimit -v 300000; exec \"$@\"", &["serve", "--config", config], None);
    let told = String::from_utf8_lossy(&needs.stderr).into_owned();
    let mib: u64 = told.split("needs ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let script = format!(
        "ulimit -v {}; ulimit -n 80; \"$@\" >{} & pid=$!; sleep 1; kill -TERM $pid; wait $pid",
        mib * 1024,
        folder.path("out").display()
    );
    let output = sh(&script, &["serve", "--config", config], None);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut banner = String::new();
    std::io::Read::read_to_string(&mut File::open(folder.path("out")).unwrap(), &mut banner).unwrap();
    assert!(banner.contains("listening on http://"), "{banner}");
}

const YEARS: Micros = Micros::from_secs(10 * 365 * 86_400);

/// What a server leaves behind whose clock was ten years ahead: a counter, a block of an hour, increments, an event.
fn leave_the_future(folder: &Folder) {
    let ahead = Clock::process().now().saturating_add(YEARS);
    let limit = || ["5 per day".parse().unwrap()];
    let day = Micros::from_secs(86_400);
    let buckets = Rules::buckets(Grid::new(Micros::from_secs(600), day).unwrap(), &limit()).unwrap();
    let policy = Policy::new(vec![
        LimiterSpec::new("api", Rules::new(Algorithm::FixedWindow, &limit()).unwrap()),
        LimiterSpec::new("notify", buckets),
    ]);
    let settings = Settings { path: Some(folder.path("data")), ..Settings::default() };
    let gate = Gate::open(policy.unwrap(), &settings, Clock::manual(ahead)).unwrap();
    assert!(gate.hit("api", "u1").unwrap().allowed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(gate.action("api", "blocked").block_for(Micros::from_secs(3_600))).unwrap();
    runtime.block_on(gate.action("notify", "7").increment(2, None)).unwrap();
    gate.save().unwrap();
    let now: Now = Arc::new(move || ahead);
    let spec = StreamSpec::new("orders", Mode::OnlyOnce);
    let streams = Opening::read(vec![spec], Some(&folder.path("data/streams"))).unwrap().start(&now).unwrap();
    let _ = runtime.block_on(streams.get("orders").unwrap().submit(b"taco")).unwrap();
    streams.stop();
}

/// Time went on from the saved state's, ten years ahead: increments with the time of now lay before all history and were voided without
/// a word, and blocks and windows of the future held for years where time did not.
#[test]
fn t1_f4_a_clock_that_was_years_ahead_is_told_and_voids_nothing() {
    let folder = Folder::new();
    leave_the_future(&folder);
    let wall = Clock::process().now();
    let server = Server::start(&folder, Some(&config(&folder, "")));
    server.wait_for_log("the saved state is 521 weeks 3 days ahead of the clock");
    server.wait_for_log("keys=3");
    server.wait_for_log("the streams' journals are 521 weeks");
    assert_eq!(remaining(&server), 3, "the count of the future counts as of now");
    let now = (wall.get() / 1_000_000).to_string();
    let (_, counted) = server.json(&["increment", "notify", "7", "--count", "2", "--timestamp", &now]);
    assert_eq!(counted["counted"], true, "{counted}");
    let (_, peeked) = server.json(&["peek", "notify", "7"]);
    assert_eq!(peeked["remaining"], 1, "{peeked}");
    let (code, blocked) = server.json(&["peek", "api", "blocked"]);
    let left = blocked["retry_after_ms"].as_u64().unwrap();
    assert!(code == 1 && (3_500_000..=3_600_000).contains(&left), "an hour from now: {blocked}");
    // The stream remembers, and goes on from its own time.
    assert_eq!(server.ask(&["submit", "orders", "taco"]).status.code(), Some(1), "a conflict");
    assert_eq!(server.ask(&["submit", "orders", "burrito"]).status.code(), Some(0));
}

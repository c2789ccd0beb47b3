//! Every command of README.md and of the guides runs, in the order of the page, as it is printed, and says what the page shows.
//!
//! A page is a script: `toml` blocks are written to the file that the page speaks of, lines of `sh` blocks and lines after `$ ` run in a
//! shell. What differs from a reader's machine: ports are replaced by free ones, all in the same way, and numbers in the
//! output are not compared.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../server/mod.rs"]
mod server;

mod script;
mod shell;

use shell::Shell;
use std::fs;
use std::path::Path;
use tidegate_testkit::servers;

const EXAMPLE: &str = include_str!("../../../../examples/tidegate.toml");
const LOG: &str = r#"192.0.2.1 - ann [15/Nov/2026:10:00:00 +0000] "POST /login HTTP/1.1" 200 5
192.0.2.1 - ann [15/Nov/2026:10:00:02 +0000] "POST /login HTTP/1.1" 200 5 "-" "curl/8"
"#;
const TRACE: &str = "{\"at\":0,\"limiter\":\"api\",\"key\":\"u1\"}\n";

/// What there is before the first command of a page.
#[derive(Default)]
struct Scene<'a> {
    files: &'a [(&'a str, &'a str)],
    /// The file that the page's `toml` blocks are written to; empty: they are parts that no command reads.
    toml: &'a str,
    /// The port of the Redis that the page presupposes.
    redis: Option<u16>,
    /// Commands that the page presupposes.
    before: &'a [&'a str],
}

/// Runs the commands of a page, at least `least` of them.
#[track_caller]
fn check(page: &str, least: usize, scene: &Scene<'_>) {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
    let mut shell = Shell::new(scene.redis);
    scene.files.iter().for_each(|(name, text)| shell.write(name, text));
    let mut commands = 0;
    for step in script::steps(&text) {
        match step {
            script::Step::Toml(text) if !scene.toml.is_empty() => shell.write(scene.toml, &text),
            script::Step::Toml(_) => {}
            script::Step::File { name, text } => shell.write(&name, &text),
            script::Step::Command { line, shown } => {
                if commands == 0 {
                    scene.before.iter().for_each(|line| shell.run(page, line, ""));
                }
                shell.run(page, &line, &shown);
                commands += 1;
            }
        }
    }
    assert!(commands >= least, "{page} has {commands} commands; are its blocks still found?");
}

#[test]
fn readme() {
    let files = &[("access.log", LOG)];
    check("README.md", 9, &Scene { files, toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn command() {
    check("docs/guide/command.md", 6, &Scene { before: &["tidegate serve"], ..Scene::default() });
}

#[test]
fn audit() {
    check("docs/guide/audit.md", 5, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn configuration() {
    check("docs/guide/configuration.md", 3, &Scene { files: &[("tidegate.toml", EXAMPLE)], ..Scene::default() });
}

#[test]
fn events() {
    check("docs/guide/events.md", 6, &Scene { toml: "orders.toml", ..Scene::default() });
}

#[test]
fn several_checks() {
    check("docs/guide/several-checks.md", 8, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn costs_known_later() {
    check("docs/guide/costs-known-later.md", 5, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn simulate() {
    let files = &[("tidegate.toml", EXAMPLE), ("trace.ndjson", TRACE), ("access.log", LOG)];
    check("docs/guide/simulate.md", 5, &Scene { files, ..Scene::default() });
}

#[test]
fn suggest() {
    // Eight clients with a request every six seconds, and one with two each second for twenty.
    let line = |ip: u32, second: u32| {
        let (minute, second) = (second / 60, second % 60);
        format!("192.0.2.{ip} - - [15/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5\n")
    };
    let steady = (0..10).flat_map(|i| (1..=8).map(move |ip| line(ip, i * 13 + ip / 8)));
    let log: String = steady.chain((0..40).map(|i| line(9, 119 - i / 2))).collect();
    check("docs/guide/suggest.md", 1, &Scene { files: &[("access.log", &log)], ..Scene::default() });
}

#[test]
fn recording() {
    check("docs/guide/recording.md", 5, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn envoy() {
    let theirs = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 100}\n";
    let limits = "- namespace: shop\n  max_value: 5\n  seconds: 1\n  variables: [user]\n";
    let scene = Scene {
        files: &[("shop.yaml", theirs), ("limits.yaml", limits)],
        before: &["mkdir config && mv shop.yaml config"],
        ..Scene::default()
    };
    check("docs/guide/envoy.md", 4, &scene);
}

#[test]
fn proxy() {
    check("docs/guide/proxy.md", 9, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn exposing_it() {
    check("docs/guide/exposing-it.md", 9, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn tls() {
    check("docs/guide/tls.md", 7, &Scene { toml: "tidegate.toml", ..Scene::default() });
}

#[test]
fn migrating_from_pause() {
    let redis = servers::Server::redis(&[]);
    let config = "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:6379\"\n[[limiter]]\nname = \"notify\"\nalgorithm = \"buckets\"\n\
         layout = \"pause\"\nlimits = [\"3 per day\"]\n";
    let scene = Scene {
        files: &[("tidegate.toml", config)],
        redis: Some(redis.port),
        before: &["tidegate serve --config tidegate.toml"],
        ..Scene::default()
    };
    check("docs/guide/migrating-from-pause.md", 2, &scene);
}

/// A page with commands has its test here. etcd.md's are those of an administrator who is asked for a password.
#[test]
fn every_guide_with_commands_is_run() {
    let run = include_str!("main.rs");
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    for page in fs::read_dir(guides).unwrap().map(|entry| entry.unwrap().path()) {
        let name = page.file_name().unwrap().to_str().unwrap();
        let steps = script::steps(&fs::read_to_string(&page).unwrap());
        let has_commands = steps.iter().any(|step| matches!(step, script::Step::Command { .. }));
        let is_run = name == "etcd.md" || run.contains(&format!("check(\"docs/guide/{name}\""));
        assert_eq!(has_commands, is_run, "{name}");
    }
}

//! `[record]` of the real binary: what came over its doors is in the files, `simulate` and `suggest` read them, and a disk that
//! is full stops no decision.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually, stderr, stdout, tidegate};
use std::path::{Path, PathBuf};

const LIMITERS: &str = "[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\n\
    [[limiter]]\nname = \"api\"\nlimits = [\"3 per day\"]\n\
    [[limiter]]\nname = \"login\"\ndomain = \"login\"\nby = [\"user\"]\nlimits = [\"2 per day\"]\n\
    [[udp.route]]\nmatch = '^ws '\nlimiter = \"api\"\n";

fn config(folder: &Folder, record: &str) -> PathBuf {
    folder.write("tidegate.toml", &format!("{record}\n{LIMITERS}"))
}

/// All that was recorded.
fn recorded(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder) else { return String::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn requests_of_every_door_are_recorded_and_replayed() {
    let folder = Folder::new();
    let file = config(&folder, "[record]\npath = \"recorded\"\nsample = \"100%\"\nkeys = \"names\"");
    let mut server = Server::start(&folder, Some(&file));
    for _ in 0..4 {
        server.ask(&["hit", "api", "u1"]);
        server.ask(&["hit", "--domain", "login", "--attribute", "user=ann", "--attribute", "ip=192.0.2.1"]);
    }
    server.ask(&["peek", "api", "u1"]);
    tidegate(&["udp", server.udp(), "over_limit ws global"]);
    eventually("nine requests are written", || recorded(&folder.path("recorded")).lines().count() == 9);
    let metrics = ureq::get(format!("{}/metrics", server.url)).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(metrics.contains("tidegate_record_requests_total{outcome=\"written\"} 9"), "{metrics}");
    assert!(metrics.contains("tidegate_record_requests_total{outcome=\"dropped\"} 0"), "{metrics}");
    server.stop();
    let text = recorded(&folder.path("recorded"));
    assert_eq!(text.matches("\"limiter\":\"api\",\"key\":\"u1\"}").count(), 4, "{text}");
    assert_eq!(text.matches("\"limiter\":\"api\",\"key\":\"ws global\"}").count(), 1, "{text}");
    let login = "\"domain\":\"login\",\"attributes\":{\"ip\":\"192.0.2.1\",\"user\":\"ann\"}}";
    assert_eq!(text.matches(login).count(), 4, "{text}");

    // What was answered comes out again: three and two pass.
    let trace = folder.write("trace.ndjson", &text);
    let trace = trace.to_str().unwrap();
    let output = tidegate(&["simulate", "--config", file.to_str().unwrap(), "--input", trace]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("9 requests: 6 allowed, 3 denied"), "{}", stderr(&output));
    let suggested = tidegate(&["suggest", "--limiter", "api", "--per", "1d", "--json", "--input", trace]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&suggested)).unwrap();
    assert_eq!((&json["requests"], &json["keys"]), (&5.into(), &2.into()), "{}", stderr(&suggested));
    let suggested = tidegate(&["suggest", "--by", "user", "--domain", "login", "--json", "--input", trace]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&suggested)).unwrap();
    assert_eq!((&json["requests"], &json["keys"]), (&4.into(), &1.into()), "{}", stderr(&suggested));
}

#[test]
fn nothing_is_recorded_unless_asked_for() {
    let folder = Folder::new();
    let mut server = Server::start(&folder, Some(&config(&folder, "")));
    server.ask(&["hit", "api", "u1"]);
    let metrics = ureq::get(format!("{}/metrics", server.url)).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(!metrics.contains("tidegate_record"), "{metrics}");
    server.stop();
    assert!(!folder.path("recorded").exists());
}

#[test]
fn f4_decisions_go_on_when_the_disk_is_full() {
    let folder = Folder::new();
    let file = config(&folder, "[record]\npath = \"recorded\"\nsample = \"100%\"\nkeys = \"names\"");
    let server = Server::start_on_a_small_disk(&folder, &file, 4 << 10);
    // One line that is longer than a file may be.
    let long = |i: u32| if i == 0 { "user=ann".to_owned() } else { format!("a{i}={}", "x".repeat(500)) };
    let hit = || {
        let attributes: Vec<String> = (0..16).map(long).collect();
        let pairs = attributes.iter().flat_map(|pair| ["--attribute", pair]);
        let args: Vec<&str> = ["hit", "--domain", "login"].into_iter().chain(pairs).collect();
        server.ask(&args).status.code()
    };
    assert_eq!(hit(), Some(0));
    server.wait_for_log("requests are not recorded");
    assert_eq!((hit(), hit()), (Some(0), Some(1)), "decisions are as ever");
    server.let_files_grow();
    eventually("a request is recorded again", || {
        hit();
        recorded(&folder.path("recorded")).contains("}\n")
    });
    server.wait_for_log("requests are recorded again");
}

#[test]
fn a_folder_that_cannot_be_made_is_told_at_the_start() {
    let folder = Folder::new();
    folder.write("recorded", "a file");
    let file = config(&folder, "[record]\npath = \"recorded\"");
    let output = tidegate(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("error: requests cannot be recorded in "), "{}", stderr(&output));
    assert!(stderr(&output).contains("; check [record] path and its owner"), "{}", stderr(&output));
}

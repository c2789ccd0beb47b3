//! S7: who changed what, from the real binary: kept over restarts, told by the command and the log, and never in the way.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use serde_json::Value;
use server::{Folder, Server, eventually, stdout};
use std::path::PathBuf;

fn config(folder: &Folder, more: &str) -> PathBuf {
    let limiters = "[[limiter]]\nname = \"api\"\nlimits = [\"5 per day\"]\n";
    folder.write("tidegate.toml", &format!("{more}\n[doors]\nhttp = \"127.0.0.1:0\"\n{limiters}"))
}

/// Each entry as JSON, newest first.
fn entries(server: &Server) -> Vec<Value> {
    let output = server.ask(&["audit", "--json"]);
    stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn whats(server: &Server) -> Vec<String> {
    entries(server).iter().map(|entry| entry["what"].as_str().unwrap().to_owned()).collect()
}

fn get(server: &Server, path: &str) -> String {
    ureq::get(format!("{}{path}", server.url)).call().unwrap().body_mut().read_to_string().unwrap()
}

#[test]
fn s7_changes_and_reloads_are_kept_over_restarts_and_logged_on_request() {
    let folder = Folder::new();
    let text = "[store]\npath = \"data\"\n[audit]\nlog = true";
    let file = config(&folder, text);
    let server = Server::start(&folder, Some(&file));
    assert_eq!(server.ask(&["block", "api", "u1", "--for", "1h", "--reason", "café \u{1}"]).status.code(), Some(0));
    assert_eq!(server.ask(&["unblock", "none", "u1"]).status.code(), Some(2));
    folder.write(
        "tidegate.toml",
        &format!("{}[[limiter]]\nname = \"new\"\nlimits = [\"1 per day\"]\n", std::fs::read_to_string(&file).unwrap()),
    );
    eventually("the reload is noted", || whats(&server) == ["reload", "block"]);
    let all = entries(&server);
    assert_eq!((&all[0]["who"], &all[0]["detail"]), (&"change of the file".into(), &"limiter new added".into()));
    assert_eq!((&all[1]["who"], &all[1]["why"]), (&"127.0.0.1".into(), &"café \u{1}".into()));
    // A file that is refused changes nothing.
    folder.write("tidegate.toml", "nonsense = 1");
    server.wait_for_log("is refused, and the policy stays as it was");
    let logged = server.log().lines().filter(|line| line.starts_with("{\"audit\":{\"number\":")).count();
    assert_eq!(logged, 2, "{}", server.log());
    // Entries are on disk before the change is answered.
    server.kill();
    let server = Server::start(&folder, Some(&config(&folder, text)));
    assert_eq!(entries(&server), all);
    assert_eq!(server.ask(&["enable", "api"]).status.code(), Some(0));
    assert_eq!(entries(&server)[0]["number"], 3, "numbers go on");
    assert_eq!(server.ask(&["audit", "--most", "0"]).status.code(), Some(2));
    let table = stdout(&server.ask(&["audit", "--most", "2"]));
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 3 && rows[0].starts_with("WHEN  "), "{table}");
    assert!(
        rows[1].contains("127.0.0.1") && rows[1].contains("enable") && rows[2].contains("limiter new added"),
        "{table}"
    );
    assert!(!stdout(&server.ask(&["audit"])).contains('\u{1}'), "no entry steers a terminal");
}

/// Who may ask what is changed by hand, too.
#[test]
fn s7_tokens_that_come_go_and_change_are_noted_by_name() {
    let folder = Folder::new();
    let tokens = folder.path("tokens.toml");
    let token = |args: &[&str]| {
        let output =
            std::process::Command::new(server::TIDEGATE).arg("token").args(args).arg("--file").arg(&tokens).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", server::stderr(&output));
        stdout(&output)
    };
    folder.write("ops.token", &token(&["new", "--name", "ops", "--scope", "read,operate"]));
    let text = "[access]\ntokens = \"tokens.toml\"";
    let server = Server::start(&folder, Some(&config(&folder, text)));
    let file = folder.path("ops.token").display().to_string();
    let entries = || {
        let output = server.ask(&["audit", "--json", "--token-file", &file]);
        stdout(&output).lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect::<Vec<_>>()
    };
    let newest = |what: &str, detail: &str, who: &str| {
        eventually(detail, || {
            let all = entries();
            all.first().is_some_and(|entry| {
                (&entry["what"], &entry["detail"], &entry["who"]) == (&what.into(), &detail.into(), &who.into())
            })
        });
    };
    token(&["new", "--name", "nginx", "--scope", "check"]);
    newest("tokens", "token nginx added", "change of the file");
    let kept = std::fs::read_to_string(&tokens).unwrap();
    std::fs::write(&tokens, kept.replace("scopes = [\"check\"]", "scopes = [\"check\", \"count\"]")).unwrap();
    newest("tokens", "token nginx changed", "change of the file");
    token(&["revoke", "nginx"]);
    newest("tokens", "token nginx revoked", "change of the file");
    let count = entries().len();
    assert_eq!(server.ask(&["disable", "api", "--token-file", &file]).status.code(), Some(0));
    assert_eq!(entries()[0]["who"], "token ops");
    // A configuration that changes access otherwise, and no token.
    config(&folder, "[access]\ntokens = \"tokens.toml\"\nhosts = [\"gate.example\"]");
    newest("reload", "[access] changed", "change of the file");
    assert_eq!(entries().len(), count + 2);
}

#[test]
fn without_a_path_it_is_in_memory_and_says_so() {
    let folder = Folder::new();
    let server = Server::start(&folder, Some(&config(&folder, "")));
    assert_eq!(server.ask(&["disable", "api"]).status.code(), Some(0));
    let output = server.ask(&["audit"]);
    assert!(stdout(&output).contains("disable"));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("in the server's memory only; set [audit] path"), "{told}");
    let kept = folder.path("elsewhere/audit.jsonl");
    let _server = Server::start(&folder, Some(&config(&folder, "[audit]\npath = \"elsewhere\"")));
    assert!(kept.exists());
}

/// A disk without room stops neither a decision nor a change; what was noted meanwhile is kept when there is room again.
#[test]
fn s7_a_full_disk_stops_no_change_and_its_entry_is_kept_later() {
    let folder = Folder::new();
    let file = config(&folder, "[audit]\npath = \"audit\"");
    let server = Server::start_on_a_small_disk(&folder, &file, 4 << 10);
    let key = "k".repeat(400);
    let changes = 20;
    for _ in 0..changes {
        assert_eq!(server.ask(&["block", "api", &key, "--for", "1h"]).status.code(), Some(0));
    }
    eventually("it is told", || get(&server, "/readyz").contains("the audit is not kept: file too large"));
    server.wait_for_log("the audit cannot be written: file too large");
    assert_eq!(entries(&server).len(), changes);
    server.let_files_grow();
    eventually("it is well", || get(&server, "/readyz").contains("\"status\":\"ok\""));
    server.kill();
    assert_eq!(entries(&Server::start(&folder, Some(&file))).len(), changes, "each once");
}

//! The dashboard in a real browser, under load: what a person does there, with keys that want to be markup.
//!
//! Playwright and axe come from npm into `target/clients`, once; the browser is Debian's. Screenshots are left in
//! `target/dashboard`, to be looked at.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server};
use std::path::Path;
use std::process::Command;

const POLICY: &str = r#"
[doors]
http = "127.0.0.1:0"
[[limiter]]
name = "api"
limits = ["5 per minute"]
candidate_limits = ["2 per minute"]
last_decisions = 1000
[[limiter]]
name = "login"
algorithm = "sliding-log"
limits = ["1 per minute", "3 per hour"]
[[limiter]]
name = "search"
algorithm = "fixed-window"
limits = ["100 per minute"]
[[stream]]
name = "orders"
mode = "only-once"
duration = "5s"
"#;

#[test]
fn s6_the_dashboard_shows_and_steers_and_keys_are_text() {
    let target = Path::new(env!("CARGO_BIN_EXE_tidegate")).ancestors().nth(2).unwrap();
    let clients = target.join("clients");
    std::fs::create_dir_all(&clients).unwrap();
    let lock = std::fs::File::create(clients.join("lock")).unwrap();
    lock.lock().unwrap();
    if !clients.join("node_modules/axe-core").exists() || !clients.join("node_modules/playwright-core").exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&clients);
        let status = npm.args(["playwright-core@1", "axe-core@4"]).status().unwrap();
        assert!(status.success(), "npm: {status}");
    }
    drop(lock);
    let folder = Folder::new();
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", POLICY)));
    // Modules are looked for beside the script.
    let script = clients.join("dashboard.mjs");
    std::fs::write(&script, include_str!("clients/dashboard.mjs")).unwrap();
    let output = Command::new("node").arg(&script).arg(&server.url).arg(target.join("dashboard")).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(told.lines().count(), 23, "{told}");
}

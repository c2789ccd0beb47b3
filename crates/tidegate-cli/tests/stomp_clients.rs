//! Clients that know nothing of ours: @stomp/stompjs in Node, and stomp.py.
//!
//! They are installed by their own package managers into `target/clients`, once.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, TIDEGATE, stdout};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What clients need, installed beside the test's own binary.
fn clients() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_tidegate")).ancestors().nth(2).unwrap().join("clients");
    std::fs::create_dir_all(&target).unwrap();
    let lock = std::fs::File::create(target.join("lock")).unwrap();
    lock.lock().unwrap();
    if !target.join("done").exists() {
        run(
            "npm",
            &["install", "--silent", "--no-audit", "--no-fund", "--prefix"],
            &target,
            &["@stomp/stompjs@7", "ws@8"],
        );
        run("python3", &["-m", "venv"], &target.join("venv"), &[]);
        let pip = target.join("venv/bin/pip");
        run(
            pip.to_str().unwrap(),
            &["install", "--quiet", "--progress-bar=off", "--log"],
            &target.join("pip.log"),
            &["stomp.py==9.0.0", "websocket-client"],
        );
        std::fs::write(target.join("done"), "").unwrap();
    }
    target
}

fn run(program: &str, before: &[&str], path: &Path, after: &[&str]) {
    let status = Command::new(program).args(before).arg(path).args(after).status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{program} {before:?}: {status:?}");
}

fn config(folder: &Folder, address: &str) -> PathBuf {
    let text = format!(
        "[store]\npath = \"data\"\n[doors]\nhttp = \"{address}\"\n[[stream]]\nname = \"orders\"\nmode = \"strictly-once\"\nduration = \"2s\"\nsnapshot_every = \"4s\"\n"
    );
    folder.write("tidegate.toml", &text)
}

/// Runs a client; at its word the server is killed with -9, and another takes its place.
fn check(mut client: Command, folder: &Folder, server: Server) {
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let mut server = Some(server);
    let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line == "restart" {
            server.take().unwrap().kill();
            server = Some(Server::start(folder, Some(&config(folder, &address))));
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        said.push(line);
    }
    assert!(child.wait().unwrap().success(), "{said:?}");
    assert_eq!(said, ["restart", "done"]);
}

#[test]
fn c1_c2_e1_stompjs_in_node() {
    let (clients, folder) = (clients(), Folder::new());
    let server = Server::start(&folder, Some(&config(&folder, "127.0.0.1:0")));
    let mut node = Command::new("node");
    node.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/stompjs.mjs"));
    node.arg(server.url.strip_prefix("http://").unwrap()).env("CLIENTS", clients);
    check(node, &folder, server);
}

/// `followStomp` shows its token in CONNECT, beside what headers the page has set; one that is wrong, or for another stream, is told.
#[test]
fn s5_follow_stomp_shows_a_token() {
    let (clients, folder) = (clients(), Folder::new());
    let token = |name: &str, args: &[&str]| {
        let file = folder.path("tokens.toml");
        let made =
            Command::new(TIDEGATE).args(["token", "new", "--name", name]).args(args).arg("--file").arg(file).output();
        let text = stdout(&made.unwrap());
        folder.write(&format!("{name}.token"), &text);
        text.trim_end().to_owned()
    };
    let page = token("page", &["--scope", "subscribe", "--stream", "orders"]);
    let other = token("other", &["--scope", "subscribe", "--stream", "other"]);
    token("ops", &["--scope", "publish"]);
    let file = folder.write(
        "tidegate.toml",
        "[doors]\nhttp = \"127.0.0.1:0\"\n[access]\ntokens = \"tokens.toml\"\n[[stream]]\nname = \"orders\"\n\
         mode = \"only-once\"\nduration = \"1h\"\n",
    );
    let server = Server::start(&folder, Some(&file));
    let address = server.url.strip_prefix("http://").unwrap();
    let follow = |token: &str| {
        let mut node = Command::new("node");
        node.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/stompjs_token.mjs"));
        node.args([address, "orders", token]).env("CLIENTS", &clients).stdout(Stdio::piped());
        node.spawn().unwrap()
    };
    for (token, refusal) in [("tg_nobody", "ERROR unauthorized\n"), (&other, "ERROR forbidden\n")] {
        assert_eq!(stdout(&follow(token).wait_with_output().unwrap()), refusal);
    }
    let mut node = follow(&page);
    let mut lines = BufReader::new(node.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "KEY_FRAME ");
    let ops = folder.path("ops.token");
    let submitted = server.ask(&["submit", "orders", "taco", "--token-file", ops.to_str().unwrap()]);
    assert_eq!(submitted.status.code(), Some(0));
    assert_eq!(lines.next().unwrap().unwrap(), "SUBMITTED_EVENT taco");
    assert!(node.wait().unwrap().success());
}

#[test]
fn c1_c2_e1_stomp_py() {
    let (clients, folder) = (clients(), Folder::new());
    let server = Server::start(&folder, Some(&config(&folder, "127.0.0.1:0")));
    let (host, port) = server.url.strip_prefix("http://").unwrap().split_once(':').unwrap();
    let mut python = Command::new(clients.join("venv/bin/python3"));
    python.args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/stomp_py.py"), host, port]);
    check(python, &folder, server);
}

//! `tidegate top` in a real terminal: tmux presses its keys and reads its screen.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, TIDEGATE, eventually, stderr, tidegate};
use std::path::PathBuf;
use std::process::{Command, Output};

/// A terminal with one program in it, on a tmux server of its own, which ends with the test.
struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    fn run(folder: &Folder, command: &str) -> Terminal {
        let terminal = Terminal { socket: folder.path("tmux") };
        let size = ["-x", "110", "-y", "26"];
        let started = terminal.tmux(&[&["-f", "/dev/null", "-u", "new-session", "-d"][..], &size, &[command]].concat());
        assert!(started.status.success(), "tmux: {}", stderr(&started));
        terminal
    }

    fn tmux(&self, words: &[&str]) -> Output {
        Command::new("tmux").arg("-S").arg(&self.socket).args(words).env("LC_ALL", "C.UTF-8").output().expect("tmux")
    }

    fn screen(&self) -> String {
        server::stdout(&self.tmux(&["capture-pane", "-p"]))
    }

    fn press(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"], keys].concat()).status.success());
    }

    /// Waits until these are on the screen, in this order.
    #[track_caller]
    fn shows(&self, parts: &[&str]) {
        let mut screen = String::new();
        let found = |screen: &str| {
            let next = |from: usize, part: &&str| screen[from..].find(part).map(|at| from + at + part.len());
            parts.iter().try_fold(0, next).is_some()
        };
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the screen", || {
                screen = self.screen();
                found(&screen)
            });
        }));
        assert!(waited.is_ok(), "{parts:?} are not in this order on\n{screen}");
    }

    fn is_there(&self) -> bool {
        self.tmux(&["has-session"]).status.success()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Two limiters; `zoe` is hit most and blocked, and `mail` denies less than `api`.
fn busy_server(folder: &Folder) -> Server {
    let config = "[doors]\nhttp = \"127.0.0.1:0\"\n\
        [[limiter]]\nname = \"mail\"\nlimits = [\"2 per hour\"]\ncandidate_limits = [\"1 per hour\"]\n\
        [[limiter]]\nname = \"api\"\nlimits = [\"3 per hour block 1h\"]\n";
    let server = Server::start(folder, Some(&folder.write("tidegate.toml", config)));
    for (limiter, key, times) in [("api", "zoe", 8), ("api", "bob", 2), ("api", "carol", 1), ("mail", "dave", 4)] {
        (0..times).for_each(|_| drop(server.ask(&["hit", limiter, key])));
    }
    server
}

#[test]
fn top_sorts_filters_unblocks_and_overrides() {
    let folder = Folder::new();
    let server = busy_server(&folder);
    let terminal = Terminal::run(&folder, &format!("{TIDEGATE} top --server {}", server.url));
    // What is denied most comes first, and its keys are shown: those that are hit most first.
    terminal.shows(&[
        "tidegate top",
        "most denied first",
        "▸ api",
        "mail",
        "keys of api",
        "▸ zoe",
        "bob",
        "carol",
        "u unblock",
    ]);
    terminal.press(&["s", "s"]);
    terminal.shows(&["limiters, by name", "▸ api", "mail"]);
    terminal.press(&["Down"]);
    terminal.shows(&["▸ mail", "keys of mail", "▸ dave"]);
    terminal.press(&["Up", "Tab", "s"]);
    terminal.shows(&["keys of api", "by name", "▸ bob", "carol", "zoe"]);
    terminal.press(&["/", "AR", "Enter"]);
    terminal.shows(&["with \"AR\"", "▸ carol"]);
    assert!(!terminal.screen().contains("zoe"), "{}", terminal.screen());
    terminal.press(&["Escape"]);
    terminal.shows(&["▸ bob", "zoe"]);

    assert_eq!(server.json(&["peek", "api", "zoe"]).1["reason"], "blocked");
    terminal.press(&["3"]);
    terminal.shows(&["FOR ANOTHER", "▸ zoe", "minutes"]);
    terminal.press(&["u"]);
    terminal.shows(&["unblocked: api zoe"]);
    assert_eq!(server.json(&["peek", "api", "zoe"]).1["allowed"], true);
    terminal.shows(&["none", "unblocked: api zoe"]);

    terminal.press(&["1"]);
    terminal.shows(&["HITS", "▸ bob"]);
    terminal.press(&["o"]);
    terminal.shows(&["limits of bob: 3 per 1h block 1h"]);
    terminal.press(&["C-u", "9 per hour for 2h", "Enter"]);
    terminal.shows(&["overridden: api bob, 9 per hour, for 2h"]);
    assert_eq!(server.json(&["peek", "api", "bob"]).1["limit"], 9);
    terminal.press(&["4"]);
    terminal.shows(&["LIMITS", "▸ bob", "9 per 1h", "UTC"]);
    terminal.press(&["c"]);
    terminal.shows(&["cleared: api bob"]);
    assert_eq!(server.json(&["peek", "api", "bob"]).1["limit"], 3);
    // What cannot be is told in the server's words.
    terminal.press(&["1"]);
    terminal.shows(&["HITS", "▸ bob"]);
    terminal.press(&["o", "C-u", "many", "Enter"]);
    terminal.shows(&["it does not start with a count", "\"5 per minute\""]);
    assert_eq!(server.json(&["peek", "api", "bob"]).1["limit"], 3);
    terminal.press(&["q"]);
    eventually("it ends", || !terminal.is_there());
    let changes = server::stdout(&server.ask(&["audit"]));
    for change in ["unblock", "zoe", "override", "bob"] {
        assert!(changes.contains(change), "{change} is not in {changes}");
    }
}

#[test]
fn without_a_terminal_or_a_server_top_says_what_to_do() {
    let output = tidegate(&["top", "--server", "http://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("top draws on a terminal, and this is none"), "{}", stderr(&output));
    let folder = Folder::new();
    let command = format!("{TIDEGATE} top --server http://127.0.0.1:1; echo ended with $?; sleep 60");
    let terminal = Terminal::run(&folder, &command);
    terminal.shows(&["no server listens at http://127.0.0.1:1", "ended with 2"]);
}

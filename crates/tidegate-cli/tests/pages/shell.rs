//! A shell for the commands of one page: a folder, `tidegate` in its path, and ports of its own.

use crate::server::{Folder, TIDEGATE, eventually};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidegate_testkit::servers::free_port;

/// The ports that pages print.
const PORTS: [&str; 8] = ["7400", "7401", "4040", "4041", "9000", REDIS, "7403", "8000"];
/// The port of a Redis that a page presupposes.
const REDIS: &str = "6379";
/// Not run here: they build and test all of this.
const EXEMPT: [&str; 1] = ["./scripts/test"];

pub(crate) struct Shell {
    folder: Folder,
    /// By place in [`PORTS`].
    ports: Vec<String>,
    /// What goes on until the end of the page, and what it is known by.
    running: Vec<(&'static str, Child)>,
    commands: usize,
}

impl Shell {
    pub(crate) fn new(redis: Option<u16>) -> Shell {
        let folder = Folder::new();
        fs::create_dir(folder.path("bin")).unwrap();
        std::os::unix::fs::symlink(TIDEGATE, folder.path("bin/tidegate")).unwrap();
        let port = |printed| if printed == REDIS { redis.unwrap_or_else(free_port) } else { free_port() };
        let ports = PORTS.map(|printed| port(printed).to_string()).to_vec();
        Shell { folder, ports, running: Vec::new(), commands: 0 }
    }

    pub(crate) fn write(&mut self, name: &str, text: &str) {
        fs::create_dir_all(self.folder.path(name).parent().unwrap()).unwrap();
        self.folder.write(name, &self.with_ports(text));
    }

    /// Runs one command to its end, or until it serves; its output has what the page shows.
    #[track_caller]
    pub(crate) fn run(&mut self, page: &str, line: &str, shown: &str) {
        if EXEMPT.iter().any(|exempt| line.starts_with(exempt)) {
            return;
        }
        let text = line.replace("cargo run --release --", "tidegate").replace("0.0.0.0:", "127.0.0.1:");
        let text = self.with_ports(&text);
        self.commands += 1;
        let log = self.folder.path(&format!("output-{}", self.commands));
        let output = || fs::read_to_string(&log).unwrap();
        if let Some(sign) = serves(&text) {
            self.stop(sign);
            let mut child = self.spawn(&text, &log);
            eventually(&format!("{page}: {line}"), || {
                assert_eq!(child.try_wait().unwrap(), None, "{page}: {line} ended: {}", output());
                self.is_up(sign, shown, &output())
            });
            self.running.push((sign, child));
        } else {
            let status = self.spawn(&text, &log).wait().unwrap();
            let may_fail = !shown.is_empty();
            assert!(status.success() || may_fail, "{page}: {line}: {status}\n{}", output());
        }
        check_output(page, line, shown, &output());
    }

    fn spawn(&self, text: &str, log: &Path) -> Child {
        let path = format!("{}:{}", self.folder.path("bin").display(), std::env::var("PATH").unwrap());
        let address = |port: usize| format!("127.0.0.1:{}", self.ports[port]);
        let mut shell = Command::new("sh");
        // A server takes the shell's place, so that it ends by the shell's process id.
        let text = if serves(text).is_some() { exec(text) } else { text.to_owned() };
        shell.args(["-c", &text]).current_dir(self.folder.path("")).env("PATH", path);
        shell.env("TIDEGATE_SERVER", format!("http://{}", address(0)));
        if text.contains("tidegate proxy") {
            shell.env("TIDEGATE_PROXY__LISTEN", address(2)).env("TIDEGATE_PROXY__ADMIN", address(3));
        } else if text.contains("tidegate serve") && !text.contains("TIDEGATE_DOORS__HTTP") {
            shell.env("TIDEGATE_DOORS__HTTP", address(0)).env("TIDEGATE_DOORS__UDP", address(1));
        }
        let output = File::create(log).unwrap();
        shell.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
    }

    /// Ends what has the port of what is started now, as a reader would: a server, or the proxy.
    fn stop(&mut self, sign: &str) {
        let has_port = |other: &str| other == sign || sign == "serve" && other == "proxy";
        for (_, mut child) in self.running.extract_if(.., |(other, _)| has_port(other)) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn is_up(&self, sign: &str, shown: &str, output: &str) -> bool {
        match sign {
            "http.server" => std::net::TcpStream::connect(format!("127.0.0.1:{}", self.ports[4])).is_ok(),
            "watch" | BACKGROUND => missing(shown, output).is_none(),
            _ => output.contains("listening on http"),
        }
    }

    fn with_ports(&self, text: &str) -> String {
        let both = PORTS.iter().zip(&self.ports);
        both.fold(text.to_owned(), |text, (printed, free)| {
            text.replace(&format!(":{printed}"), &format!(":{free}"))
                .replace(&format!(" {printed} "), &format!(" {free} "))
                .replace(&format!("{printed}, "), &format!("{free}, "))
        })
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program of the page's own that goes on; it is up when it has said what the page shows.
const BACKGROUND: &str = " &";

/// What a command that goes on is known by; `None`: it ends.
fn serves(text: &str) -> Option<&'static str> {
    let signs = [("tidegate serve", "serve"), ("tidegate proxy", "proxy"), ("tidegate watch", "watch")];
    let signs = signs.into_iter().chain([("http.server", "http.server")]);
    let known = signs.into_iter().find(|(command, _)| text.contains(command)).map(|(_, sign)| sign);
    known.or_else(|| text.ends_with(BACKGROUND).then_some(BACKGROUND))
}

/// The command in the shell's own process, behind its variables, and not in the background.
fn exec(text: &str) -> String {
    let known = ["tidegate ", "python3 "].into_iter().filter_map(|word| text.find(word)).min();
    let at =
        known.unwrap_or_else(|| text.split_inclusive(' ').take_while(|word| word.contains('=')).map(str::len).sum());
    format!("{}exec {}", &text[..at], text[at..].trim_end_matches('&'))
}

/// Pieces of what is shown, between line ends and `…`, come in the output in this order; blanks, numbers and durations aside. An exit code is a
/// number that is compared.
#[track_caller]
fn check_output(page: &str, line: &str, shown: &str, output: &str) {
    if let Some(piece) = missing(shown, output) {
        panic!("{page}: {line}\nshows {piece:?}, and its output has it not, or not in this order:\n{output}");
    }
    if line.ends_with("echo $?") {
        assert_eq!(output.lines().last(), shown.lines().last(), "{page}: {line}\n{output}");
    }
}

/// The first piece that does not come.
fn missing(shown: &str, output: &str) -> Option<String> {
    let told = plain(output);
    let mut rest = told.as_str();
    shown.split(['\n', '…']).map(plain).filter(|piece| !piece.is_empty()).find(|piece| {
        match rest.split_once(piece.as_str()) {
            Some((_, behind)) => {
                rest = behind;
                false
            }
            None => true,
        }
    })
}

/// Units of durations; `2 hours 1 minute` and `2 hours` differ by the time of day at most.
const UNITS: [&str; 5] = ["week", "day", "hour", "minute", "second"];

/// Without blanks, with 0 for every number and one word for every duration.
fn plain(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace().map(without_numbers) {
        let bare = word.trim_end_matches(|char: char| !char.is_alphabetic());
        let is_unit = UNITS.contains(&bare.strip_suffix('s').unwrap_or(bare));
        if !is_unit || words.pop_if(|last| last == "0").is_none() {
            words.push(word);
            continue;
        }
        words.pop_if(|last| last == "DURATION");
        words.push("DURATION".to_owned());
        words.extend((bare != word).then(|| word[bare.len()..].to_owned()));
    }
    words.concat()
}

fn without_numbers(word: &str) -> String {
    let mut plain = String::new();
    for char in word.chars() {
        let goes_on = plain.ends_with('0') && (char.is_ascii_digit() || matches!(char, '.' | ','));
        match char {
            _ if goes_on => {}
            '0'..='9' => plain.push('0'),
            other => plain.push(other),
        }
    }
    plain
}

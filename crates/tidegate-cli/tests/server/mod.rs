//! The real binary for a test: in a folder of its own, on any free port, ended by its process id.
//!
//! It is not in the testkit: cargo tells the binary's path to the integration tests of this crate only.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

pub(crate) use tidegate_testkit::{Folder, WAIT_TIME_MAX, eventually};

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

pub(crate) const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");
/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) banner: String,
    log: PathBuf,
}

impl Server {
    /// Starts it and waits for its address.
    pub(crate) fn start(folder: &Folder, config: Option<&Path>) -> Server {
        Server::start_with(folder, config, &[])
    }

    /// The same, with variables in its environment.
    pub(crate) fn start_with(folder: &Folder, config: Option<&Path>, variables: &[(&str, &str)]) -> Server {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let log = folder.path(&format!("log-{}", NEXT.fetch_add(1, Relaxed)));
        Server::run(Command::new(TIDEGATE), &log, config, variables)
    }

    /// The same, with another stderr than a file.
    pub(crate) fn start_with_stderr(folder: &Folder, config: &Path, stderr: Stdio) -> Server {
        Server::spawn(Command::new(TIDEGATE), &folder.write("no-log", ""), stderr, Some(config), &[])
    }

    /// The same, where no file may become longer than so many bytes, until [`Server::let_files_grow`]: a disk that is full.
    pub(crate) fn start_on_a_small_disk(folder: &Folder, config: &Path, bytes: u64) -> Server {
        let mut command = Command::new("bash");
        // Past the limit there is an error, and no signal.
        let limited = format!("trap '' XFSZ; ulimit -S -f {}; exec \"$@\"", bytes >> 10);
        command.args(["-c", &limited, "bash", TIDEGATE]);
        Server::run(command, &folder.path("log-small"), Some(config), &[])
    }

    /// There is room again.
    pub(crate) fn let_files_grow(&self) {
        let lifted =
            Command::new("prlimit").args(["--fsize=unlimited:", "--pid", &self.child.id().to_string()]).status();
        assert!(lifted.unwrap().success());
    }

    fn run(command: Command, log: &Path, config: Option<&Path>, variables: &[(&str, &str)]) -> Server {
        Server::spawn(command, log, File::create(log).unwrap().into(), config, variables)
    }

    fn spawn(
        mut command: Command,
        log: &Path,
        stderr: Stdio,
        config: Option<&Path>,
        variables: &[(&str, &str)],
    ) -> Server {
        let log = log.to_owned();
        command.arg("serve").args(config.iter().flat_map(|file| [Path::new("--config"), file]));
        if config.is_none() {
            command.env("TIDEGATE_DOORS__HTTP", "127.0.0.1:0");
        }
        command.envs(variables.iter().copied());
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut banner = String::new();
        let url = loop {
            let Some(Ok(line)) = lines.next() else {
                let _ = child.wait();
                panic!("no server: {}", fs::read_to_string(&log).unwrap());
            };
            banner += &(line.clone() + "\n");
            if let Some(url) = line.strip_prefix("listening on ") {
                break url.to_owned();
            }
        };
        // Up to the policy; without a file, what to try comes after it.
        let mut is_last = false;
        for (number, line) in lines.enumerate() {
            let line = line.unwrap();
            is_last = if config.is_none() { number + 1 == 18 } else { line.starts_with("policy: ") };
            banner += &(line + "\n");
            if is_last {
                break;
            }
        }
        assert!(is_last, "{banner}");
        Server { child, url, banner, log }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    pub(crate) fn wait_for_log(&self, part: &str) {
        eventually(part, || self.log().contains(part));
    }

    /// The processor time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name is in brackets and may have spaces; times are the 14th and 15th field, in hundredths.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// Bytes of a line of its status: `VmRSS` what is resident, `VmHWM` the most that ever was.
    pub(crate) fn memory(&self, line: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let value = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')).unwrap();
        value.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// The RESP door's address, from the banner.
    pub(crate) fn resp(&self) -> &str {
        self.banner.lines().find_map(|line| line.strip_prefix("listening on redis://")).unwrap()
    }

    /// The UDP door's address, from the banner.
    pub(crate) fn udp(&self) -> &str {
        self.banner.lines().find_map(|line| line.strip_prefix("listening on udp://")).unwrap()
    }

    /// The gRPC door's address, from the banner.
    pub(crate) fn grpc(&self) -> &str {
        self.banner.lines().find_map(|line| line.strip_prefix("listening on grpc://")).unwrap()
    }

    /// Runs a client command against it.
    pub(crate) fn ask(&self, args: &[&str]) -> Output {
        Command::new(TIDEGATE).args(args).env("TIDEGATE_SERVER", &self.url).output().unwrap()
    }

    /// Runs a client command with `--json`: its exit code and its answer.
    pub(crate) fn json(&self, args: &[&str]) -> (i32, serde_json::Value) {
        let output = self.ask(&[args, &["--json"]].concat());
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0), "{}", self.log());
    }

    /// kill -9.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command to its end.
pub(crate) fn tidegate(args: &[&str]) -> Output {
    Command::new(TIDEGATE).args(args).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

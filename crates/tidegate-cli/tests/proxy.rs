//! The command `tidegate proxy`: signals, files, `serve` beside it, and a long line of waiting requests.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, TIDEGATE, eventually, stderr, tidegate};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_testkit::{http, number, waited_for_processor};

/// A running proxy; ended with the test.
struct Proxy {
    child: Child,
    banner: String,
    log: PathBuf,
}

impl Proxy {
    fn start(folder: &Folder, words: &[&str]) -> Proxy {
        Proxy::start_in(folder, words, &[])
    }

    /// With these variables in its environment.
    fn start_in(folder: &Folder, words: &[&str], variables: &[(&str, &str)]) -> Proxy {
        let log = folder.path("proxy.log");
        let mut child = Command::new(TIDEGATE)
            .args(words)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut banner = String::new();
        while !banner.contains("forwarding to") {
            let Some(Ok(line)) = lines.next() else { panic!("no proxy: {}", fs::read_to_string(&log).unwrap()) };
            banner += &(line + "\n");
        }
        Proxy { child, banner, log }
    }

    /// The address behind these words of the banner.
    fn address(&self, before: &str) -> SocketAddr {
        let (_, rest) = self.banner.split_once(&format!("{before} on http://")).unwrap();
        rest.split(['\n', ',']).next().unwrap().parse().unwrap()
    }

    fn signal(&self, name: &str) {
        assert!(
            Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status().unwrap().success()
        );
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn stop(mut self) {
        self.signal("TERM");
        let mut code = None;
        eventually("the proxy ends", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        assert_eq!(code.unwrap().code(), Some(0), "{}", self.log());
    }

    /// How long the proxy, and the upstream in this process, have waited for a processor.
    fn waited_for_processor(&self) -> Duration {
        waited_for_processor(self.child.id()) + waited_for_processor(std::process::id())
    }

    fn memory_kib(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Paths, and when they came.
type Seen = Mutex<Vec<(String, Duration)>>;

/// An upstream that notes each path and when it came, and answers `ok`.
fn origin() -> (String, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, seen) = (format!("http://{}", listener.local_addr().unwrap()), Arc::<Seen>::default());
    let noted = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, noted) = (stream.unwrap(), Arc::clone(&noted));
            std::thread::spawn(move || answer(&stream, &noted));
        }
    });
    (url, seen)
}

fn answer(stream: &TcpStream, seen: &Seen) {
    let mut lines = BufReader::new(stream).lines();
    let mut path = None;
    while let Some(Ok(line)) = lines.next() {
        if path.is_none() {
            path = line.split(' ').nth(1).map(str::to_owned);
        }
        if line.is_empty() {
            seen.lock().unwrap().push((path.take().unwrap(), now()));
            if (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    http::get(address, path, "").unwrap()
}

#[test]
fn the_command_line_is_enough() {
    let (url, seen) = origin();
    let proxy = Proxy::start(&Folder::new(), &["proxy", "--listen", "127.0.0.1:0", "--limit", "2 per day", &url]);
    let address = proxy.address("listening");
    assert!(proxy.banner.contains(&format!(
        "forwarding to {url}: 2 per 1d and 100 in flight for each key, counted in this process alone; others wait"
    )));
    assert!(get(address, "/a").starts_with("HTTP/1.1 200"));
    assert!(get(address, "/b").starts_with("HTTP/1.1 200"));
    assert_eq!(seen.lock().unwrap().len(), 2);
    proxy.stop();
}

#[test]
fn what_cannot_be_is_refused_with_the_remedy() {
    for (words, part) in [
        (&["proxy"][..], "no upstream; name one: tidegate proxy http://127.0.0.1:9000"),
        (&["proxy", "127.0.0.1:9000"], "has no scheme or no host; write http://HOST:PORT"),
        (&["proxy", "http://127.0.0.1:9000/api"], "has a path"),
        (&["proxy", "--limit", "5 per minute burst 9", "http://h"], "leave them out"),
        (&["proxy", "--listen", "1.2.3.4:1", "http://h"], "choose another with [proxy] listen or --listen"),
    ] {
        let output = tidegate(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(part), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_is_reloaded_without_dropping_a_connection() {
    let (folder, (url, _)) = (Folder::new(), origin());
    let text = |limit: &str| {
        format!(
            "[proxy]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nupstream = \"{url}\"\nwhen_limited = \"reject\"\nlimit = \"{limit}\"\n"
        )
    };
    let file = folder.write("proxy.toml", &text("1 per day"));
    let proxy = Proxy::start(&folder, &["proxy", "--config", file.to_str().unwrap()]);
    let mut stream = TcpStream::connect(proxy.address("listening")).unwrap();
    let mut ask = || {
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        let mut bytes = [0; 4096];
        let length = stream.read(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[9..12.min(length)]).into_owned()
    };
    assert_eq!((ask(), ask()), ("200".to_owned(), "429".to_owned()));
    fs::write(&file, text("2 per day")).unwrap();
    proxy.signal("HUP");
    eventually("it is reloaded", || proxy.log().contains("reloaded the proxy"));
    assert_eq!((ask(), ask()), ("200".to_owned(), "429".to_owned()), "on the same connection");
    fs::write(&file, "[proxy]\nlimit = \"2 per fortnight\"\n").unwrap();
    proxy.signal("HUP");
    eventually("it is refused", || proxy.log().contains("is refused, and the policy stays as it was"));
    assert_eq!(ask(), "429");
    assert!(get(proxy.address("admin"), "/readyz").starts_with("HTTP/1.1 200"));
    proxy.stop();
}

/// Nothing took the changes of tokens: they were noted nowhere, and their text grew with each.
#[test]
fn s7_the_proxy_alone_logs_reloads_and_changes_of_tokens() {
    let (folder, (url, _)) = (Folder::new(), origin());
    let token = |args: &[&str]| {
        let file = folder.path("tokens.toml");
        assert!(
            Command::new(TIDEGATE).arg("token").args(args).arg("--file").arg(file).output().unwrap().status.success()
        );
    };
    token(&["new", "--name", "prometheus", "--scope", "read"]);
    let text = |limit: &str| {
        format!(
            "[proxy]\nlisten = \"127.0.0.1:0\"\nupstream = \"{url}\"\nlimit = \"{limit}\"\n[access]\ntokens = \"tokens.toml\"\n\
             [audit]\nlog = true\n"
        )
    };
    let file = folder.write("proxy.toml", &text("1 per day"));
    let proxy = Proxy::start(&folder, &["proxy", "--config", file.to_str().unwrap()]);
    let logs = |what: &str| eventually(what, || proxy.log().contains(what));
    token(&["new", "--name", "second", "--scope", "read"]);
    logs("tokens by change of the file: token second added");
    token(&["revoke", "prometheus"]);
    logs("tokens by change of the file: token prometheus revoked\n");
    fs::write(&file, text("2 per day")).unwrap();
    logs("reload by change of the file: limiter proxy changed, [proxy] changed");
    proxy.signal("HUP");
    logs("reload by SIGHUP: nothing changed");
    let log = proxy.log();
    let entries: Vec<&str> = log.lines().filter(|line| line.starts_with("{\"audit\":{\"number\":")).collect();
    assert!(entries.len() == 4 && entries[1].contains("\"what\":\"tokens\""), "{log}");
    assert!(!folder.path("audit.jsonl").exists());
    proxy.stop();
}

#[test]
fn serve_runs_the_proxy_too() {
    let (folder, (url, _)) = (Folder::new(), origin());
    let text = format!("[doors]\nhttp = \"127.0.0.1:0\"\n[proxy]\nlisten = \"127.0.0.1:0\"\nupstream = \"{url}\"\n");
    let file = folder.write("all.toml", &text);
    let proxy = Proxy::start(&folder, &["serve", "--config", file.to_str().unwrap()]);
    assert!(get(proxy.address("proxy"), "/a").ends_with("ok"));
    assert!(get(proxy.address("listening"), "/readyz").starts_with("HTTP/1.1 200"));
    proxy.stop();
}

/// How many wait. 15,000 with the variable `TIDEGATE_WAITERS` (the file limit must allow it).
const WAITERS: usize = 300;
const IN_FLIGHT: usize = 8;

/// A long line is held in little memory, and released in order soon after its window begins.
#[test]
fn p3_p5_a_long_line_is_released_in_order_within_two_seconds() {
    let places = release_a_line(IN_FLIGHT);
    // Slots are given in order; on the way to the upstream a thread may be overtaken while it does not run.
    let far = places.iter().enumerate().filter(|(place, number)| number.abs_diff(*place) > 2 * IN_FLIGHT).count();
    assert!(far * 20 <= places.len(), "{far} of {} came far from their place", places.len());
}

/// A file with a store and no `[proxy]` table: the store was once ignored without a word, and three replicas started 27
/// where the limit was 9.
#[test]
fn the_store_counts_without_a_proxy_table_from_the_file_or_the_environment() {
    let (folder, (url, _seen)) = (Folder::new(), origin());
    let store = "redis://127.0.0.1:1";
    let file = folder.write("store.toml", &format!("[store]\nkind = \"redis\"\nurl = \"{store}\"\n"));
    let empty = folder.write("empty.toml", "");
    let variables = [("TIDEGATE_STORE__KIND", "redis"), ("TIDEGATE_STORE__URL", store)];
    let listen = ["--listen", "127.0.0.1:0", &url];
    for (words, variables) in [
        (&["proxy", "--config", file.to_str().unwrap()][..], &[][..]),
        (&["proxy", "--config", empty.to_str().unwrap()], &variables),
        (&["proxy"], &variables),
    ] {
        let proxy = Proxy::start_in(&folder, &[words, &listen].concat(), variables);
        assert!(proxy.banner.contains(&format!("counted with all replicas at {store}")), "{}", proxy.banner);
        // Nobody can say how many have started: 503, not a start.
        assert!(get(proxy.address("listening"), "/a").starts_with("HTTP/1.1 503"));
    }
}

/// A file whose replicas count apart looked like one whose replicas count together.
#[test]
fn validate_says_what_is_counted_with_whom() {
    let folder = Folder::new();
    let check = |store: &str, proxy: &str, expected: &str| {
        let upstream = if proxy.is_empty() { "" } else { "[proxy]\nupstream = \"http://127.0.0.1:9000\"\n" };
        let file = folder.write("whom.toml", &format!("{store}\n{upstream}{proxy}\n"));
        let output = tidegate(&["validate", file.to_str().unwrap()]);
        let said = server::stdout(&output);
        assert_eq!(said.split_once(" is valid: ").unwrap().1, expected, "{}", stderr(&output));
    };
    let redis = "[store]\nkind = \"redis\"\nurl = \"redis://:secret@127.0.0.1:6379\"";
    // Never the password.
    let at = "redis://127.0.0.1:6379";
    check("", "", "0 limiters\n");
    check(redis, "", &format!("0 limiters; counted at {at} with all that use it\n"));
    let proxy = "limit = \"9 per minute\"";
    check("", proxy, "1 limiter\nproxy: 9 per 1m for each key, counted in this process alone\n");
    let exact = format!(
        "1 limiter; counted at {at} with all that use it\nproxy: 9 per 1m for each key, counted with all replicas at {at}\n"
    );
    check(redis, proxy, &exact);
    let third = "limit = \"9 per minute\"\nreplicas = \"share\"\nreplica = \"1/3\"";
    check("", third, "1 limiter\nproxy: 9 per 1m for each key, of which this one has part 1 of 3\n");
}

/// The HTTP/2 library warned of every client that took its requests back at once: a line of the log for each connection.
#[test]
fn a_client_that_breaks_the_rules_of_http2_writes_no_log_lines() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // GET / of the authority "a", and the stream taken back.
    const REQUEST: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'a'];
    let (folder, (url, _seen)) = (Folder::new(), origin());
    let proxy = Proxy::start(&folder, &["proxy", "--listen", "127.0.0.1:0", &url]);
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags][..], &stream.to_be_bytes(), payload].concat()
    };
    let mut sent = PREFACE.to_vec();
    for stream in (1..400).step_by(2) {
        sent.extend(frame(1, 5, stream, REQUEST));
        sent.extend(frame(3, 0, stream, &[0, 0, 0, 8]));
    }
    let mut client = TcpStream::connect(proxy.address("listening")).unwrap();
    client.write_all(&sent).unwrap();
    let mut answer = Vec::new();
    // It is cut, by a GOAWAY and the end.
    let _ = client.read_to_end(&mut answer);
    assert!(answer.windows(4).any(|bytes| bytes == [0, 0, 0, 11]), "ENHANCE_YOUR_CALM: {answer:?}");
    let log = proxy.log.clone();
    proxy.stop();
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains("stopped") && !said.contains("reset"), "{said}");
}

/// One at a time nobody can be overtaken: the upstream sees them as they came.
#[test]
fn p3_one_at_a_time_a_long_line_comes_to_the_upstream_as_it_stood() {
    let places = release_a_line(1);
    assert!(places.is_sorted(), "{places:?}");
}

/// Has a line stand for a window and leave in the next; the numbers of those in line, as the upstream saw them. If the machine
/// was too slow for the line to stand within its window: again with a longer window, and then with fewer in line.
fn release_a_line(in_flight: usize) -> Vec<usize> {
    let waiters: usize = number("TIDEGATE_WAITERS", WAITERS);
    let shortest = Duration::from_secs(if waiters > 5_000 { 60 } else { 4 });
    let mut tries = [(1, 1), (2, 1), (4, 3), (8, 6)].into_iter();
    let line = tries.find_map(|(longer, fewer)| line_up_and_leave(waiters / fewer, in_flight, shortest * longer));
    line.unwrap_or_else(|| panic!("{} could not line up within a window of {:?}", waiters / 6, 8 * shortest))
}

/// The same within a given window, if the line stood before its end.
fn line_up_and_leave(waiters: usize, in_flight: usize, period: Duration) -> Option<Vec<usize>> {
    let (folder, (url, seen)) = (Folder::new(), origin());
    let text = format!(
        "[proxy]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nupstream = \"{url}\"\nlimit = \"{waiters} per {}s\"\n\
         in_flight = {in_flight}\nmax_waiting = {waiters}\nmax_waiting_per_client = {waiters}\nmax_upstream = 100\nmax_connections = {}\n",
        period.as_secs(),
        // One address may have nine tenths of them.
        waiters + waiters / 5 + 100
    );
    let proxy = Proxy::start(&folder, &["proxy", "--config", folder.write("p.toml", &text).to_str().unwrap()]);
    let address = proxy.address("listening");
    assert!(!proxy.log().contains("raise ulimit"), "the file limit is too low for {waiters}: {}", proxy.log());
    // One connection for all questions: it is asked again and again while the window passes.
    let mut admin = TcpStream::connect(proxy.address("admin")).unwrap();
    let mut has = |name: &str, count: usize| {
        http::exchange(&mut admin, "GET /debug/vars", "").1.contains(&format!("\"{name}\":{count},"))
    };
    let due = next_window(period) + period;
    use_up(address, waiters);
    seen.lock().unwrap().clear();
    let before = proxy.memory_kib();
    let mut streams = Vec::new();
    for number in 0..waiters {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /?{number} HTTP/1.1\r\nHost: t\r\nUser-Agent: waiter\r\nAccept: */*\r\n\r\n").unwrap();
        streams.push(stream);
        // One after the other, so that the order is known.
        while !has("waiting", number + 1) {
            if now() >= due {
                println!("{number} of {waiters} stood in line when {period:?} were over");
                return None;
            }
        }
    }
    let held = proxy.memory_kib();
    let in_line = proxy.waited_for_processor();
    std::thread::sleep(due.saturating_sub(now()));
    eventually("all have left the line", || has("waiting", 0) && has("in_flight", 0));
    let seen = seen.lock().unwrap().clone();
    // Of the time until the last one came, the proxy and the upstream had what was not somebody else's.
    let (took, others) =
        (seen.last().unwrap().1.saturating_sub(due), proxy.waited_for_processor().saturating_sub(in_line));
    let each = held.saturating_sub(before).div_ceil(waiters);
    println!(
        "{waiters} waiters: {held} KiB resident ({before} before), {each} KiB each; the last left {took:?} after the boundary, \
         {others:?} of them in line for a processor"
    );
    assert_eq!(seen.len(), waiters);
    assert!(
        took.saturating_sub(others) < Duration::from_secs(2),
        "{took:?}, {others:?} of them in line for a processor"
    );
    assert!(each <= 24, "{each} KiB each");
    drop(streams);
    proxy.stop();
    let number = |(path, at): &(String, Duration)| {
        assert!(*at >= due, "{path} came {:?} before its window", due - *at);
        path.split_once('?').unwrap().1.parse().unwrap()
    };
    Some(seen.iter().map(number).collect())
}

/// Uses up so many starts of `/`.
fn use_up(address: SocketAddr, starts: usize) {
    let stream = TcpStream::connect(address).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        for _ in 0..starts {
            writer.write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        }
    });
    let answers = BufReader::new(stream).lines().map_while(Result::ok).filter(|line| line.contains("HTTP/1.1 200"));
    assert_eq!(answers.take(starts).count(), starts);
    sending.join().unwrap();
}

/// Waits for the next window, and tells when it began.
fn next_window(period: Duration) -> Duration {
    let number = now().as_micros() / period.as_micros() + 1;
    let next = Duration::from_micros(u64::try_from(number * period.as_micros()).unwrap());
    std::thread::sleep(next - now() + Duration::from_millis(20));
    next
}

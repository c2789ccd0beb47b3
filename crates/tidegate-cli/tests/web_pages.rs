//! Web pages in a real browser on this machine: what they can and cannot do to a server on loopback (promise S6).
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const POLICY: &str = "[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\nresp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nby = [\"user\"]\nlimits = [\"5 per hour\"]\n\
                      [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n";

/// All that a page can try; it reports `name outcome` for each, and `done`. TARGET is the server as the page calls it,
/// RESP and GRPC are the ports of its other doors.
const PAGE: &str = r#"<!doctype html><title>page</title><script type="module">
const target = 'TARGET';
const say = (line) => fetch('/said?' + encodeURIComponent(line));
const attempt = async (name, work) => {
  let outcome;
  try { outcome = await Promise.race([work(), new Promise((_, no) => setTimeout(() => no('late'), 15000))]); } catch (error) { outcome = 'refused'; }
  await say(name + ' ' + outcome);
};
const ask = (path, options) => async () => { const answer = await fetch(target + path, options); return answer.ok ? 'read ' + (await answer.text()).length : 'status ' + answer.status; };
const loaded = (element, attribute, path) => () => new Promise((done) => {
  const it = document.createElement(element);
  it.onload = () => done('loaded'); it.onerror = () => done('refused');
  it[attribute] = target + path; document.body.append(it);
});
await attempt('keys', ask('/v1/limiters/api/keys'));
await attempt('hit', ask('/v1/hit', { method: 'POST', body: '{"attributes":{"user":"victim"}}' }));
await attempt('allowed', ask('/v1/allowed?user=victim'));
await attempt('opaque-hit', async () => { await fetch(target + '/v1/hit', { method: 'POST', mode: 'no-cors', body: '{"attributes":{"user":"victim"}}' }); return 'sent'; });
await attempt('opaque-allowed', async () => { await fetch(target + '/v1/allowed?user=victim', { mode: 'no-cors' }); return 'sent'; });
await attempt('image', loaded('img', 'src', '/v1/allowed?user=victim'));
await attempt('script', loaded('script', 'src', '/v1/allowed?user=victim'));
await attempt('frame', async () => { const it = document.createElement('iframe'); it.src = target + '/v1/allowed?user=victim'; document.body.append(it); await new Promise((done) => { it.onload = done; }); return 'sent'; });
await attempt('form', async () => { const it = document.createElement('form'); it.method = 'post'; it.action = target + '/v1/streams/orders/events'; it.target = 'sink'; it.enctype = 'text/plain';
  const field = document.createElement('input'); field.name = 'a'; field.value = 'b'; it.append(field);
  const sink = document.createElement('iframe'); sink.name = 'sink'; document.body.append(sink, it); it.submit(); await new Promise((done) => { sink.onload = done; }); return 'sent'; });
await attempt('feed', () => new Promise((done) => { const feed = new EventSource(target + '/v1/streams/orders/feed'); feed.onmessage = () => done('read'); feed.onerror = () => done('refused'); }));
await attempt('socket', () => new Promise((done) => { const it = new WebSocket((target || location.origin).replace('http', 'ws') + '/ws'); it.onopen = () => done('open'); it.onerror = () => done('refused'); }));
await attempt('block', ask('/v1/limiters/api/keys/victim/block', { method: 'PUT', body: '{"for":"1d"}' }));
// The other doors, under a name that was pointed at them.
const commands = '\r\nTG.HIT api victim\r\nTG.BLOCK api victim 60000\r\n*3\r\n$6\r\nTG.HIT\r\n$3\r\napi\r\n$6\r\nvictim\r\n';
const blindly = (url, options) => async () => { await fetch(url, { mode: 'no-cors', ...options }); return 'sent'; };
await attempt('resp-post', blindly('http://rebound.example:RESP/', { method: 'POST', body: commands }));
await attempt('resp-get', blindly('http://rebound.example:RESP/TG.HIT%20api%20victim', {}));
await attempt('resp-tls', blindly('https://rebound.example:RESP/', { method: 'POST', body: commands }));
await attempt('grpc-post', blindly('http://rebound.example:GRPC/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit', { method: 'POST', body: commands }));
await say('done');
</script>"#;

fn page(server: &Server, target: &str) -> String {
    let port = |address: &str| address.rsplit_once(':').unwrap().1.to_owned();
    PAGE.replace("TARGET", target).replace("RESP", &port(server.resp())).replace("GRPC", &port(server.grpc()))
}

/// A server of one page, under any name, which collects what the page says. Requests for other paths it passes on to `behind`: a page
/// whose name was pointed to the server's address keeps asking its own origin.
fn serve_page(page: String, behind: Option<String>) -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, said) = channel();
    std::thread::spawn(move || {
        for wire in listener.incoming().map_while(Result::ok) {
            let (page, sender, behind) = (page.clone(), sender.clone(), behind.clone());
            std::thread::spawn(move || answer(wire, &page, &sender, behind.as_deref()));
        }
    });
    (port, said)
}

fn answer(mut wire: TcpStream, page: &str, sender: &std::sync::mpsc::Sender<String>, behind: Option<&str>) {
    let mut head = Vec::new();
    let mut reader = BufReader::new(wire.try_clone().unwrap());
    while reader.read_until(b'\n', &mut head).unwrap_or(0) > 0 && !head.ends_with(b"\r\n\r\n") {}
    let text = String::from_utf8_lossy(&head).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    if let Some(line) = path.strip_prefix("/said?") {
        let _ = sender.send(line.replace("%20", " "));
        let _ = wire.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
    } else if path == "/" || behind.is_none() {
        let _ = write!(
            wire,
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{page}",
            page.len()
        );
    } else if let Some(behind) = behind {
        // As it came, Host and Origin included: to the server it is the browser itself.
        let mut server = TcpStream::connect(behind).unwrap();
        server
            .write_all(
                text.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")
                    .replace("connection: keep-alive\r\n", "")
                    .replace("Connection: keep-alive\r\n", "")
                    .as_bytes(),
            )
            .unwrap();
        let length =
            text.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        let _ = reader.read_exact(&mut body);
        let _ = server.write_all(&body);
        let mut back = Vec::new();
        server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let _ = server.read_to_end(&mut back);
        let _ = wire.write_all(&back);
    }
}

struct Browser(Child);

impl Browser {
    fn open(folder: &Folder, url: &str) -> Browser {
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        chromium.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
        // Every name leads to this machine, as after DNS rebinding, and no private-network rule of the browser's helps.
        chromium.args(["--host-resolver-rules=MAP *.example 127.0.0.1", "--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights,BlockInsecurePrivateNetworkRequests"]);
        chromium.args([
            "--remote-debugging-port=0",
            &format!("--user-data-dir={}", folder.path("browser").display()),
            url,
        ]);
        Browser(
            chromium
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("chromium is installed by scripts/test"),
        )
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the page said, until it was done.
fn outcomes(said: &Receiver<String>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let line =
            said.recv_timeout(Duration::from_secs(90)).unwrap_or_else(|_| panic!("the page is silent after {all:?}"));
        if line == "done" {
            return all;
        }
        all.push(line);
    }
}

/// Nothing was charged, submitted, blocked or read: neither by the page, nor by what it could not see the outcome of.
#[track_caller]
fn nothing_happened(server: &Server, outcomes: &[String]) {
    assert_eq!(outcomes.len(), 16, "{outcomes:?}");
    for outcome in outcomes {
        let (name, told) = outcome.split_once(' ').unwrap();
        // A page cannot see what became of these; the server's state can.
        let is_blind = matches!(name, "opaque-hit" | "opaque-allowed" | "frame" | "form" | "grpc-post");
        assert!(told == "refused" || told == "status 403" || is_blind, "{outcome}");
    }
    let (_, limiters) = server.json(&["limiters"]);
    let counts = &limiters["limiters"][0]["counts"];
    assert_eq!(
        (counts["allowed"].as_u64(), counts["denied"].as_u64(), &limiters["limiters"][0]["entries"]),
        (Some(0), Some(0), &0.into()),
        "{limiters}"
    );
    let streams = Command::new("curl").args(["-s", &format!("{}/v1/streams", server.url)]).output().unwrap();
    let streams: serde_json::Value = serde_json::from_slice(&streams.stdout).unwrap();
    assert_eq!(streams["streams"][0]["events"], 0, "{streams}");
    assert_eq!(server.json(&["blocked", "api"]).1["keys"], serde_json::json!([]));
}

/// A page on loopback could read keys and spend quotas: GET /v1/allowed charges, and reads did not look at the Host.
#[test]
fn s6_a_page_of_another_site_neither_reads_nor_charges() {
    let folder = Folder::new();
    let server = Server::start(&folder, Some(&folder.write("t.toml", POLICY)));
    let (port, said) = serve_page(page(&server, &server.url), None);
    let _browser = Browser::open(&folder, &format!("http://evil.example:{port}/"));
    nothing_happened(&server, &outcomes(&said));
}

/// The page's own name points to the server: for the browser it asks its own origin, and may read every answer.
#[test]
fn s6_a_page_whose_name_was_rebound_neither_reads_nor_charges() {
    let folder = Folder::new();
    let server = Server::start(&folder, Some(&folder.write("t.toml", POLICY)));
    let behind = server.url.strip_prefix("http://").unwrap().to_owned();
    let (port, said) = serve_page(page(&server, ""), Some(behind));
    let _browser = Browser::open(&folder, &format!("http://evil.example:{port}/"));
    let outcomes = outcomes(&said);
    nothing_happened(&server, &outcomes);
    assert!(outcomes.contains(&"keys status 403".to_owned()), "the page reads that it is refused: {outcomes:?}");
}

/// The same page does all of it but what an operator does, once its origin is allowed: so the refusals above are not the browser's.
#[test]
fn s6_a_page_of_an_allowed_origin_asks_and_reads() {
    let folder = Folder::new();
    let (target, page) = (tidegate_testkit::servers::free_port(), PAGE);
    let (port, said) = serve_page(page.replace("TARGET", &format!("http://127.0.0.1:{target}")), None);
    let policy = POLICY.replace("127.0.0.1:0", &format!("127.0.0.1:{target}")).replace(
        &format!("udp = \"127.0.0.1:{target}\"\ngrpc = \"127.0.0.1:{target}\"\nresp = \"127.0.0.1:{target}\"\n"),
        "",
    );
    let config =
        folder.write("t.toml", &format!("[access]\nallowed_origins = [\"http://app.example:{port}\"]\n{policy}"));
    let server = Server::start(&folder, Some(&config));
    let _browser = Browser::open(&folder, &format!("http://app.example:{port}/"));
    let outcomes = outcomes(&said);
    for (name, expected) in [
        ("keys ", "keys read"),
        ("hit ", "hit read"),
        ("allowed ", "allowed read"),
        ("feed ", "feed read"),
        ("socket ", "socket open"),
    ] {
        let told = outcomes.iter().find(|outcome| outcome.starts_with(name));
        assert!(told.is_some_and(|told| told.starts_with(expected)), "{name}: {outcomes:?}");
    }
    eventually("both hits are charged", || {
        server.json(&["limiters"]).1["limiters"][0]["counts"]["allowed"].as_u64() >= Some(2)
    });
}

//! Nothing is hidden inside what we forward: nginx, haproxy and a second hyper behind the proxy all see exactly
//! the requests that the proxy forwarded, for hundreds of malformed and odd inputs (P8).
//!
//! Each input is sent on a connection of its own, with a marker in its path; a request that any upstream sees
//! without a marker, or more of them than the proxy forwarded, was smuggled.

use crate::support::{Origin, WAIT_TIME_MAX, policy, proxy, runtime, var};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_proxy::Upstream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What a smuggler hides.
const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n";

/// Odd inputs; `@` becomes a marker that is different for each.
fn inputs() -> Vec<String> {
    let mut all = Vec::new();
    let framings = framings();
    for (fields, body) in &framings {
        for line in ["POST /@ HTTP/1.1", "GET /@ HTTP/1.1", "POST /@ HTTP/1.0"] {
            all.push(format!("{line}\r\nHost: t\r\n{fields}\r\n{body}{HIDDEN}"));
        }
    }
    for head in odd_heads() {
        all.push(format!("{head}{HIDDEN}"));
    }
    all.into_iter().enumerate().map(|(number, text)| text.replace('@', &format!("marked-{number}"))).collect()
}

/// Field lines that say how long the body is, and what follows the head.
fn framings() -> Vec<(String, String)> {
    let chunked_values = [
        "chunked",
        "Chunked",
        " chunked",
        "chunked ",
        "\tchunked",
        "chunked\t",
        "\"chunked\"",
        "chunked, identity",
        "identity, chunked",
        "identity",
        "gzip, chunked",
        "chunked,",
        ",chunked",
        "chunked;x=y",
        "xchunked",
        "chunkedx",
        "x chunked",
        "chunk\u{1}ed",
        "\u{b}chunked",
        "chunked\u{b}",
        "",
        "chunked\r\n , identity",
        "chunked\r\nX: y",
    ];
    let lengths = [
        "0",
        "5",
        "+5",
        "-5",
        "5,5",
        "5, 5",
        "0x5",
        "5 5",
        " 5",
        "5 ",
        "05",
        "5;",
        "5.0",
        "",
        "٥",
        "99999999999999999999",
        "1e1",
    ];
    let chunks = [
        "0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\r\n",
        "5;ext=1\r\nhello\r\n0\r\n\r\n",
        "5\nhello\n0\n\n",
        "5\r\nhello0\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "0\r\nContent-Length: 5\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff1\r\nhello\r\n",
        "-1\r\n\r\n",
        "\r\n0\r\n\r\n",
        "5;\nhello\r\n0\r\n\r\n",
        "5;a\r\nhello\r\n0;a\r\n\r\n",
        "00000000000000000005\r\nhello\r\n0\r\n\r\n",
    ];
    let mut all = Vec::new();
    for value in chunked_values {
        all.push((format!("Transfer-Encoding: {value}\r\n"), chunks[1].to_owned()));
    }
    for length in lengths {
        all.push((format!("Content-Length: {length}\r\n"), "hello".to_owned()));
        all.push((format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), chunks[1].to_owned()));
    }
    for chunk in chunks {
        all.push(("Transfer-Encoding: chunked\r\n".to_owned(), chunk.to_owned()));
    }
    for twice in ["Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 0\r\n"] {
        all.push((twice.to_owned(), "hello".to_owned()));
    }
    for twice in [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer_Encoding: chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "\u{0}Transfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nConnection: Content-Length\r\n",
        "Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding\r\n",
        "Content-Length : 5\r\n",
        "Content_Length: 5\r\n",
        "content-length: 5\r\nCONTENT-LENGTH: 5\r\n",
        "Content-Length: 5\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n",
        "Content-Length: 5\r\nExpect: 100-continue\r\n",
        "Content-Length: 5\r\nExpect: nonsense\r\n",
    ] {
        all.push((twice.to_owned(), chunks[1].to_owned()));
    }
    all
}

fn odd_heads() -> Vec<String> {
    let end = "Host: t\r\n\r\n";
    let mut all: Vec<String> = [
        "GET /@ HTTP/1.1\n",
        "GET /@ HTTP/1.1\r",
        "GET  /@ HTTP/1.1\r\n",
        "GET /@  HTTP/1.1\r\n",
        "GET\t/@ HTTP/1.1\r\n",
        "GET /@ HTTP/1.2\r\n",
        "GET /@ HTTP/2.0\r\n",
        "GET /@ http/1.1\r\n",
        "GET /@\r\n",
        "GET /@ HTTP/1.1 \r\n",
        " GET /@ HTTP/1.1\r\n",
        "\r\nGET /@ HTTP/1.1\r\n",
        "\nGET /@ HTTP/1.1\r\n",
        "\r\n\r\nGET /@ HTTP/1.1\r\n",
        "G\u{0}T /@ HTTP/1.1\r\n",
        "GET /@\u{0} HTTP/1.1\r\n",
        "GET /@#x HTTP/1.1\r\n",
        "GET /@?x#y HTTP/1.1\r\n",
        "GET /@\u{7f} HTTP/1.1\r\n",
        "GET /@%0d%0aX:%20y HTTP/1.1\r\n",
        "GET /@%00 HTTP/1.1\r\n",
        "GET /../@ HTTP/1.1\r\n",
        "GET /a/../@ HTTP/1.1\r\n",
        "GET //@ HTTP/1.1\r\n",
        "GET http://t/@ HTTP/1.1\r\n",
        "GET http:///@ HTTP/1.1\r\n",
        "GET @ HTTP/1.1\r\n",
        "GET ? HTTP/1.1\r\n",
        "GET * HTTP/1.1\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "CONNECT t:80 HTTP/1.1\r\n",
        "get /@ HTTP/1.1\r\n",
        "GETX /@ HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n",
        "GET /@ HTTP/1.1\r\nX\r\n",
        "GET /@ HTTP/1.1\r\n: y\r\n",
        "GET /@ HTTP/1.1\r\nX Y: z\r\n",
        "GET /@ HTTP/1.1\r\nX:\r\n",
        "GET /@ HTTP/1.1\r\nX: y\r\n folded\r\n",
        "GET /@ HTTP/1.1\r\n folded\r\n",
        "GET /@ HTTP/1.1\r\nX: y\u{0}\r\n",
        "GET /@ HTTP/1.1\r\nX: \u{1}\r\n",
        "GET /@ HTTP/1.1\r\nX: caf\u{e9}\r\n",
        "GET /@ HTTP/1.1\r\nX\u{e9}: y\r\n",
        "GET /@ HTTP/1.1\r\nHost: u\r\n",
        "GET /@ HTTP/1.1\r\nHost: u:80:90\r\n",
        "GET /@ HTTP/1.1\r\nConnection: Host\r\n",
        "GET /@ HTTP/1.1\r\nConnection: close, X-Forwarded-For\r\n",
        "HEAD /@ HTTP/1.1\r\n",
        "DELETE /@ HTTP/1.1\r\n",
        "TRACE /@ HTTP/1.1\r\n",
        "GET /@ HTTP/1.1\r\nTE: trailers, x\r\n",
        "GET /@ HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    ]
    .iter()
    .map(|start| format!("{start}{end}"))
    .collect();
    all.push("GET /@ HTTP/1.1\r\n\r\n".to_owned());
    all.push("GET /@ HTTP/1.1\r\nHost:\r\n\r\n".to_owned());
    all.push("GET /@ HTTP/1.1\r\nHost: t\r\n\n".to_owned());
    all.push("GET /@ HTTP/1.1\r\nHost: t\n\r\n".to_owned());
    all.push("GET /@ HTTP/1.1\nHost: t\n\n".to_owned());
    all
}

/// Sends every input through a proxy to this upstream; returns how many requests the proxy forwarded, and how
/// many it refused. The smuggler's own request may be among the forwarded: it stands there in the open when what
/// precedes it has one reading.
fn run(upstream: SocketAddr) -> (usize, usize) {
    let upstream = Upstream::new(&format!("http://{upstream}"), None).unwrap();
    let proxy = proxy(policy(upstream, "100000 per day"));
    runtime().block_on(async {
        let mut refused = 0;
        for input in inputs() {
            let answer = exchange(proxy.address(), input.as_bytes()).await;
            refused += answer.matches("HTTP/1.1 400").count() + answer.matches("HTTP/1.0 400").count();
        }
        (usize::try_from(var(&proxy, "forwarded").await).unwrap(), refused)
    })
}

async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    // What waits for more bytes is left alone after a moment.
    while let Ok(Ok(1..)) = timeout(Duration::from_millis(60), stream.read_buf(&mut answer)).await {}
    String::from_utf8_lossy(&answer).into_owned()
}

/// Every input is seen at most once, and what is seen beside the inputs is only what stood in the open.
#[track_caller]
fn check(name: &str, seen: &[String], forwarded: usize, refused: usize) {
    let (mut marked, mut open) = (BTreeMap::<&str, usize>::new(), 0);
    for line in seen {
        let path = line.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
        match path {
            "/smuggled" => open += 1,
            // haproxy refuses a Host with two ports: one request, read as one.
            "*" | "<BADREQ>" => {}
            path => *marked.entry(path).or_default() += 1,
        }
    }
    println!(
        "{name}: {} inputs, {} seen, {open} in the open, {forwarded} forwarded, {refused} refused",
        inputs().len(),
        seen.len()
    );
    assert!(inputs().len() >= 200);
    for (path, times) in &marked {
        assert!(path.starts_with("/marked-"), "{name} saw {path}");
        assert_eq!(*times, 1, "{name} saw {path} {times} times");
    }
    assert!(refused >= 100, "{name}: only {refused} were refused");
    assert!(marked.len() >= 50, "{name}: only {} were forwarded", marked.len());
    assert_eq!(seen.len(), forwarded, "{name} saw more or fewer requests than the proxy forwarded");
}

#[test]
fn p8_a_second_hyper_sees_what_was_forwarded() {
    let origin = Origin::start();
    let (forwarded, refused) = run(origin.address);
    let seen: Vec<String> = origin.seen().into_iter().map(|seen| seen.line).collect();
    check("hyper", &seen, forwarded, refused);
}

/// A server of another kind, which logs each request's first line; ended with the test.
struct Server {
    child: Child,
    folder: PathBuf,
}

impl Server {
    fn start(name: &str, config: impl Fn(&str, u16) -> (Vec<String>, String)) -> (Server, SocketAddr) {
        let folder = std::env::temp_dir().join(format!("tidegate-smuggling-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (words, text) = config(folder.to_str().unwrap(), address.port());
        std::fs::write(folder.join("config"), text).unwrap();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child =
            Command::new(name).args(words).stdout(log.try_clone().unwrap()).stderr(log).stdin(Stdio::null()).spawn();
        let server =
            Server { child: child.unwrap_or_else(|error| panic!("{name}: {error}; run scripts/test")), folder };
        let start = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(start.elapsed() < WAIT_TIME_MAX, "{name} did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        (server, address)
    }

    /// The lines of a log that hold a request, from the method on.
    fn seen(&self, file: &str) -> Vec<String> {
        std::thread::sleep(Duration::from_millis(300));
        let file = std::fs::File::open(self.folder.join(file)).unwrap();
        let lines = BufReader::new(file).split(b'\n').map(|line| String::from_utf8_lossy(&line.unwrap()).into_owned());
        lines.filter_map(|line| line.split_once("seen: ").map(|(_, request)| request.to_owned())).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn p8_nginx_sees_what_was_forwarded() {
    let (server, address) = Server::start("nginx", |folder, port| {
        let text = format!(
            "daemon off; master_process off; pid {folder}/pid; events {{}}
http {{ log_format seen 'seen: $request'; access_log {folder}/access seen; keepalive_requests 100000;
client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
server {{ listen 127.0.0.1:{port}; location / {{ return 200 ok; }} }} }}"
        );
        (vec!["-e".to_owned(), "stderr".to_owned(), "-c".to_owned(), format!("{folder}/config")], text)
    });
    let (forwarded, refused) = run(address);
    check("nginx", &server.seen("access"), forwarded, refused);
}

#[test]
fn p8_haproxy_sees_what_was_forwarded() {
    let (server, address) = Server::start("haproxy", |folder, port| {
        let text = format!(
            "global\n  log stdout format raw local0\ndefaults\n  mode http\n  option dontlognull\n  timeout client 10s\n  timeout server 10s\n  timeout connect 1s
frontend f\n  bind 127.0.0.1:{port}\n  log global\n  log-format \"seen: %HM %HU %HV\"\n  http-request return status 200 content-type text/plain string ok\n"
        );
        (vec!["-db".to_owned(), "-f".to_owned(), format!("{folder}/config")], text)
    });
    let (forwarded, refused) = run(address);
    check("haproxy", &server.seen("log"), forwarded, refused);
}

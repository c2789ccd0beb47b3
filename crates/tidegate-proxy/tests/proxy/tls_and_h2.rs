//! HTTP/2 from the client, TLS to the upstream.

use crate::support::{Origin, eventually, get, next_window, policy, proxy, proxy_with, runtime, status, var};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_proxy::{Policy, Settings, Upstream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Sender {
    let stream = TcpStream::connect(address).await.unwrap();
    let io = TokioIo::new(stream);
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn ask(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://test.example{path}")).body(Full::default()).unwrap()
}

#[test]
fn http2_streams_wait_and_leave_one_by_one() {
    const PERIOD: Duration = Duration::from_secs(2);
    let origin = Origin::start();
    let proxy = proxy(origin.policy("2 per 2s"));
    runtime().block_on(async {
        next_window(PERIOD).await;
        let mut sender = connect(proxy.address()).await;
        for _ in 0..2 {
            let answer = sender.send_request(ask("/a")).await.unwrap();
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
        }
        assert_eq!(origin.seen()[0].field("host"), Some("test.example"));
        let leaving: Vec<_> = (0..2).map(|_| tokio::spawn(sender.send_request(ask("/a")))).collect();
        eventually("two wait", async || var(&proxy, "waiting").await == 2).await;
        let staying: Vec<_> = (0..2).map(|_| tokio::spawn(sender.send_request(ask("/a")))).collect();
        eventually("four wait", async || var(&proxy, "waiting").await == 4).await;
        leaving.iter().for_each(tokio::task::JoinHandle::abort);
        eventually("two have left", async || var(&proxy, "waiting").await == 2).await;
        for answer in staying {
            assert_eq!(answer.await.unwrap().unwrap().status(), 200);
        }
        assert_eq!(origin.count(), 4);
    });
}

/// HTTP/2 sends each cookie in a field of its own; servers of HTTP/1 read one.
#[test]
fn cookies_of_http2_reach_an_upstream_of_http1_as_one_field() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("2 per day"));
    runtime().block_on(async {
        let request = Request::get("http://test.example/a").header("cookie", "a=1").header("cookie", "b=2");
        let answer = connect(proxy.address()).await.send_request(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
    });
    let cookies: Vec<_> = origin.seen()[0].fields.iter().filter(|(name, _)| name == "cookie").cloned().collect();
    assert_eq!(cookies, [("cookie".to_owned(), "a=1; b=2".to_owned())]);
}

#[test]
fn http2_and_http1_share_the_port_and_the_limit() {
    let origin = Origin::start();
    let proxy = proxy(Policy { max_waiting: 0, ..origin.policy("2 per day") });
    runtime().block_on(async {
        assert_eq!(connect(proxy.address()).await.send_request(ask("/a")).await.unwrap().status(), 200);
        assert_eq!(status(&get(proxy.address(), "/a").await), 200);
        assert_eq!(connect(proxy.address()).await.send_request(ask("/a")).await.unwrap().status(), 503);
    });
}

/// A client with windows of so many bytes, which reads no body unless it is told to.
async fn connect_with_window(address: SocketAddr, bytes: u32) -> Sender {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let mut http = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(bytes).initial_connection_window_size(1 << 20);
    let (sender, connection) = http.handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// An upstream whose answers are longer than any window.
fn long_answers() -> Origin {
    Origin::with(|_| async { hyper::Response::new(Full::new(Bytes::from(vec![b'x'; 1 << 20])).boxed()) })
}

fn short_client_timeout() -> Settings {
    Settings { client_timeout: Duration::from_secs(1), workers: 1, ..Settings::default() }
}

/// A hundred streams of one connection that granted no window once held a hundred slots for as long as they liked.
#[test]
fn p6_http2_clients_that_grant_no_window_lose_their_slots() {
    let origin = long_answers();
    let proxy = proxy_with(origin.policy("1000 per day"), short_client_timeout());
    runtime().block_on(async {
        let mut sender = connect_with_window(proxy.address(), 1_000).await;
        let mut unread = Vec::new();
        for _ in 0..20 {
            unread.push(sender.send_request(ask("/a")).await.unwrap());
        }
        // On a busy machine the first may have lost theirs by now.
        assert_eq!(var(&proxy, "forwarded").await, 20);
        eventually("all slots are back", async || var(&proxy, "in_flight").await == 0).await;
        // The rest of the answer is not made up.
        let body = unread.pop().unwrap().into_body().collect().await;
        assert!(body.is_err() || body.unwrap().to_bytes().len() < 1 << 20);
    });
}

#[test]
fn http2_clients_that_read_slowly_get_all() {
    let origin = long_answers();
    let proxy = proxy_with(origin.policy("1000 per day"), short_client_timeout());
    runtime().block_on(async {
        let mut sender = connect_with_window(proxy.address(), 32 << 10).await;
        let mut body = sender.send_request(ask("/a")).await.unwrap().into_body();
        let (start, mut read) = (std::time::Instant::now(), 0);
        while let Some(frame) = body.frame().await {
            read += frame.unwrap().data_ref().map_or(0, Bytes::len);
            // For longer than the limit, and a piece within each.
            if start.elapsed() < Duration::from_secs(4) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        assert_eq!(read, 1 << 20);
        eventually("the slot is back", async || var(&proxy, "in_flight").await == 0).await;
    });
}

/// HTTP/2 frames its bodies itself and reads lengths kindly: an empty one as 0, the first of two. They were once
/// written to the upstream as they came, beside our own framing.
#[test]
fn p8_http2_lengths_are_settled_before_they_are_forwarded() {
    let origin = Origin::start();
    let proxy = proxy(origin.policy("100 per day"));
    let post = |lengths: &[&str], body: &'static str| {
        let request = Request::post("http://test.example/a");
        let request = lengths.iter().fold(request, |request, length| request.header("content-length", *length));
        request.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap()
    };
    runtime().block_on(async {
        for (lengths, body) in [(&[""][..], ""), (&["5", "05"], "hello"), (&["5", "5"], "hello")] {
            let answer = connect(proxy.address()).await.send_request(post(lengths, body)).await.unwrap();
            assert_eq!(answer.status(), 400, "{lengths:?}");
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(String::from_utf8_lossy(&text).contains("\"code\":\"length\""), "{lengths:?}: {text:?}");
        }
        assert_eq!(origin.count(), 0, "{:?}", origin.seen());
        for lengths in [&["05"][..], &[]] {
            let answer = connect(proxy.address()).await.send_request(post(lengths, "hello")).await.unwrap();
            assert_eq!(answer.status(), 200, "{lengths:?}");
        }
    });
    for seen in origin.seen() {
        let framing = |(name, _): &&(String, String)| name == "content-length" || name == "transfer-encoding";
        let framing: Vec<_> = seen.fields.iter().filter(framing).collect();
        assert_eq!(framing, [&("content-length".to_owned(), "5".to_owned())]);
    }
}

#[test]
fn tls_to_the_upstream_is_checked_against_the_ca() {
    let folder = std::env::temp_dir().join(format!("tidegate-proxy-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (good, other) = (folder.join("ca.pem"), folder.join("other.pem"));
    let mine = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let strange = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&good, mine.cert.pem()).unwrap();
    std::fs::write(&other, strange.cert.pem()).unwrap();
    let runtime = runtime();
    let address = runtime.block_on(async { tls_upstream(&mine) });
    let url = format!("https://localhost:{}", address.port());
    let status_with = |ca: Option<&Path>| {
        let proxy = proxy(policy(Upstream::new(&url, ca).unwrap(), "100 per minute"));
        runtime.block_on(async {
            let first = status(&get(proxy.address(), "/a").await);
            assert_eq!(status(&get(proxy.address(), "/a").await), first, "the second time too");
            first
        })
    };
    assert_eq!(status_with(Some(&good)), 200);
    assert_eq!(status_with(Some(&other)), 502, "another CA");
    assert_eq!(status_with(None), 502, "the world's CAs do not know it");
    assert!(Upstream::new(&url, Some(Path::new("/nowhere.pem"))).unwrap_err().contains("name a PEM file"));
    let _ = std::fs::remove_dir_all(&folder);
}

/// A TLS server that answers `ok` to every head.
fn tls_upstream(identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> SocketAddr {
    let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(identity.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![identity.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut head = Vec::new();
                while stream.read_buf(&mut head).await.unwrap_or(0) > 0 {
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
                    }
                }
            });
        }
    });
    address
}

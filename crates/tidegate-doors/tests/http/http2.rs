//! HTTP/2 where it differs from HTTP/1.1: many requests on one connection, and what a client can do with that. That its answers are the
//! same, `check` sees to.

use crate::server::{Server, check, limited};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_doors::access::{Access, Grant, Hash, Rules, Scope, Token, Tokens};
use tidegate_doors::http::{HttpSettings, Limits};
use tidegate_events::{Mode, StreamSpec};
use tidegate_testkit::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

type Sender = SendRequest<Full<Bytes>>;

async fn connect(address: SocketAddr) -> Sender {
    connect_with_window(address, 1 << 20).await
}

/// A client whose windows have so many bytes.
async fn connect_with_window(address: SocketAddr, bytes: u32) -> Sender {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(bytes);
    let (sender, connection) = http.handshake(io).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://localhost{path}")).body(Full::default()).unwrap()
}

fn hit() -> Request<Full<Bytes>> {
    let body = r#"{"limiter":"ten","key":"u1"}"#;
    Request::post("http://localhost/v1/hit").body(Full::new(Bytes::from(body))).unwrap()
}

async fn body(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[test]
fn a_connection_has_many_requests_at_once() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let asked: Vec<_> = (0..50).map(|_| tokio::spawn(sender.send_request(hit()))).collect();
        let mut allowed = 0;
        for answer in asked {
            allowed += u32::from(answer.await.unwrap().unwrap().status() == 200);
        }
        assert_eq!(allowed, 10);
    });
}

#[test]
fn s2_the_host_is_the_authority_and_there_is_one() {
    let server = Server::with(HttpSettings::default());
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let with_host = |host: &str| {
            let mut request = hit();
            request.headers_mut().insert("host", host.parse().unwrap());
            request
        };
        assert_eq!(sender.send_request(with_host("LOCALHOST")).await.unwrap().status(), 200);
        let refused = sender.send_request(with_host("other.example")).await.unwrap();
        assert_eq!(refused.status(), 400);
        assert!(body(refused).await.contains("more than one Host"));
        let odd = Request::post("http://user@localhost/v1/hit").body(Full::new(Bytes::from("{}"))).unwrap();
        assert_eq!(sender.send_request(odd).await.unwrap().status(), 400);
    });
    check(&server, r#"GET /v1/limiters/ten/keys/u1 -> 200 "remaining":9"#);
}

#[test]
fn what_changes_things_asks_for_the_same_over_http2() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let disable = |host: &str, origin: Option<&str>| {
            let request = Request::post(format!("http://{host}/v1/limiters/ten/disable"));
            let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
            request.body(Full::default()).unwrap()
        };
        assert_eq!(sender.send_request(disable("evil.example", None)).await.unwrap().status(), 403);
        let cross_site = disable("localhost", Some("http://evil.example"));
        assert_eq!(sender.send_request(cross_site).await.unwrap().status(), 403);
        assert_eq!(sender.send_request(disable("localhost", None)).await.unwrap().status(), 200);
    });
}

#[test]
fn websocket_stays_with_http_1_1() {
    let server = Server::start();
    server.runtime.block_on(async {
        let refused = connect(server.address).await.send_request(get("/ws")).await.unwrap();
        assert_eq!(refused.status(), 426);
    });
}

/// 100 streams of one connection whose client grants no window would hold their answers for as long as it likes.
#[test]
fn m6_a_client_that_grants_no_window_is_cut() {
    let settings = HttpSettings { write_timeout: Duration::from_millis(60), ..HttpSettings::default() };
    let server = Server::with(settings);
    // A small answer and a large one.
    let _unread = server.runtime.block_on(async {
        let mut sender = connect_with_window(server.address, 0).await;
        let mut unread = Vec::new();
        for path in ["/livez", "/openapi.json"] {
            unread.push(sender.send_request(get(path)).await.unwrap());
        }
        (sender, unread)
    });
    eventually("it is cut", || server.ask("GET /metrics").body.contains("tidegate_http_connections_cut_total 1"));
    eventually("its requests are over", || server.ask("GET /metrics").body.contains("tidegate_http2_requests 0"));
}

/// HTTP/2 keeps what was handed to it: a window of one byte must not free the alarm of the rest.
#[test]
fn m6_nor_is_one_spared_that_grants_a_byte() {
    let settings = HttpSettings { write_timeout: Duration::from_millis(60), ..HttpSettings::default() };
    let server = Server::with(settings);
    let unread = server.runtime.block_on(async {
        let mut sender = connect_with_window(server.address, 1).await;
        sender.send_request(get("/openapi.json")).await.unwrap()
    });
    eventually("it is cut", || server.ask("GET /metrics").body.contains("tidegate_http_connections_cut_total 1"));
    assert!(server.runtime.block_on(unread.into_body().collect()).is_err());
}

#[test]
fn a_client_that_reads_slowly_gets_all() {
    let settings = HttpSettings { write_timeout: Duration::from_secs(2), ..HttpSettings::default() };
    let server = Server::with(settings);
    server.runtime.block_on(async {
        let mut sender = connect_with_window(server.address, 8 << 10).await;
        let mut answer = sender.send_request(get("/openapi.json")).await.unwrap().into_body();
        let mut length = 0;
        while let Some(frame) = answer.frame().await {
            length += frame.unwrap().data_ref().map_or(0, Bytes::len);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(length > 20_000, "{length}");
    });
}

#[test]
fn m6_requests_under_way_are_capped_as_connections_are() {
    let streams = vec![StreamSpec::new("orders", Mode::OnlyOnce)];
    let settings = limited(Limits { connections: 4, connections_per_address: Some(3), ..Limits::default() });
    let server = Server::with_streams_and(streams, settings);
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let mut feeds = Vec::new();
        for _ in 0..3 {
            let feed = sender.send_request(get("/v1/streams/orders/feed")).await.unwrap();
            assert_eq!(feed.status(), 200);
            feeds.push(feed);
        }
        let refused = sender.send_request(get("/v1/streams/orders/feed")).await.unwrap();
        assert_eq!(refused.status(), 503);
        assert!(body(refused).await.contains("too_many_requests"));
        assert_eq!(server.ask("GET /livez").status, 200, "HTTP/1.1 has its own places");
        feeds.clear();
        let mut last = 503;
        for _ in 0..200 {
            last = sender.send_request(get("/livez")).await.unwrap().status().as_u16();
            if last == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(last, 200, "places come back");
    });
}

/// The error code of the GOAWAY among these frames.
fn goaway(mut frames: &[u8]) -> Option<u32> {
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = frames {
        let (payload, rest) = rest.split_at_checked(u32::from_be_bytes([0, *a, *b, *c]) as usize)?;
        if let (7, [_, _, _, _, code @ ..]) = (*kind, payload) {
            return Some(u32::from_be_bytes(code.get(..4)?.try_into().ok()?));
        }
        frames = rest;
    }
    None
}

/// CVE-2023-44487: requests that are taken back at once cost their sender the connection.
#[test]
fn m6_rapid_resets_cost_the_client_its_connection() {
    const FRAMES: usize = 1_000;
    let server = Server::start();
    server.runtime.block_on(async {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for number in 0..FRAMES {
            let stream = u32::try_from(number * 2 + 1).unwrap().to_be_bytes();
            // GET http://localhost/metrics, all from the static table but the path and the host.
            let block = b"\x82\x86\x44\x08/metrics\x41\x09localhost";
            bytes.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 5]);
            bytes.extend(stream);
            bytes.extend(block);
            bytes.extend([0, 0, 4, 3, 0]);
            bytes.extend(stream);
            bytes.extend(8_u32.to_be_bytes());
        }
        let _ = tcp.write_all(&bytes).await;
        let mut came = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(20), tcp.read_to_end(&mut came)).await.expect("it is closed");
        assert_eq!(goaway(&came), Some(11), "ENHANCE_YOUR_CALM");
    });
    let page = server.ask("GET /metrics").body;
    let answered = page.lines().find_map(|line| {
        line.strip_prefix("tidegate_http_requests_total{route=\"/metrics\",method=\"GET\",status=\"200\"} ")
    });
    let answered: usize = answered.map_or(0, |count| count.parse().unwrap());
    assert!(answered < FRAMES / 4, "{answered} of {FRAMES} were answered");
}

/// Work that is no decision takes turns at the processors, and a body is asked for its next piece only while the client grants a window: a
/// feed that had waited for its turn there would have kept it for as long as its client liked.
#[test]
fn m6_a_feed_whose_client_takes_its_window_back_holds_no_turn() {
    let server = Server::with_streams(vec![StreamSpec::new("orders", Mode::OnlyOnce)]);
    let runtime = &server.runtime;
    // More than there are turns on any machine that runs this.
    let _feeds: Vec<TcpStream> = (0..64)
        .map(|_| {
            runtime.block_on(async {
                let mut tcp = TcpStream::connect(server.address).await.unwrap();
                let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
                let block = b"\x82\x86\x44\x17/v1/streams/orders/feed\x41\x09localhost";
                bytes.extend([0, 0, u8::try_from(block.len()).unwrap(), 1, 5, 0, 0, 0, 1]);
                bytes.extend(block);
                tcp.write_all(&bytes).await.unwrap();
                let mut came = [0; 1024];
                while !came.windows(9).any(|text| text == b"KEY_FRAME") {
                    let _ = tcp.read(&mut came).await.unwrap();
                }
                // SETTINGS_INITIAL_WINDOW_SIZE: 0.
                tcp.write_all(b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0").await.unwrap();
                tcp
            })
        })
        .collect();
    for event in 0..20 {
        assert_eq!(server.ask(&format!("POST /v1/streams/orders/events e{event}")).status, 201);
    }
    assert_eq!(server.ask("GET /v1/limiters").status, 200);
    assert_eq!(server.ask("GET /metrics").status, 200);
}

/// Requests of one token on connections from many addresses had no bound of their own.
#[test]
fn m6_one_token_does_not_have_all_requests_of_http2() {
    let token = |name: &str| Token {
        name: name.to_owned(),
        hash: Hash::of(format!("tg_{name}").as_bytes()),
        grant: Grant { scopes: [Scope::Subscribe].into_iter().collect(), ..Grant::default() },
        expires: None,
    };
    let tokens = Tokens::new(vec![token("greedy"), token("other")], Vec::new()).unwrap();
    let access = Arc::new(Access::new(Rules { tokens: Some(tokens), ..Rules::default() }));
    let limits = Limits { connections: 20, connections_per_token: Some(3), ..Limits::default() };
    let streams = vec![StreamSpec::new("orders", Mode::OnlyOnce)];
    let server = Server::with_streams_and(streams, HttpSettings { access, ..limited(limits) });
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let mut feed = |name: &str| {
            let mut request = get("/v1/streams/orders/feed");
            request.headers_mut().insert("authorization", format!("Bearer tg_{name}").parse().unwrap());
            sender.send_request(request)
        };
        let mut feeds = Vec::new();
        for _ in 0..3 {
            feeds.push(feed("greedy").await.unwrap());
        }
        assert!(feeds.iter().all(|feed| feed.status() == 200));
        let refused = feed("greedy").await.unwrap();
        assert_eq!(refused.status(), 503);
        let refused = body(refused).await;
        assert!(refused.contains("too_many_requests") && refused.contains("your token has as many"), "{refused}");
        assert_eq!(feed("other").await.unwrap().status(), 200);
    });
}

/// A refusal that came before the body had ended was followed by the reset of its stream: now and then curl saw that and no answer.
#[test]
fn s5_a_refusal_waits_for_the_body_and_resets_nothing() {
    let access = Arc::new(Access::new(Rules { tokens: Some(Tokens::default()), ..Rules::default() }));
    let server = Server::with(HttpSettings { access, ..HttpSettings::default() });
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        [&[0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, stream], payload].concat()
    };
    // `:method: POST`, `:scheme: http`, `:path: /v1/hit`, `:authority: localhost`.
    let head = [&[0x83, 0x86, 0x04, 7][..], b"/v1/hit", &[0x01, 9], b"localhost"].concat();
    let asked = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], &frame(1, 4, 1, &head)].concat();
    server.runtime.block_on(async {
        // The body ends later, or never: then it is waited for no longer than a second.
        for ends in [true, false] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(&asked).await.unwrap();
            if ends {
                tokio::time::sleep(Duration::from_millis(100)).await;
                stream.write_all(&frame(0, 1, 1, b"{}")).await.unwrap();
            }
            // Kinds of frames of the request's stream, up to a while after the last of them.
            let mut kinds = Vec::new();
            let reading = async {
                loop {
                    let mut head = [0; 9];
                    stream.read_exact(&mut head).await.unwrap();
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                    let mut payload = vec![0; length as usize];
                    stream.read_exact(&mut payload).await.unwrap();
                    if head[8] == 1 && head[3] != 8 {
                        kinds.push(head[3]);
                    }
                }
            };
            let _ = tokio::time::timeout(Duration::from_secs(3), reading).await;
            let resets = kinds.iter().filter(|kind| **kind == 3).count();
            assert_eq!((kinds.first(), resets > 0), (Some(&1), !ends), "{kinds:?}");
        }
    });
}

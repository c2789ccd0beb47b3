//! Clients that take more than their share: floods of resets, streams without end, half messages, huge ones, answers that nobody reads. What they get is
//! bounded, and another client's calls are answered meanwhile.

use crate::server::{Server, ask, call, connect, ended, later, request};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::sync::Arc;
use std::time::Duration;
use tidegate_doors::grpc::{GrpcSettings, Metrics};
use tidegate_doors::listener::Caps;
use tidegate_testkit::{eventually, number};
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::health::{self, HealthCheckRequest};
use tidegate_wire::grpc::ratelimit::{RateLimitResponse, ResponseCode, SHOULD_RATE_LIMIT};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Another client's call is answered.
async fn others_are_served(server: &Server) {
    let asked = ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request("bytes=other")).await;
    assert!(asked.said::<RateLimitResponse>().statuses[0].limit_remaining > 0);
}

/// 4 MiB are refused by their prefix: what follows is not kept.
#[test]
fn s3_a_huge_message_is_refused_by_its_first_bytes() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let mut huge = vec![0; 4 << 20];
        huge[..5].copy_from_slice(&[0, 0, 0x40, 0, 0]);
        for _ in 0..8 {
            let refused = ended(sender.send_request(call(SHOULD_RATE_LIMIT, huge.clone())).await.unwrap()).await;
            let said: RateLimitResponse = refused.said();
            let body = String::from_utf8(said.raw_body).unwrap();
            assert_eq!(
                (said.overall_code, body.contains("4194304 bytes")),
                (ResponseCode::OverLimit.into(), true),
                "{body}"
            );
        }
        others_are_served(&server).await;
    });
}

#[test]
fn s3_a_message_that_does_not_end_is_given_up() {
    let settings = GrpcSettings { message_timeout: Duration::from_millis(50), ..GrpcSettings::default() };
    let server = Server::with(settings);
    server.runtime.block_on(async {
        let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
        let (mut sender, connection) = http2::Builder::new(TokioExecutor::new()).handshake(io).await.unwrap();
        tokio::spawn(connection);
        let mut halves = Vec::new();
        for _ in 0..100 {
            let (sent, body) = later();
            sent.send(Bytes::from_static(&[0, 0, 0, 1, 0, 10])).await.unwrap();
            let asked = call(SHOULD_RATE_LIMIT, Vec::new()).map(|_| body);
            halves.push((sent, tokio::spawn(sender.send_request(asked))));
        }
        others_are_served(&server).await;
        for (_sent, asked) in halves {
            assert_eq!(asked.await.unwrap().unwrap().headers()["grpc-status"], "4");
        }
    });
}

/// A client that opens streams and takes them back: the connection ends, and the door serves on.
#[test]
fn s3_floods_of_resets_end_their_connection_alone() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        // HEADERS of `:method: POST`, `:scheme: http`, `:path: /`, by the static table; then RST_STREAM.
        for number in 0..50_000_u32 {
            let id = (2 * number + 1).to_be_bytes();
            flood.extend_from_slice(&[0, 0, 3, 1, 4]);
            flood.extend_from_slice(&id);
            flood.extend_from_slice(&[0x83, 0x86, 0x84]);
            flood.extend_from_slice(&[0, 0, 4, 3, 0]);
            flood.extend_from_slice(&id);
            flood.extend_from_slice(&[0, 0, 0, 8]);
        }
        // It may be cut before all is written.
        let _ = stream.write_all(&flood).await;
        others_are_served(&server).await;
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await.expect("it ends");
    });
}

#[test]
fn s3_a_million_streams_of_a_client_are_a_hundred_at_a_time() {
    let server = Server::start();
    server.runtime.block_on(async {
        let streams: usize = number("TIDEGATE_STREAMS", 20_000);
        let mut sender = connect(server.address).await;
        let asked = framed(&request("bytes=many"));
        let mut allowed = 0;
        for _ in 0..streams / 100 {
            let calls: Vec<_> =
                (0..100).map(|_| tokio::spawn(sender.send_request(call(SHOULD_RATE_LIMIT, asked.clone())))).collect();
            for call in calls {
                let said: RateLimitResponse = ended(call.await.unwrap().unwrap()).await.said();
                allowed += usize::from(said.overall_code == 1);
            }
        }
        assert_eq!(allowed, streams.min(1_000));
        others_are_served(&server).await;
    });
}

/// Bytes of a connection that are no client's, and what comes until it is closed; `None`: it is not.
async fn told(server: &Server, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let mut came = Vec::new();
    let all = async {
        // It may be cut before all is written; then it is closed all the same.
        let _ = writing.write_all(bytes).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        closed = tokio::time::timeout(Duration::from_secs(15), reading.read_to_end(&mut came)) => closed.ok().map(|_| came),
        () = all => None,
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Half of a frame, and a head whose end does not come: without a deadline a stranger would keep them for half an hour.
#[test]
fn m6_half_a_head_is_cut_by_its_deadline() {
    let settings = GrpcSettings { handshake_timeout: Duration::from_millis(500), ..GrpcSettings::default() };
    let server = Server::with(settings);
    server.runtime.block_on(async {
        let begun = [&[0x83, 0x86, 0x84, 0x40, 1, b'x', 0x7f, 0x80, 1][..], &[b'x'; 255]].concat();
        for half in [
            frame(1, 0, 1, &begun)[..100].to_vec(),
            frame(1, 0, 1, &begun),
            [frame(1, 0, 1, &begun), frame(9, 0, 1, &[])].concat(),
            b"\0\0".to_vec(),
        ] {
            assert!(told(&server, &[PREFACE, &half].concat()).await.is_some(), "{half:?}");
        }
        let mut idle = connect(server.address).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked = ask(&mut idle, SHOULD_RATE_LIMIT, &request("bytes=idle")).await;
        assert_eq!(asked.status, 0, "between calls there is time");
        others_are_served(&server).await;
    });
}

/// CVE-2024-27316 and its kin: a head that is continued in frame after frame is not kept, and not waited for.
#[test]
fn m6_continuations_without_end_cost_the_client_its_connection() {
    let server = Server::start();
    server.runtime.block_on(async {
        let field = [&[0x00, 1, b'x', 0x7f, 0xe1, 0x7e][..], &[b'x'; 16_320]].concat();
        let mut flood = [PREFACE, &frame(1, 0, 1, &[0x83, 0x86, 0x84])].concat();
        (0..2_000).for_each(|_| flood.extend(frame(9, 0, 1, &field)));
        assert!(told(&server, &flood).await.is_some(), "32 MB of a head, and it goes on");
        let mut empty = [PREFACE, &frame(1, 0, 1, &[0x83, 0x86, 0x84])].concat();
        (0..100_000).for_each(|_| empty.extend(frame(9, 0, 1, &[])));
        assert!(told(&server, &empty).await.is_some(), "a hundred thousand empty frames, and it goes on");
        others_are_served(&server).await;
    });
}

/// A small block that says one long field of the table again and again: what it stands for is not made.
#[test]
fn m6_heads_that_grow_when_they_are_read_are_refused() {
    let server = Server::start();
    server.runtime.block_on(async {
        // `x: xxx…` of 3,900 bytes into the dynamic table, then 16,000 times its number there: 62 MB.
        let mut block = vec![0x83, 0x86, 0x84, 0x40, 1, b'x', 0x7f, 0xbd, 0x1d];
        block.extend([b'x'; 3_900]);
        block.extend(vec![0xbe; 12_000]);
        let mut bytes = PREFACE.to_vec();
        for stream in 0..50 {
            bytes.extend(frame(1, 5, 2 * stream + 1, &block));
        }
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let mut came = vec![0; 64 << 10];
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut came)).await.expect("an answer");
        assert!(read.is_err() || !came[..read.unwrap_or(0)].windows(11).any(|text| text == b"application"), "no call");
        others_are_served(&server).await;
    });
}

/// Asking for health needs no token. Those who wait for it must not keep others from the door.
#[test]
fn m6_when_connections_are_scarce_strangers_make_room_and_few_watch() {
    let metrics = Arc::new(Metrics::new(Caps { all: 20, per_address: 20, per_token: 20 }));
    let server = Server::with(GrpcSettings { metrics, reserved_connections: Some(10), ..GrpcSettings::default() });
    server.runtime.block_on(async {
        let mut pool = connect(server.address).await;
        assert_eq!(ask(&mut pool, SHOULD_RATE_LIMIT, &request("bytes=pool")).await.status, 0);
        let (mut watching, mut idle) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let mut sender = connect(server.address).await;
            let watch = call(health::WATCH, framed(&HealthCheckRequest::default()));
            let answer = sender.send_request(watch).await.unwrap();
            let is_refused = answer.headers().get("grpc-status").is_some_and(|status| status == "14");
            if is_refused { idle.push(sender) } else { watching.push((sender, answer)) }
        }
        assert_eq!((watching.len(), idle.len()), (2, 6), "a tenth of the connections may watch");
        for _ in 0..6 {
            idle.push(connect(server.address).await);
        }
        eventually("those that are idle are cut", || idle.iter().filter(|sender| sender.is_closed()).count() >= 5);
        assert!(!watching[0].0.is_closed() && !pool.is_closed());
        assert_eq!(ask(&mut pool, SHOULD_RATE_LIMIT, &request("bytes=pool")).await.status, 0);
        others_are_served(&server).await;
    });
}

/// 100 streams of one connection whose client grants no window would hold their answers for as long as it likes.
#[test]
fn m6_a_client_that_grants_no_window_is_cut() {
    let settings = GrpcSettings { write_timeout: Duration::from_millis(60), ..GrpcSettings::default() };
    let server = Server::with(settings);
    server.runtime.block_on(async {
        let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.initial_stream_window_size(0);
        let (mut sender, connection) = http.handshake::<_, Full<Bytes>>(io).await.unwrap();
        tokio::spawn(connection);
        let held = sender.send_request(call(SHOULD_RATE_LIMIT, framed(&request("user=a")))).await.unwrap();
        others_are_served(&server).await;
        eventually("it is cut", || sender.is_closed());
        drop(held);
    });
}

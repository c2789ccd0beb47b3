//! Clients that take more than their share: floods of resets, streams without end, half messages, huge ones, answers that nobody reads. What they get is
//! bounded, and another client's calls are answered meanwhile.

use crate::server::{Server, ask, call, connect, ended, later, request};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tidegate_doors::grpc::GrpcSettings;
use tidegate_testkit::{eventually, number};
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::ratelimit::{RateLimitResponse, SHOULD_RATE_LIMIT};
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
            assert_eq!((refused.status, refused.message.contains("4194304 bytes")), (8, true), "{}", refused.message);
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

//! What makes a call one: its head, its time limit, its frame; and how connections end.

use crate::server::{Server, ask, call, connect, ended, later, request};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use std::io::{Read as _, Write as _};
use std::time::Duration;
use tidegate_doors::grpc::GrpcSettings;
use tidegate_testkit::eventually;
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::health::CHECK;
use tidegate_wire::grpc::ratelimit::{RateLimitResponse, SHOULD_RATE_LIMIT};

#[test]
fn what_is_no_grpc_is_refused_by_http() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let body = || Full::new(Bytes::from(framed(&request("user=a"))));
        let get = Request::get(format!("http://x{SHOULD_RATE_LIMIT}")).body(body()).unwrap();
        assert_eq!(sender.send_request(get).await.unwrap().status(), 405);
        for kind in ["application/json", "application/grpcx", ""] {
            let post = Request::post(format!("http://x{SHOULD_RATE_LIMIT}")).header("content-type", kind);
            assert_eq!(sender.send_request(post.body(body()).unwrap()).await.unwrap().status(), 415, "{kind}");
        }
        let proto =
            Request::post(format!("http://x{SHOULD_RATE_LIMIT}")).header("content-type", "application/grpc+proto");
        assert_eq!(ended(sender.send_request(proto.body(body()).unwrap()).await.unwrap()).await.status, 0);
    });
}

#[test]
fn http_1_is_told_what_is_spoken_here() {
    let server = Server::start();
    let mut stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 505 ") && text.contains("speaks gRPC"), "{text}");
}

#[test]
fn what_cannot_be_read_is_said() {
    let server = Server::start();
    let good = framed(&request("user=a"));
    let with = |index: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[index] = byte;
        bytes
    };
    let refused = |method: &str, body: Vec<u8>, status: u32, part: &str| {
        let ended = server.runtime.block_on(async {
            ended(connect(server.address).await.send_request(call(method, body)).await.unwrap()).await
        });
        assert_eq!(ended.status, status, "{}", ended.message);
        assert!(ended.message.contains(part), "{}", ended.message);
    };
    refused("/some.Service/Method", good.clone(), 12, "there is no method /some.Service/Method");
    refused(SHOULD_RATE_LIMIT, with(0, 1), 12, "compressed");
    refused(SHOULD_RATE_LIMIT, with(0, 2), 12, "is it gRPC");
    refused(CHECK, with(1, 1), 8, "at most 65536");
    refused(SHOULD_RATE_LIMIT, with(5, 0xff), 3, "cannot be read");
    refused(SHOULD_RATE_LIMIT, good[..good.len() - 1].to_vec(), 3, "ended before its message");
    refused(SHOULD_RATE_LIMIT, good[..3].to_vec(), 3, "ended before its message");
    refused(SHOULD_RATE_LIMIT, Vec::new(), 3, "ended before its message");
    refused(SHOULD_RATE_LIMIT, [good.clone(), good.clone()].concat(), 12, "more than one message");
}

#[test]
fn a_call_has_the_time_that_it_says() {
    let server = Server::start();
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        for (timeout, status) in [("20S", 0), ("1M", 0), ("0m", 4), ("20", 3), ("20ms", 3)] {
            let mut asked = call(SHOULD_RATE_LIMIT, framed(&request("user=a")));
            asked.headers_mut().insert("grpc-timeout", timeout.parse().unwrap());
            assert_eq!(ended(sender.send_request(asked).await.unwrap()).await.status, status, "{timeout}");
        }
    });
}

/// The client sees GOAWAY before anything fails, and goes over to a new connection.
#[test]
fn old_connections_end_in_order() {
    let settings = GrpcSettings { max_age: Duration::from_millis(50), ..GrpcSettings::default() };
    let server = Server::with(settings);
    server.runtime.block_on(async {
        let mut sender = connect(server.address).await;
        let said: RateLimitResponse = ask(&mut sender, SHOULD_RATE_LIMIT, &request("user=a")).await.said();
        assert_eq!(said.statuses.len(), 1);
        eventually("the connection ends", || sender.is_closed());
        let said: RateLimitResponse =
            ask(&mut connect(server.address).await, SHOULD_RATE_LIMIT, &request("user=a")).await.said();
        assert_eq!(said.statuses[0].limit_remaining, 3);
    });
}

/// A stop lets a call end whose message is still on its way.
#[test]
fn a_stop_lets_calls_under_way_end() {
    let mut server = Server::start();
    let runtime = server.runtime.handle().clone();
    let (sent, pending) = runtime.block_on(async {
        let (sent, body) = later();
        let io = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(io);
        let http = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
        let (mut sender, connection) = http.handshake(io).await.unwrap();
        tokio::spawn(connection);
        let asked = call(SHOULD_RATE_LIMIT, Vec::new()).map(|_| body);
        (sent, tokio::spawn(sender.send_request(asked)))
    });
    // The call is there when its stream is.
    std::thread::sleep(Duration::from_millis(100));
    server.stop();
    let said = runtime.block_on(async {
        sent.send(Bytes::from(framed(&request("user=a")))).await.unwrap();
        drop(sent);
        let (head, body) = pending.await.unwrap().unwrap().into_parts();
        assert_eq!(head.status, 200);
        body.collect().await.unwrap().trailers().unwrap()["grpc-status"].clone()
    });
    assert_eq!(said, "0");
    server.ended();
}

//! Clients of HTTP/2 that give or take next to nothing, and never stop: each byte once began their time anew, and they held their
//! slots for as long as they liked.

use crate::support::{Body, Origin, proxy_with, runtime, var};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_proxy::{Proxy, Settings};
use tidegate_testkit::Stopwatch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

const STREAMS: u32 = 20;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// The limit is looked at twice a second, and a stall is known when a whole limit has passed without enough.
const A_BIT: Duration = Duration::from_secs(1);
const A_BYTE_EVERY: Duration = Duration::from_secs(1);

/// Frames of HTTP/2, byte by byte: no library grants a byte.
struct Http2(Vec<u8>);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

impl Http2 {
    /// What a connection begins with: streams have windows of so many bytes, all of them together a great one.
    fn begin(window: u32) -> Http2 {
        let mut bytes = Http2(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec());
        bytes.frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
        bytes.frame(SETTINGS, ACK, 0, &[]);
        bytes.grant(0, 1 << 30);
        bytes
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        self.0.extend_from_slice(&length[1..]);
        self.0.extend_from_slice(&[kind, flags]);
        self.0.extend_from_slice(&stream.to_be_bytes());
        self.0.extend_from_slice(payload);
    }

    fn grant(&mut self, stream: u32, bytes: u32) {
        self.frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes());
    }

    /// `GET /`, from HPACK's static table.
    fn get(&mut self, stream: u32) {
        self.frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x82\x86\x84\x01\x04test");
    }

    /// `POST /` with `content-length: 1000`, of which nothing has come yet.
    fn post(&mut self, stream: u32) {
        self.frame(HEADERS, END_HEADERS, stream, b"\x83\x86\x84\x01\x04test\x0f\x0d\x041000");
    }
}

/// The streams of a client: 1, 3, 5…
fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|number| 2 * number + 1)
}

/// An upstream that reads the whole of a request, and answers with a mebibyte.
fn origin() -> Origin {
    Origin::with(|request| async {
        let _ = request.into_body().collect().await;
        let body: Body = Full::new(Bytes::from(vec![b'x'; 1 << 20])).boxed();
        hyper::Response::new(body)
    })
}

/// A connection that has little room for what it does not read.
async fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(address).await.unwrap()
}

async fn read_all(mut reader: OwnedReadHalf) {
    let mut scratch = vec![0; 64 << 10];
    while matches!(reader.read(&mut scratch).await, Ok(1..)) {}
}

/// Writes frames for every stream, again and again, until the proxy has had enough.
async fn trickle(mut writer: OwnedWriteHalf, frame: fn(&mut Http2, u32)) {
    loop {
        let mut bytes = Http2(Vec::new());
        streams().for_each(|stream| frame(&mut bytes, stream));
        if writer.write_all(&bytes.0).await.is_err() {
            return;
        }
        sleep(A_BYTE_EVERY).await;
    }
}

async fn all_slots_come_back(proxy: &Proxy) {
    let since = Stopwatch::start();
    while var(proxy, "forwarded").await < u64::from(STREAMS) {
        assert!(since.elapsed() < CLIENT_TIMEOUT, "not all were forwarded");
        sleep(Duration::from_millis(10)).await;
    }
    let since = Stopwatch::start();
    while var(proxy, "in_flight").await > 0 {
        assert!(since.elapsed() < CLIENT_TIMEOUT + A_BIT, "{:?}: slots are still held", since.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    println!("all slots are back after {:?}", since.elapsed());
}

/// A proxy, and a connection on which every stream has asked.
async fn asked(window: u32, ask: fn(&mut Http2, u32)) -> (Origin, Proxy, TcpStream) {
    let origin = origin();
    let settings = Settings { client_timeout: CLIENT_TIMEOUT, workers: 1, ..Settings::default() };
    let proxy = proxy_with(origin.policy("1000 per day"), settings);
    let mut stream = connect(proxy.address()).await;
    let mut bytes = Http2::begin(window);
    streams().for_each(|number| ask(&mut bytes, number));
    stream.write_all(&bytes.0).await.unwrap();
    (origin, proxy, stream)
}

#[test]
fn p6_http2_clients_that_grant_a_byte_a_second_lose_their_slots() {
    runtime().block_on(async {
        let (_origin, proxy, stream) = asked(0, Http2::get).await;
        let (reader, writer) = stream.into_split();
        tokio::spawn(read_all(reader));
        tokio::spawn(trickle(writer, |bytes, stream| bytes.grant(stream, 1)));
        all_slots_come_back(&proxy).await;
    });
}

#[test]
fn p6_http2_clients_that_read_a_byte_a_second_lose_their_slots() {
    runtime().block_on(async {
        let (_origin, proxy, mut stream) = asked(1 << 30, Http2::get).await;
        tokio::spawn(async move {
            while matches!(timeout(A_BYTE_EVERY, stream.read(&mut [0])).await, Ok(Ok(1))) {
                sleep(A_BYTE_EVERY).await;
            }
        });
        all_slots_come_back(&proxy).await;
    });
}

#[test]
fn p6_http2_uploads_of_a_byte_a_second_lose_their_slots() {
    runtime().block_on(async {
        let (_origin, proxy, stream) = asked(1 << 16, Http2::post).await;
        let (reader, writer) = stream.into_split();
        tokio::spawn(read_all(reader));
        tokio::spawn(trickle(writer, |bytes, stream| bytes.frame(DATA, 0, stream, b"x")));
        all_slots_come_back(&proxy).await;
    });
}

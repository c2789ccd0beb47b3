//! The STOMP door over real connections.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod access;
mod limits;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use tidegate::{Clock, Gate, Policy, Settings};
use tidegate_doors::http::{HttpSettings, serve};
use tidegate_events::{Mode, Now, Opening, Outcome, StreamSpec, Streams};
use tidegate_testkit::stomp::{Client, Heard};
use tidegate_testkit::{Stopwatch, eventually};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

/// A door with one stream, on the process's clock.
struct Door {
    address: SocketAddr,
    streams: Arc<Streams>,
    runtime: Runtime,
    stop: Option<oneshot::Sender<()>>,
}

impl Door {
    fn open() -> Door {
        Door::with_snapshots_every(3_600_000)
    }

    fn with_snapshots_every(ms: u64) -> Door {
        Door::with(ms, HttpSettings::default())
    }

    fn with(snapshot_every_ms: u64, settings: HttpSettings) -> Door {
        let gate = Gate::open(Policy::default(), &Settings::default(), Clock::process()).unwrap();
        let time = gate.clone();
        let now: Now = Arc::new(move || time.now());
        let mut orders = StreamSpec::new("orders", Mode::StrictlyOnce);
        (orders.rules.duration_ms, orders.rules.max_events) = (500, 1_000_000);
        orders.rules.snapshot_every_ms = snapshot_every_ms;
        let streams = Arc::new(Opening::read(vec![orders], None).unwrap().start(&now).unwrap());
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let settings = HttpSettings { streams: Arc::clone(&streams), ..settings };
        runtime.spawn(serve(listener, gate, settings, async {
            let _ = stopped.await;
        }));
        Door { address, streams, runtime, stop: Some(stop) }
    }

    fn submit(&self, event: &str) -> Outcome {
        let stream = self.streams.get("orders").unwrap();
        self.runtime.block_on(stream.submit(event.as_bytes())).unwrap()
    }

    /// Subscribers that were cut, as `/metrics` tells it.
    fn cuts(&self) -> u64 {
        let page = tidegate_testkit::http::get(self.address, "/metrics", "").unwrap();
        let told = page.lines().find_map(|line| line.strip_prefix("tidegate_stream_cut_total{stream=\"orders\"} "));
        told.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
    }

    /// The server goes on: somebody else is served.
    #[track_caller]
    fn goes_on(&self) {
        let mut other = Client::connected(self.address);
        other.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
        assert!(other.hear().header("message-id").is_some());
    }
}

#[track_caller]
fn body(heard: Heard) -> String {
    match heard {
        Heard::Frame(command, _, body) if command == "MESSAGE" => body,
        other => panic!("no MESSAGE but {other:?}"),
    }
}

#[test]
fn c2_a_subscription_begins_with_a_snapshot_goes_on_with_deltas_and_resumes() {
    let door = Door::open();
    let mut client = Client::connected(door.address);
    client.send("SUBSCRIBE\nid:a\\cb\ndestination:/topic/strictly-once\nreceipt:r\n\n\0");
    let (mut receipt, mut snapshot) = (client.hear(), client.hear());
    if receipt.header("receipt-id").is_none() {
        std::mem::swap(&mut receipt, &mut snapshot);
    }
    assert_eq!(receipt.header("receipt-id"), Some("r"));
    assert_eq!(snapshot.header("subscription"), Some("a\\cb"));
    assert_eq!(snapshot.header("destination"), Some("/topic/strictly-once"));
    assert_eq!(snapshot.header("content-type"), Some("application/json"));
    let epoch = snapshot.header("epoch").unwrap().to_owned();
    let key_frame = |clock| format!(r#"{{"clock":{clock},"snapshot":[],"epoch":"{epoch}","messageType":"KEY_FRAME"}}"#);
    assert_eq!(body(snapshot), key_frame(1));
    let _ = door.submit("taco");
    let submitted = client.hear();
    assert_eq!(submitted.header("message-id"), Some("2"));
    assert!(body(submitted).starts_with(r#"{"clock":2,"eventTime":{"event":"taco","time":"#));
    assert!(body(client.hear()).ends_with(r#""messageType":"PUBLISHED_EVENT"}"#));
    client.send(
        "UNSUBSCRIBE\nid:a\\cb\n\n\0SUBSCRIBE\nid:again\ndestination:/topic/orders\nfrom-clock:1\nack:client\n\n\0",
    );
    let resumed = client.hear();
    assert_eq!((resumed.header("message-id"), resumed.header("ack")), (Some("2"), Some("again 2")));
    assert!(body(client.hear()).contains("\"clock\":3"));
    client.send("ACK\nid:again 2\n\n\0SUBSCRIBE\nid:future\ndestination:/topic/orders\nfrom-clock:999\n\n\0");
    assert_eq!(body(client.hear()), key_frame(3));
    client.send(&format!(
        "UNSUBSCRIBE\nid:future\n\n\0SUBSCRIBE\nid:same\ndestination:/topic/orders\nfrom-clock:2\nepoch:{epoch}\n\n\0"
    ));
    let resumed = client.hear();
    assert_eq!((resumed.header("message-id"), resumed.header("epoch")), (Some("3"), Some(epoch.as_str())));
    client.send("UNSUBSCRIBE\nid:same\n\n\0SUBSCRIBE\nid:other\ndestination:/topic/orders\nfrom-clock:2\nepoch:00000000a1b2c\n\n\0");
    assert_eq!(body(client.hear()), key_frame(3), "C5: of another history");
}

#[test]
fn receipts_pings_and_goodbyes() {
    let door = Door::open();
    let mut client = Client::connected(door.address);
    client.send_raw(0x89, b"hello");
    assert_eq!(client.hear(), Heard::Pong(b"hello".to_vec()));
    // In parts, and with a heart-beat before.
    client.send_raw(0x01, b"\nSEND\ndestination:/app/orders\n");
    client.send_raw(0x80, b"receipt:1\n\ntaco\0");
    assert_eq!(client.hear().header("status"), Some("submitted"));
    client.send("SEND\ndestination:/app/strictly-once\nreceipt:2\n\ntaco\0");
    assert_eq!(client.hear().header("status"), Some("conflict"));
    client.send("DISCONNECT\nreceipt:bye\n\n\0");
    assert_eq!(client.hear().header("receipt-id"), Some("bye"));
    assert_eq!(client.hear(), Heard::Close(1000));
}

#[test]
fn heart_beats_come_and_are_missed() {
    let door = Door::open();
    let mut client = Client::open(door.address);
    client.send("STOMP\naccept-version:1.2\nheart-beat:1000,1000\n\n\0");
    assert_eq!(client.hear().header("heart-beat"), Some("1000,1000"));
    assert_eq!(client.hear_any(), Heard::Beat);
    assert_eq!(client.hear_any(), Heard::Beat);
    client.is_refused("no heart-beat");
}

#[test]
fn s1_bad_frames_get_an_error_and_the_server_goes_on() {
    let door = Door::open();
    for (sent, part) in [
        ("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0", "must be CONNECT"),
        ("CONNECT\naccept-version:1.0,1.1\n\n\0", "version:1.2 this server speaks STOMP 1.2, not \"1.0,1.1\""),
        ("CONNECT\naccept-version:1.2\nheart-beat:a,b\n\n\0", "heart-beat must be"),
        ("CONNECT\naccept-version:1.2", "no NUL"),
        ("HELLO\n\n\0", "\"HELLO\" is no command"),
    ] {
        let mut client = Client::open(door.address);
        client.send(sent);
        client.is_refused(part);
    }
    let long = format!("SEND\ndestination:/app/orders\n\n{}\0", "x".repeat(20_000));
    let event = format!("SEND\ndestination:/app/orders\n\n{}\0", "x".repeat(1_025));
    for (sent, part) in [
        ("CONNECT\naccept-version:1.2\n\n\0", "CONNECT is said once"),
        ("SUBSCRIBE\nid:1\n\n\0", "no header destination"),
        ("SUBSCRIBE\ndestination:/topic/orders\n\n\0", "no header id"),
        ("SUBSCRIBE\nid:1\ndestination:/topic/other\n\n\0", "no stream is named \"other\""),
        ("SUBSCRIBE\nid:1\ndestination:/queue/orders\n\n\0", "topics are /topic/STREAM"),
        ("SUBSCRIBE\nid:1\ndestination:/topic/orders\nfrom-clock:x\n\n\0", "from-clock must be"),
        ("SUBSCRIBE\nid:1\ndestination:/topic/orders\nfrom-clock:1\nepoch:x\n\n\0", "13 of 0-9 a-f"),
        ("SUBSCRIBE\nid:1\ndestination:/topic/orders\nack:maybe\n\n\0", "ack must be"),
        ("UNSUBSCRIBE\nid:1\n\n\0", "no subscription has the id"),
        ("SEND\ndestination:/app/orders\nreceipt:77\n\n\0", "receipt-id:77 the event is empty"),
        ("SEND\ndestination:/app/orders\n\na\\\0", ""),
        ("SEND\ndestination:/app/orders\nx:\\q\n\ntaco\0", "undefined escape"),
        ("SEND\ndestination:/app/orders\ntransaction:1\n\ntaco\0", "transactions are not offered"),
        ("BEGIN\ntransaction:1\n\n\0", "transactions are not offered"),
        ("MESSAGE\n\n\0", "no command"),
        (&long, "more than 16384"),
        (&event, "1025 bytes, more than 1024"),
    ] {
        let mut client = Client::connected(door.address);
        client.send(sent);
        match part {
            "" => is_served(&mut client),
            part => client.is_refused(part),
        }
    }
    let submitted = door.streams.get("orders").unwrap().counts().submitted;
    let mut long = Client::connected(door.address);
    long.send(&format!("SEND\ndestination:/app/orders\nreceipt:{}\n\nnot taken\0", "r".repeat(257)));
    long.is_refused("receipt has 257 bytes, more than 256");
    assert_eq!(door.streams.get("orders").unwrap().counts().submitted, submitted, "refused before it is taken");
    let mut binary = Client::connected(door.address);
    binary.send_raw(0x82, &[0xff, 0x00, 0xfe, 0x80]);
    binary.is_refused("bad frame");
    let mut oversize = Client::connected(door.address);
    oversize.send_raw(0x82, &vec![b'\n'; 70_000]);
    oversize.is_refused("more than 65536 bytes");
    let mut reserved = Client::connected(door.address);
    reserved.send_raw(0xf1, b"SEND");
    reserved.is_refused("reserved bits");
    door.goes_on();
}

/// The client's connection still works.
#[track_caller]
fn is_served(client: &mut Client) {
    client.send("SEND\ndestination:/app/orders\nreceipt:still\n\nburrito\0");
    assert_eq!(client.hear().header("receipt-id"), Some("still"));
}

#[test]
fn s1_ten_thousand_subscriptions_are_refused() {
    let door = Door::open();
    let mut client = Client::connected(door.address);
    for id in 0..10_000 {
        client.send(&format!("SUBSCRIBE\nid:{id}\ndestination:/topic/time\n\n\0"));
    }
    client.is_refused("at most 100");
    door.goes_on();
}

/// The stream's log is as far as it can fall behind: that is noticed when it reads again, however late.
#[test]
fn c4_one_who_does_not_read_is_cut_with_an_error_and_nobody_waits() {
    // The listener's own bound, of the next test, must not come first.
    let settings = HttpSettings { write_timeout: Duration::from_secs(3_600), ..HttpSettings::default() };
    let door = Door::with(3_600_000, settings);
    let subscribe = |client: &mut Client| client.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    let (mut stalled, mut reader) = (Client::connected(door.address), Client::connected(door.address));
    // What is measured below is what the door keeps, not what this side does.
    socket2::SockRef::from(&stalled.stream).set_recv_buffer_size(64 << 10).unwrap();
    for client in [&mut stalled, &mut reader] {
        subscribe(client);
        assert_eq!(client.hear().header("message-id"), Some("1"), "the snapshot");
    }
    // Two messages each; the log keeps 65,536.
    let events = 50_000;
    let published = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&published);
    let reading = std::thread::spawn(move || {
        let mut expected = 2;
        while counted.load(Relaxed) < events {
            let heard = reader.hear();
            assert_eq!(heard.header("message-id"), Some(expected.to_string().as_str()), "every message, in order");
            expected += 1;
            counted.fetch_add(u64::from(body(heard).contains("PUBLISHED_EVENT")), Relaxed);
        }
    });
    for i in 0..events {
        assert!(matches!(door.submit(&format!("event number {i}")), Outcome::Submitted { .. }));
        // No faster than the reader can follow, which is no faster than a test.
        while i > published.load(Relaxed) + 5_000 && !reading.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    reading.join().unwrap();
    let (bytes, error) = rest_of(&mut stalled);
    assert!(bytes < 1_500_000, "{bytes} bytes lay in buffers for one who does not read");
    assert!(error.contains("too slow") && error.contains("from-clock"), "{error}");
    assert_eq!(door.cuts(), 1, "the one who fell behind is counted");
    assert!(matches!(stalled.hear(), Heard::Close(_) | Heard::End));
}

/// How many bytes of messages a client finds when it reads at last, and the ERROR behind them.
fn rest_of(stalled: &mut Client) -> (usize, String) {
    let mut bytes = 0;
    loop {
        match stalled.hear() {
            heard @ Heard::Frame(..) if heard.header("message-id").is_some() => bytes += body(heard).len() + 200,
            other => return (bytes, other.error()),
        }
    }
}

/// The listener notices it, as with any other connection; the session has its last words all the same.
#[test]
fn c4_one_who_reads_nothing_for_too_long_hears_why_when_it_reads_again() {
    let settings = HttpSettings { write_timeout: Duration::from_millis(500), ..HttpSettings::default() };
    let door = Door::with(3_600_000, settings);
    let mut stalled = Client::connected(door.address);
    socket2::SockRef::from(&stalled.stream).set_recv_buffer_size(32 << 10).unwrap();
    stalled.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    assert_eq!(stalled.hear().header("message-id"), Some("1"), "the snapshot");
    for i in 0..2_000 {
        assert!(matches!(door.submit(&format!("{i:0>1000}")), Outcome::Submitted { .. }));
    }
    eventually("it is cut", || door.streams.get("orders").unwrap().counts().cut == 1);
    let (_, error) = rest_of(&mut stalled);
    assert!(error.contains("nothing was read for 0.5 s"), "{error}");
    assert_eq!(door.cuts(), 1, "it counts as cut");
}

#[test]
fn c2_key_frames_come_to_each_in_its_turn_and_deltas_do_not_wait() {
    const EVERY: Duration = Duration::from_millis(600);
    let door = Door::with_snapshots_every(600);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connected(door.address)).collect();
    for client in &mut clients {
        client.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
        let asked = Stopwatch::start();
        assert!(body(client.hear()).contains("KEY_FRAME"));
        assert!(asked.elapsed() < EVERY / 3, "the snapshot to begin with comes at once");
    }
    let listening = |mut client: Client| {
        thread::spawn(move || {
            let frames: Vec<(Instant, u64)> = (0..4)
                .map(|_| {
                    let heard = client.hear();
                    let clock = heard.header("message-id").unwrap().parse().unwrap();
                    assert!(body(heard).contains("KEY_FRAME"));
                    (Instant::now(), clock)
                })
                .collect();
            (client, frames)
        })
    };
    let threads: Vec<_> = clients.into_iter().map(listening).collect();
    let heard: Vec<(Client, Vec<(Instant, u64)>)> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (_, frames) in &heard {
        assert!(frames.windows(2).all(|two| two[1].1 == two[0].1 + 1), "{frames:?}");
        let took = frames[3].0 - frames[0].0;
        assert!(took > EVERY * 2 && took < EVERY * 4, "three times 600 ms: {took:?}");
    }
    // Of the same key frame: who had it first, and who last.
    let clock = heard.iter().map(|(_, frames)| frames[0].1).max().unwrap();
    let times = heard.iter().filter_map(|(_, frames)| frames.iter().find(|frame| frame.1 == clock));
    let times: Vec<Instant> = times.map(|frame| frame.0).collect();
    let spread = *times.iter().max().unwrap() - *times.iter().min().unwrap();
    assert!(spread > EVERY / 6, "all at once: {spread:?}");
    // Events come all the time now: none waits for a key frame's turn.
    let mut client = heard.into_iter().map(|(client, _)| client).next_back().unwrap();
    let mut last = None;
    for i in 0..60 {
        let sent = Stopwatch::start();
        let _ = door.submit(&format!("event {i}"));
        loop {
            let heard = client.hear();
            let clock: u64 = heard.header("message-id").unwrap().parse().unwrap();
            assert!(last.is_none_or(|last| clock == last + 1), "{clock} after {last:?}");
            last = Some(clock);
            if body(heard).contains(&format!("\"event {i}\"")) {
                break;
            }
        }
        assert!(sent.elapsed() < Duration::from_millis(200), "{:?}", sent.elapsed());
        thread::sleep(Duration::from_millis(20));
    }
}

/// A client that closes its sending side has said its last: what it sent is taken and answered, the session ends with a
/// close, and nothing is left of it at the server.
#[test]
fn a_half_closed_websocket_is_answered_and_ends() {
    let door = Door::open();
    let mut client = Client::connected(door.address);
    client.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    assert_eq!(client.hear().header("message-id"), Some("1"), "the snapshot");
    client.send("SEND\ndestination:/app/orders\nreceipt:last\n\ntaco\0");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    while !matches!(heard.last(), Some(Heard::Close(1000) | Heard::End)) {
        heard.push(client.hear());
    }
    assert!(heard.iter().any(|heard| heard.header("receipt-id") == Some("last")), "{heard:?}");
    assert!(heard.contains(&Heard::Close(1000)), "{heard:?}");
    eventually("no subscriber is left", || door.streams.get("orders").unwrap().counts().subscribers == 0);
}

#[test]
fn a_closing_door_says_goodbye() {
    let mut door = Door::open();
    let mut client = Client::connected(door.address);
    client.send("SUBSCRIBE\nid:1\ndestination:/topic/orders\n\n\0");
    assert!(client.hear().header("message-id").is_some());
    let _ = door.stop.take().unwrap().send(());
    assert_eq!(client.hear(), Heard::Close(1001));
}

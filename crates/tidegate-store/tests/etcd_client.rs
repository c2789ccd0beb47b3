//! The client of etcd, against real ones: transactions, leases, users, TLS, members that fail.
#![cfg(feature = "etcd")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::time::{Duration, Instant};
use tidegate_store::etcd::{Condition, Etcd, LeaseId, Operation, Outcome, Pair, Txn, Url};
use tidegate_store::{Meaning, StoreError, Tls, TlsFiles};
use tidegate_testkit::Stopwatch;
use tidegate_testkit::certificates::{authority, certify, write_ca};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers;
use tidegate_testkit::servers::etcd::{Etcd as Server, PASSWORD};
use tidegate_testkit::servers::free_port;

const LONG: Duration = Duration::from_secs(5);
/// What a decision may take.
const SHORT: Duration = Duration::from_millis(50);

fn key(name: &str) -> Vec<u8> {
    format!("tidegate/{name}").into_bytes()
}

fn put(name: &str, value: &str, lease: Option<LeaseId>) -> Operation {
    Operation::Put { key: key(name), value: value.into(), lease }
}

fn get(name: &str) -> Operation {
    Operation::Get { key: key(name) }
}

fn is(name: &str, revision: i64) -> Condition {
    Condition::Revision { key: key(name), is: revision }
}

fn unchanged(prefix: &str, revision: i64) -> Condition {
    Condition::UnchangedSince { prefix: key(prefix), revision }
}

fn when(when: Vec<Condition>, then: Vec<Operation>, otherwise: Vec<Operation>) -> Txn {
    Txn { when, then, otherwise }
}

fn always(then: Vec<Operation>) -> Txn {
    when(vec![], then, vec![])
}

fn values(outcome: &Outcome) -> Vec<String> {
    let text = |pair: &Pair| String::from_utf8(pair.value.clone()).unwrap();
    outcome.found.iter().map(|pairs| pairs.iter().map(text).collect::<Vec<_>>().join(" ")).collect()
}

async fn open(endpoints: &str) -> Etcd {
    Etcd::open(endpoints.parse().unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_transaction_is_done_when_its_conditions_hold_and_shows_what_is_there_when_not() {
    let server = Server::start();
    let etcd = open(&server.endpoints()).await;
    assert_eq!(etcd.down(), None);

    let first = etcd.transact(&when(vec![is("a", 0)], vec![put("a", "1", None)], vec![]), LONG).await.unwrap();
    assert!(first.held);
    let lost = when(vec![is("a", 0)], vec![put("a", "2", None)], vec![get("a"), get("b")]);
    let lost = etcd.transact(&lost, LONG).await.unwrap();
    let there = Pair { key: key("a"), value: b"1".to_vec(), revision: first.revision };
    assert_eq!(lost, Outcome { held: false, revision: first.revision, found: vec![vec![there], vec![]] });

    let second = when(vec![is("a", first.revision)], vec![put("a", "\0\u{ff}", None), get("a")], vec![]);
    let second = etcd.transact(&second, LONG).await.unwrap();
    assert_eq!((second.held, second.found[1][0].revision), (true, second.revision));
    assert_eq!(second.found[1][0].value, "\0\u{ff}".as_bytes());

    // A whole prefix: nothing in it may have changed since.
    let under = Operation::GetPrefix { prefix: key("p/") };
    let made = always(vec![put("p/1", "x", None), put("p/2", "y", None), put("q", "z", None), under.clone()]);
    let made = etcd.transact(&made, LONG).await.unwrap();
    assert_eq!(values(&made)[3], "x y");
    let quiet = when(vec![unchanged("p/", made.revision)], vec![put("q", "w", None)], vec![]);
    assert!(etcd.transact(&quiet, LONG).await.unwrap().held, "a key outside of the prefix does not count");
    assert!(etcd.transact(&quiet, LONG).await.unwrap().held);
    let changed = etcd.transact(&always(vec![put("p/2", "v", None)]), LONG).await.unwrap();
    let lost = when(vec![unchanged("p/", changed.revision - 1)], vec![], vec![under]);
    let lost = etcd.transact(&lost, LONG).await.unwrap();
    assert_eq!((lost.held, values(&lost)[0].as_str()), (false, "x v"));
    assert!(etcd.transact(&when(vec![unchanged("none/", 0)], vec![], vec![]), LONG).await.unwrap().held);

    let gone = etcd.transact(&always(vec![Operation::Delete { key: key("a") }, get("a")]), LONG).await.unwrap();
    assert_eq!(values(&gone), ["", ""]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_write_over_the_same_value_one_does() {
    let server = Server::start();
    let etcd = open(&server.endpoints()).await;
    let tasks: Vec<_> = (0..100)
        .map(|writer| {
            let etcd = etcd.clone();
            let txn = when(vec![is("one", 0)], vec![put("one", &writer.to_string(), None)], vec![get("one")]);
            tokio::spawn(async move { etcd.transact(&txn, LONG).await.unwrap() })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        won += u32::from(task.await.unwrap().held);
    }
    assert_eq!(won, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_under_a_lease_goes_with_it() {
    let server = Server::start();
    let etcd = open(&server.endpoints()).await;
    let kept = etcd.grant_lease(Duration::from_secs(60), LONG).await.unwrap();
    let short = etcd.grant_lease(Duration::from_millis(1), LONG).await.unwrap();
    let both = always(vec![put("kept", "1", Some(kept)), put("short", "1", Some(short))]);
    etcd.transact(&both, LONG).await.unwrap();
    assert_eq!(etcd.keep_alive(kept, LONG).await, Ok(Duration::from_secs(60)));

    let since = Instant::now();
    while values(&etcd.transact(&always(vec![get("short")]), LONG).await.unwrap()) != [""] {
        assert!(since.elapsed() < Duration::from_secs(20), "the key outlives its lease");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(etcd.keep_alive(short, LONG).await, Ok(Duration::ZERO));
    assert_eq!(etcd.revoke(short, LONG).await, Ok(()));
    let error = etcd.transact(&always(vec![put("short", "2", Some(short))]), LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { meaning: Meaning::NoLease, .. }), "{error}");

    assert_eq!(values(&etcd.transact(&always(vec![get("kept")]), LONG).await.unwrap()), ["1"]);
    assert_eq!(etcd.revoke(kept, LONG).await, Ok(()));
    assert_eq!(values(&etcd.transact(&always(vec![get("kept")]), LONG).await.unwrap()), [""]);
}

/// etcd's own answer to a lease that a new leader inherits is its full time again, so that a key under one may
/// live twice as long. That is why no count may depend on a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn another_leader_takes_over_and_one_endpoint_that_is_dead_is_passed_over() {
    let mut server = Server::three();
    let etcd = open(&format!("http://127.0.0.1:{},{}", free_port(), server.endpoints())).await;
    let mut revision = etcd.transact(&always(vec![put("count", "0", None)]), LONG).await.unwrap().revision;
    let leader = server.leader();
    let (mut count, mut silent, mut back) = (0, 0, None);
    let mut killed = None;
    let since = Instant::now();
    while back.is_none_or(|back: Instant| back.elapsed() < Duration::from_millis(500)) {
        assert!(since.elapsed() < Duration::from_secs(30), "it does not come back");
        if killed.is_none() && count == 20 {
            server.members[leader].signal("STOP");
            killed = Some(Instant::now());
        }
        let next = (count + 1).to_string();
        let txn = when(vec![is("count", revision)], vec![put("count", &next, None)], vec![get("count")]);
        let started = Stopwatch::start();
        match etcd.transact(&txn, SHORT).await {
            Ok(Outcome { held: true, revision: now, .. }) => {
                (revision, count) = (now, count + 1);
                back = back.or(killed.map(|_| Instant::now()));
            }
            // What was ambiguous was done.
            Ok(lost) => {
                let there = &lost.found[0][0];
                assert_eq!(there.value, next.as_bytes(), "nobody else writes");
                (revision, count) = (there.revision, count + 1);
            }
            Err(error) => {
                assert!(!matches!(error, StoreError::Garbled { .. }), "{error}");
                silent += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert!(started.own_time() < SHORT * 3, "a call took {:?}", started.own_time());
    }
    let away = back.unwrap() - killed.unwrap();
    println!("leader stopped: back after {away:?}, {silent} calls without an answer, counted to {count}");
    assert!(away < Duration::from_secs(10), "{away:?}");
    server.members[leader].signal("CONT");
    server.members[leader].kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn users_and_their_roles() {
    let server = Server::with_users();
    let as_user = |user: &str, password: &str| {
        let mut url: Url = server.endpoints().parse().unwrap();
        (url.user, url.password) = (Some(user.to_owned()), Some(password.to_owned()));
        Etcd::open(url)
    };
    let write = always(vec![put("a", "1", None)]);

    let etcd = as_user("tidegate", PASSWORD).await;
    assert_eq!(etcd.down(), None);
    assert!(etcd.transact(&write, LONG).await.unwrap().held, "logged in before the first request");
    let lease = etcd.grant_lease(LONG, LONG).await.unwrap();
    assert_eq!(etcd.keep_alive(lease, LONG).await, Ok(LONG));
    let outside = always(vec![Operation::Get { key: b"elsewhere".to_vec() }]);
    let error = etcd.transact(&outside, LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { meaning: Meaning::NoRole, .. }), "{error}");
    assert!(error.to_string().contains("readwrite on the prefix tidegate/"), "{error}");

    for (user, password, meaning, says) in [
        ("tidegate", "secret", Meaning::WrongPassword, "user or password is wrong; correct it in [store]"),
        ("nobody", "secret", Meaning::WrongPassword, "user or password is wrong"),
    ] {
        let etcd = as_user(user, password).await;
        let told = etcd.transact(&write, LONG).await.unwrap_err();
        assert!(matches!(told, StoreError::Refused { meaning: found, .. } if found == meaning), "{told}");
        for text in [told.to_string(), format!("{etcd:?} {:?}", etcd.down())] {
            assert!(!text.contains("secret"), "{text}");
        }
        assert!(told.to_string().contains(says), "{told}");
        assert_eq!(etcd.down(), Some(told));
    }
    let error = as_user("other", PASSWORD).await.transact(&write, LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { meaning: Meaning::NoRole, .. }), "{error}");
    let error = open(&server.endpoints()).await.transact(&write, LONG).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { meaning: Meaning::NoAuth, .. }), "{error}");
    assert!(error.to_string().contains("it wants a password"), "{error}");
}

/// Tokens die with the member that gave them; passwords do not. And an etcd that has no users takes us as we are.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_token_that_is_not_taken_any_more_is_got_anew() {
    let mut server = Server::with_users();
    let mut url: Url = server.endpoints().parse().unwrap();
    (url.user, url.password) = (Some("root".to_owned()), Some(PASSWORD.to_owned()));
    let etcd = Etcd::open(url).await;
    let write = always(vec![put("a", "1", None)]);
    assert!(etcd.transact(&write, LONG).await.unwrap().held);

    server.members[0].kill();
    server.members[0].start_again(&[]);
    let since = Instant::now();
    while let Err(error) = etcd.transact(&write, LONG).await {
        assert!(since.elapsed() < Duration::from_secs(10), "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.control("--user root:hush auth disable");
    assert!(etcd.transact(&write, LONG).await.unwrap().held);
    server.control("auth enable");
    assert!(etcd.transact(&write, LONG).await.unwrap().held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn tls_with_a_private_ca_and_a_clients_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (ours, foreign) = (authority(), authority());
    let ca = write_ca(folder, "ca.pem", &ours);
    let other_ca = write_ca(folder, "other.pem", &foreign);
    let own = certify(folder, "own", &ours, "127.0.0.1", 2100);
    let client = certify(folder, "client", &ours, "tidegate", 2100);
    let texts = [&own.0, &own.1, &ca].map(|path| path.display().to_string());
    let [cert, secret, trusted] = &texts;
    let words = ["--cert-file", cert, "--key-file", secret, "--trusted-ca-file", trusted, "--client-cert-auth"];
    let server = Server::secret(&words);

    let write = always(vec![put("a", "1", None)]);
    let ask = async |files: TlsFiles| {
        let mut url: Url = server.endpoints().parse().unwrap();
        url.tls = Some(Tls::load(files).unwrap());
        let etcd = Etcd::open(url).await;
        etcd.transact(&write, LONG).await.map(|outcome| outcome.held)
    };
    let known = |ca: &std::path::PathBuf| TlsFiles { ca: Some(ca.clone()), client: Some(client.clone()) };
    let since = Instant::now();
    while ask(known(&ca)).await != Ok(true) {
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", ask(known(&ca)).await);
    }
    let error = ask(known(&other_ca)).await.unwrap_err().to_string();
    assert!(error.contains("nobody we trust has signed it; name its CA in ca_file"), "{error}");
    assert!(ask(TlsFiles { ca: Some(ca.clone()), client: None }).await.is_err(), "it wants to know who we are");
}

/// One fault, what the caller is told, and how it goes on when the fault is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_ambiguous_and_a_dead_etcd_costs_little() {
    let server = Server::start();
    let port = server.members[0].port;
    let late = Fault::Delay(Duration::from_millis(400));
    for fault in [Fault::Silence, Fault::Mute(10), Fault::Cut(10), Fault::Reset, late] {
        let proxy = Proxy::before(port);
        let etcd = open(&format!("http://127.0.0.1:{}", proxy.port)).await;
        let write = always(vec![put("a", "1", None)]);
        etcd.transact(&write, LONG).await.unwrap();
        proxy.set(fault);
        // The proxy's threads look at it every millisecond.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let started = Stopwatch::start();
        let error = etcd.transact(&write, SHORT).await.unwrap_err();
        assert!(started.own_time() < SHORT * 2, "{fault:?}: {:?}", started.own_time());
        assert!(error.is_ambiguous(), "{fault:?}: {error}");

        if fault == Fault::Silence {
            assert!(!etcd.answers());
            let started = Stopwatch::start();
            for _ in 0..1000 {
                let error = etcd.transact(&write, SHORT).await.unwrap_err();
                assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
            }
            assert!(started.own_time() < Duration::from_millis(200), "a thousand took {:?}", started.own_time());
        }
        proxy.set(Fault::None);
        let back = Stopwatch::start();
        while let Err(error) = etcd.transact(&write, SHORT).await {
            assert!(back.own_time() < Duration::from_secs(1), "F2 {fault:?}: {error}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Connecting had half a second, always: over a way that takes longer, a connection that was lost once never came back.
/// It is TLS that takes round trips to connect; a relay answers TCP itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_connection_over_a_slow_way_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let ours = authority();
    let ca = write_ca(folder.path(), "ca.pem", &ours);
    let own = certify(folder.path(), "own", &ours, "127.0.0.1", 2100);
    let [cert, secret] = &[&own.0, &own.1].map(|path| path.display().to_string());
    let server = Server::secret(&["--cert-file", cert, "--key-file", secret]);
    let proxy = Proxy::before(server.members[0].port);
    let mut url: Url = format!("https://127.0.0.1:{}", proxy.port).parse().unwrap();
    url.tls = Some(Tls::load(TlsFiles { ca: Some(ca), client: None }).unwrap());
    let etcd = Etcd::open(url).await;
    let write = always(vec![put("a", "1", None)]);
    let since = Instant::now();
    while etcd.transact(&write, LONG).await.is_err() {
        assert!(since.elapsed() < LONG, "{:?}", etcd.down());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let slow = Fault::Delay(Duration::from_millis(700));
    proxy.set(slow);
    assert!(etcd.transact(&write, LONG).await.unwrap().held, "over the connection that stands");
    proxy.set(Fault::Cut(0));
    assert!(etcd.transact(&write, LONG).await.is_err(), "the connection is lost");
    proxy.set(slow);
    let since = Instant::now();
    while let Err(error) = etcd.transact(&write, LONG).await {
        assert!(since.elapsed() < Duration::from_secs(20), "never connected again: {error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_no_etcd_is_said_so() {
    // Nobody there.
    let port = free_port();
    let etcd = open(&format!("http://127.0.0.1:{port}")).await;
    let error = etcd.transact(&always(vec![]), LONG).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{port}")) && text.contains("correct its address in [store]"), "{text}");
    // Another server there.
    let redis = servers::Server::redis(&[]);
    let etcd = open(&format!("http://127.0.0.1:{}", redis.port)).await;
    assert!(etcd.down().is_some());
}

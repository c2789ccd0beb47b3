//! A gate on a Redis that fails, in every way that one server can: what is answered, what is counted, what
//! people are told, and that exact service comes back (A7, F2, F3).
//!
//! Every case is a line of data through [`check`]. Gates here have `on_failure = deny`, so that an answer that
//! is not the store's is a denial, and what was admitted can be held against what the store counted.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, OnFailure, Policy, Request, Rules, StoreHealth, StoreSettings};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers;
use tidegate_testkit::servers::Server;
use tokio::runtime::{Builder, Runtime};

const LIMIT: u32 = 1_000;
const MS: Duration = Duration::from_millis(1);
const DEADLINE: Duration = Duration::from_millis(50);

struct World {
    server: Server,
    proxy: Proxy,
    gate: Gate,
    runtime: Runtime,
    asked: u32,
    admitted: u32,
    /// A connection that was there before the fault.
    held: Option<TcpStream>,
}

/// A way to fail.
struct Case {
    /// Arguments of the server.
    arguments: &'static [&'static str],
    /// User and password in the URL, and the database.
    login: (&'static str, &'static str),
    /// True: there is service before the fault.
    works_first: bool,
    begin: fn(&mut World),
    /// The counter of the error.
    kind: &'static str,
    /// A part of what people are told.
    says: &'static str,
    end: fn(&mut World),
    /// What becomes of the counts.
    counts: Counts,
}

#[derive(PartialEq)]
enum Counts {
    Stay,
    AreLost,
}

impl Default for Case {
    fn default() -> Case {
        Case {
            arguments: &[],
            login: ("", ""),
            works_first: true,
            begin: |_| {},
            kind: "",
            says: "",
            end: |_| {},
            counts: Counts::Stay,
        }
    }
}

impl World {
    fn new(case: &Case, deadline: Duration) -> World {
        let server = Server::redis(case.arguments);
        let proxy = Proxy::before(server.port);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let gate = runtime.block_on(open(case.login.0, proxy.port, case.login.1, OnFailure::Deny, deadline));
        World { server, proxy, gate, runtime, asked: 0, admitted: 0, held: None }
    }

    /// One hit; true if the store decided.
    fn hit(&mut self) -> bool {
        self.asked += 1;
        let began = Instant::now();
        let answer = self.runtime.block_on(self.gate.ask(&Request::hit("api", b"k"))).unwrap();
        assert!(began.elapsed() < 500 * MS, "an answer after {:?}", began.elapsed());
        assert!(answer.degraded.is_none() || !answer.allowed, "a denial at the worst: {answer:?}");
        self.admitted += u32::from(answer.allowed);
        answer.degraded.is_none()
    }

    #[track_caller]
    fn hits_until(&mut self, what: &str, most: Duration, done: impl Fn(&mut World, bool) -> bool) -> Duration {
        let since = Instant::now();
        loop {
            let exact = self.hit();
            if done(self, exact) {
                return since.elapsed();
            }
            assert!(since.elapsed() < most, "not within {most:?}: {what}; {:?}", self.health());
            std::thread::sleep(2 * MS);
        }
    }

    fn health(&self) -> StoreHealth {
        self.gate.store_health().unwrap()
    }

    fn counted(&self, kind: &str) -> u64 {
        self.health().errors.iter().find(|(known, _)| *known == kind).map_or(0, |(_, count)| *count)
    }

    /// What the store holds of the key's limit.
    fn used(&self) -> u32 {
        let peek = self.runtime.block_on(self.gate.ask(&Request::hit("api", b"k").peek())).unwrap();
        assert_eq!(peek.degraded, None);
        LIMIT - peek.remaining.unwrap()
    }
}

async fn open(login: &str, port: u16, database: &str, on_failure: OnFailure, deadline: Duration) -> Gate {
    let rules = Rules::new(Algorithm::FixedWindow, &[format!("{LIMIT} per hour").parse().unwrap()]).unwrap();
    let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
    let url = format!("redis://{login}127.0.0.1:{port}{database}").parse().unwrap();
    let settings = StoreSettings { on_failure, deadline, ..StoreSettings::default() };
    Gate::connect(&policy, url, settings, Clock::process()).await
}

#[track_caller]
fn check(case: Case) {
    let mut world = World::new(&case, DEADLINE);
    if case.works_first {
        world.hits_until("service", 2_000 * MS, |_, exact| exact);
    }
    (case.begin)(&mut world);
    let since = Instant::now();
    world.hits_until("a failure", 3_000 * MS, |_, exact| !exact);
    let told = |world: &World| {
        let error = world.health().error.map(|error| error.to_string()).unwrap_or_default();
        error.contains(case.says).then_some(error)
    };
    world.hits_until("a word on it, and its counter", 3_000 * MS, |world, _| {
        told(world).is_some() && world.counted(case.kind) > 0
    });
    println!("{:?}: {:?}", since.elapsed(), told(&world));
    assert!(world.health().degraded > 0);
    (case.end)(&mut world);
    let back = world.hits_until("exact service", 1_000 * MS, |_, exact| exact);
    println!("exact again after {back:?}");
    let settled = world.hits_until("no word of it", 1_000 * MS, |world, _| world.health().error.is_none());
    assert!(settled < 1_000 * MS);
    let (used, World { asked, admitted, .. }) = (world.used(), &world);
    println!("{admitted} admitted, {used} counted, {asked} asked");
    assert!(used <= *asked, "A7: {used} were counted of {asked}");
    assert!(case.counts == Counts::AreLost || *admitted <= used, "A7: {admitted} admitted, and {used} counted");
}

fn config(world: &World, setting: &str, value: &str) {
    let reply = world.server.command(&["CONFIG", "SET", setting, value]);
    assert!(reply.starts_with("+OK"), "{reply}");
}

#[test]
fn f3_memory_is_full() {
    check(Case {
        begin: |world| config(world, "maxmemory", "1"),
        kind: "oom",
        says: "its maxmemory is reached; raise it",
        end: |world| config(world, "maxmemory", "0"),
        ..Case::default()
    });
}

#[test]
fn f3_the_password_is_wrong() {
    check(Case {
        arguments: &["--requirepass", "secret"],
        login: (":wrong@", ""),
        works_first: false,
        kind: "wrongpass",
        says: "user or password is wrong; correct it in [store]",
        end: |world| {
            let reply = world.server.command(&["AUTH", "secret"]);
            assert!(reply.starts_with("+OK"), "{reply}");
            set_password(world, "wrong");
        },
        ..Case::default()
    });
}

#[test]
fn f3_a_password_is_wanted() {
    check(Case {
        arguments: &["--requirepass", "secret"],
        works_first: false,
        kind: "noauth",
        says: "it wants a password; give it in [store]",
        end: |world| set_password(world, ""),
        ..Case::default()
    });
}

/// Over one connection, as the server wants a password of each.
fn set_password(world: &World, password: &str) {
    let mut wire = TcpStream::connect(("127.0.0.1", world.server.port)).unwrap();
    let words = format!("AUTH secret\r\nCONFIG SET requirepass \"{password}\"\r\n");
    wire.write_all(words.as_bytes()).unwrap();
    expect(&mut wire, "+OK\r\n+OK\r\n");
}

fn expect(wire: &mut TcpStream, reply: &str) {
    wire.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = vec![0; reply.len()];
    wire.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), reply);
}

/// The user may look at keys, and not run scripts.
#[test]
fn f3_the_user_may_not_run_scripts() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "~tg:*", "+get"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "the user lacks a permission; allow it",
        end: |world| allow_app(world, &["+@all"]),
        ..Case::default()
    });
}

/// The user may run scripts, and nothing in them.
#[test]
fn f3_the_user_may_not_write_in_scripts() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "~tg:*", "+get", "+eval", "+evalsha", "+time"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "the user lacks a permission; allow it",
        end: |world| allow_app(world, &["+@all"]),
        ..Case::default()
    });
}

/// The user's keys are others than ours.
#[test]
fn f3_the_user_has_other_keys() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "~other:*", "+@all"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "the user lacks a permission; allow it",
        end: |world| allow_app(world, &["~tg:*"]),
        ..Case::default()
    });
}

/// What the message tells people to allow is enough.
#[test]
fn f3_the_permissions_that_are_told_of_are_enough() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "+get"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "+eval +evalsha +time +@read +@write on the keys tg:*",
        end: |world| allow_app(world, &["+eval", "+evalsha", "+time", "+@read", "+@write", "~tg:*"]),
        ..Case::default()
    });
}

fn allow_app(world: &World, rules: &[&str]) {
    let reply = world.server.command(&[&["ACL", "SETUSER", "app"], rules].concat());
    assert!(reply.starts_with("+OK"), "{reply}");
}

#[test]
fn f3_it_is_a_replica() {
    check(Case {
        begin: |world| replicate(world),
        kind: "readonly",
        says: "it is a replica; point [store] url to the master",
        end: |world| drop(world.server.command(&["REPLICAOF", "NO", "ONE"])),
        ..Case::default()
    });
}

#[test]
fn f3_a_replica_lost_its_master() {
    check(Case {
        begin: |world| {
            config(world, "replica-serve-stale-data", "no");
            replicate(world);
        },
        kind: "masterdown",
        says: "it is a replica that lost its master",
        end: |world| drop(world.server.command(&["REPLICAOF", "NO", "ONE"])),
        ..Case::default()
    });
}

/// Of a server that is not there.
fn replicate(world: &World) {
    world.server.command(&["REPLICAOF", "127.0.0.1", &servers::free_port().to_string()]);
}

#[test]
fn f3_too_few_replicas() {
    check(Case {
        begin: |world| config(world, "min-replicas-to-write", "1"),
        kind: "noreplicas",
        says: "too few of its replicas are connected",
        end: |world| config(world, "min-replicas-to-write", "0"),
        ..Case::default()
    });
}

#[test]
fn f3_it_cannot_save() {
    check(Case {
        begin: |world| {
            std::fs::create_dir(world.server.directory().join("dump.rdb")).unwrap();
            config(world, "save", "3600 1000000");
            world.server.command(&["BGSAVE"]);
        },
        kind: "misconf",
        says: "it cannot save to its disk",
        end: |world| config(world, "save", ""),
        ..Case::default()
    });
}

#[test]
fn f3_a_script_of_another_runs_for_too_long() {
    check(Case {
        arguments: &["--busy-reply-threshold", "5"],
        begin: |world| {
            let mut wire = TcpStream::connect(("127.0.0.1", world.server.port)).unwrap();
            wire.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
            world.held = Some(wire);
        },
        kind: "busy",
        says: "a script of another client runs for too long; end it with SCRIPT KILL",
        end: |world| drop(world.server.command(&["SCRIPT", "KILL"])),
        ..Case::default()
    });
}

#[test]
fn f3_it_takes_no_more_clients() {
    check(Case {
        begin: |world| {
            let mut wire = TcpStream::connect(("127.0.0.1", world.server.port)).unwrap();
            wire.write_all(b"CONFIG SET maxclients 1\r\nCLIENT KILL TYPE normal SKIPME yes\r\n").unwrap();
            expect(&mut wire, "+OK\r\n:");
            world.held = Some(wire);
        },
        kind: "maxclients",
        says: "its maxclients is reached; raise it",
        end: |world| drop(world.held.take()),
        ..Case::default()
    });
}

#[test]
fn f3_it_has_no_such_database() {
    check(Case {
        login: ("", "/99"),
        works_first: false,
        kind: "nodatabase",
        says: "it does not have this database; choose a lower number",
        end: |world| {
            world.server.kill();
            world.server.start_again(&["--databases", "100"]);
        },
        ..Case::default()
    });
}

#[test]
fn f3_it_is_a_node_of_a_cluster_that_is_down() {
    check(Case {
        arguments: &["--cluster-enabled", "yes"],
        works_first: false,
        kind: "clusterdown",
        says: "a part of the cluster has no node",
        end: |world| {
            world.server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
            // It takes its time to see that all slots are there.
            let up = || world.server.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            while !up() {
                std::thread::sleep(5 * MS);
            }
        },
        ..Case::default()
    });
}

#[test]
fn f3_it_is_loading_after_a_restart() {
    check(Case {
        arguments: &["--enable-debug-command", "yes"],
        begin: |world| {
            world.server.command(&["DEBUG", "POPULATE", "20000"]);
            assert!(world.server.command(&["SAVE"]).starts_with("+OK"));
            world.server.kill();
            let slowly = ["--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024"];
            world.server.start_again(&slowly);
        },
        kind: "loading",
        says: "it is loading its data; wait until it has",
        end: |world| {
            while world.server.command(&["PING"]).starts_with("-LOADING") {
                std::thread::sleep(5 * MS);
            }
        },
        ..Case::default()
    });
}

#[test]
fn f2_it_is_restarted() {
    check(Case {
        begin: |world| world.server.kill(),
        kind: "unreachable",
        says: "cannot be reached",
        end: |world| world.server.start_again(&[]),
        counts: Counts::AreLost,
        ..Case::default()
    });
}

#[test]
fn a7_every_reply_is_cut_in_half() {
    check(Case {
        // The greeting passes, and a decision's reply does not.
        begin: |world| world.proxy.set(Fault::Cut(23)),
        kind: "no_reply",
        says: "cannot be reached",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn a7_half_a_reply_and_then_silence() {
    check(Case {
        begin: |world| world.proxy.set(Fault::Mute(9)),
        kind: "no_reply",
        says: "it is silent",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn a7_replies_come_after_twice_the_deadline() {
    check(Case {
        begin: |world| world.proxy.set(Fault::Delay(100 * MS)),
        kind: "no_reply",
        says: "it is silent",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn a7_replies_trickle() {
    check(Case {
        begin: |world| world.proxy.set(Fault::Trickle(200)),
        kind: "no_reply",
        says: "it is silent",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn a7_connections_are_taken_and_nothing_is_said() {
    check(Case {
        begin: |world| world.proxy.set(Fault::Silence),
        kind: "no_reply",
        says: "it is silent",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn a7_connections_are_reset() {
    check(Case {
        begin: |world| world.proxy.set(Fault::Reset),
        kind: "unreachable",
        says: "onnection reset by peer",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn it_is_no_redis() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let gate = runtime.block_on(open("", port, "", OnFailure::Deny, DEADLINE));
    let health = gate.store_health().unwrap();
    let error = health.error.unwrap();
    assert_eq!(error.label(), "garbled");
    assert!(error.to_string().contains("is it the server that [store] means?"), "{error}");
    assert_eq!(health.errors, [("garbled", 1)]);
}

/// Scripts that are gone are sent whole, at once and without a trace.
#[test]
fn f3_scripts_are_flushed_all_the_time() {
    let mut world = World::new(&Case::default(), 5_000 * MS);
    for _ in 0..50 {
        world.server.command(&["SCRIPT", "FLUSH"]);
        assert!(world.hit());
    }
    assert_eq!((world.admitted, world.used()), (50, 50));
    assert_eq!((world.health().errors, world.health().degraded), (Vec::new(), 0));
}

/// Counts that are gone are gone; decisions go on, with what the store then holds.
#[test]
fn a6_all_keys_are_flushed() {
    let mut world = World::new(&Case::default(), 5_000 * MS);
    for _ in 0..5 {
        assert!(world.hit());
    }
    world.server.command(&["FLUSHALL"]);
    assert_eq!(world.used(), 0);
    assert!(world.hit());
    assert_eq!((world.used(), world.health().degraded), (1, 0));
}

/// Connections that are killed over and over, under load: the limit holds, and every admission is counted.
#[test]
fn a7_clients_are_killed_under_load() {
    let mut world = World::new(&Case::default(), 5_000 * MS);
    let since = Instant::now();
    let mut kills = 0;
    while since.elapsed() < 3_000 * MS {
        for _ in 0..10 {
            world.hit();
        }
        world.server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        kills += 1;
        std::thread::sleep(20 * MS);
    }
    world.hits_until("exact service", 1_000 * MS, |_, exact| exact);
    let used = world.used();
    println!("{kills} kills: {} admitted, {used} counted, {} asked", world.admitted, world.asked);
    assert!(world.admitted <= used && used <= world.asked);
    assert!(world.admitted > 50 && world.health().degraded > 0);
}

/// A server that is not there when the gate is made, and comes later.
#[test]
fn f2_it_comes_after_the_gate() {
    let mut server = Server::redis(&[]);
    server.kill();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (on_failure, allowed) in [(OnFailure::Deny, false), (OnFailure::Allow, true), (OnFailure::Local, true)] {
        let gate = runtime.block_on(open("", server.port, "", on_failure, DEADLINE));
        let error = gate.store().down().unwrap().to_string();
        assert!(error.contains("refused") && error.contains("start it, or correct its address in [store]"), "{error}");
        let answer = runtime.block_on(gate.ask(&Request::hit("api", b"k"))).unwrap();
        assert_eq!((answer.allowed, answer.degraded), (allowed, Some(on_failure)));
    }
    let gate = runtime.block_on(open("", server.port, "", OnFailure::Deny, DEADLINE));
    server.start_again(&[]);
    let since = Instant::now();
    while runtime.block_on(gate.ask(&Request::hit("api", b"k"))).unwrap().degraded.is_some() {
        assert!(since.elapsed() < 1_000 * MS, "F2: {:?}", gate.store().down());
        std::thread::sleep(2 * MS);
    }
}

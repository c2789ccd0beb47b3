//! Connections and servers that come and go, and replies that do not come (A6, A7, F2).

use crate::world::{Case, Counts, MS, World, check, deadline, open};
use std::time::Instant;
use tidegate::{OnFailure, Request};
use tidegate_testkit::faults::Fault;
use tidegate_testkit::servers::Server;
use tidegate_testkit::{Stopwatch, WAIT_TIME_MAX};
use tokio::runtime::Builder;

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
        begin: |world| world.proxy.set(Fault::Delay(2 * deadline())),
        kind: "no_reply",
        says: "it is silent",
        end: |world| world.proxy.set(Fault::None),
        ..Case::default()
    });
}

#[test]
fn a7_replies_trickle() {
    check(Case {
        // A reply has some twenty bytes.
        begin: |world| world.proxy.set(Fault::Trickle(u32::try_from(10_000 / deadline().as_millis()).unwrap().max(1))),
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
    while since.elapsed() < 3_000 * MS || world.admitted <= 50 || world.health().degraded == 0 {
        assert!(since.elapsed() < 4 * WAIT_TIME_MAX, "{} admitted, {:?}", world.admitted, world.health());
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
}

/// A server that is not there when the gate is made, and comes later.
#[test]
fn f2_it_comes_after_the_gate() {
    let mut server = Server::redis(&[]);
    server.kill();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (on_failure, allowed) in [(OnFailure::Deny, false), (OnFailure::Allow, true), (OnFailure::Local, true)] {
        let gate = runtime.block_on(open("", server.port, "", on_failure, deadline()));
        let error = gate.store().down().unwrap().to_string();
        assert!(error.contains("refused") && error.contains("start it, or correct its address in [store]"), "{error}");
        let answer = runtime.block_on(gate.ask(&Request::hit("api", b"k"))).unwrap();
        assert_eq!((answer.allowed, answer.degraded), (allowed, Some(on_failure)));
    }
    let gate = runtime.block_on(open("", server.port, "", OnFailure::Deny, deadline()));
    server.start_again(&[]);
    let since = Stopwatch::start();
    while runtime.block_on(gate.ask(&Request::hit("api", b"k"))).unwrap().degraded.is_some() {
        assert!(since.elapsed() < 1_000 * MS, "F2: {:?}", gate.store().down());
        std::thread::sleep(2 * MS);
    }
}

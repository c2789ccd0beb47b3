//! `on_failure = local`: each of R processes admits its share of each limit while the store is away, and no
//! more in a window whatever the store does. The clock is set by hand; the outage is a proxy's silence.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::time::Duration;
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Micros, OnFailure, Policy, Request, Rules, StoreSettings};
use tidegate_testkit::faults::{Fault, Proxy};
use tidegate_testkit::servers::Server;
use tidegate_testkit::{eventually, slowness};
use tokio::runtime::{Builder, Runtime};

const LIMIT: u32 = 10;
const START: Micros = Micros::from_secs(1_700_000_040);

/// Two processes on one store, each with half of every limit while it is away.
struct World {
    gates: Vec<Gate>,
    proxy: Proxy,
    runtime: Runtime,
    _server: Server,
}

impl World {
    fn new(algorithm: Algorithm) -> World {
        let server = Server::redis(&[]);
        let proxy = Proxy::before(server.port);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let rules = Rules::new(algorithm, &[format!("{LIMIT} per minute").parse().unwrap()]).unwrap();
        let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
        let mut gates = Vec::new();
        for _ in 0..2 {
            let url = format!("redis://127.0.0.1:{}", proxy.port).parse().unwrap();
            // Nothing may be late but for the outage, which costs each process one wait.
            let deadline = Duration::from_millis(500) * slowness().min(6);
            let settings = StoreSettings { local_share: 0.5, deadline, ..StoreSettings::default() };
            gates.push(runtime.block_on(Gate::connect(&policy, url, settings, Clock::manual(START))));
        }
        World { gates, proxy, runtime, _server: server }
    }

    fn at(&self, seconds: u64) {
        self.gates.iter().for_each(|gate| gate.clock().set(START.saturating_add(Micros::from_secs(seconds))));
    }

    fn store(&self, fault: Fault) {
        self.proxy.set(fault);
        let away = fault != Fault::None;
        let is_so = |gate: &Gate| {
            let peek = self.runtime.block_on(gate.ask(&Request::hit("api", b"nobody").peek())).unwrap();
            peek.degraded.is_some() == away
        };
        // A look is enough to find out, and it takes nothing.
        eventually("both have noticed", || self.gates.iter().all(is_so));
    }

    /// What both admit of 20 hits each, and who decides.
    #[track_caller]
    fn admits(&self, expected: u32, degraded: Option<OnFailure>) {
        let mut admitted = 0;
        for gate in self.gates.iter().cycle().take(40) {
            let answer = self.runtime.block_on(gate.ask(&Request::hit("api", b"k"))).unwrap();
            assert_eq!(answer.degraded, degraded);
            admitted += u32::from(answer.allowed);
        }
        assert_eq!(admitted, expected);
    }
}

/// N from the store, and from each process its share: N + R·share·N in a window with an outage.
#[test]
fn a_window_with_an_outage_admits_the_limit_and_every_share() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let world = World::new(algorithm);
        world.admits(LIMIT, None);
        world.store(Fault::Silence);
        world.admits(2 * LIMIT / 2, Some(OnFailure::Local));
        // The next window: the counts of the last one have aged here and there.
        world.at(61);
        world.admits(2 * LIMIT / 2, Some(OnFailure::Local));
        world.store(Fault::None);
        world.admits(LIMIT, None);
        // And none of what was counted here comes into a later window there.
        world.at(122);
        world.admits(LIMIT, None);
    }
}

/// A store that comes and goes gives no second share, nor a second limit.
#[test]
fn a_store_that_flaps_within_a_window_gives_no_second_share() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let world = World::new(algorithm);
        world.store(Fault::Silence);
        world.admits(2 * LIMIT / 2, Some(OnFailure::Local));
        for turn in 0..3 {
            world.store(Fault::None);
            world.admits(if turn == 0 { LIMIT } else { 0 }, None);
            world.store(Fault::Silence);
            world.admits(0, Some(OnFailure::Local));
        }
    }
}

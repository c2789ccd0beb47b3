//! A gate on a Redis behind a proxy that fails, and `check`.

use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, OnFailure, Policy, Request, Rules, StoreHealth, StoreSettings};
use tidegate_testkit::faults::Proxy;
use tidegate_testkit::servers::Server;
use tidegate_testkit::{Stopwatch, slowness};
use tokio::runtime::{Builder, Runtime};

pub(crate) const LIMIT: u32 = 1_000;
pub(crate) const MS: Duration = Duration::from_millis(1);

/// How long a decision may wait for the store: 50 ms, and on a busy machine as much longer as it is slower.
pub(crate) fn deadline() -> Duration {
    static DEADLINE: OnceLock<Duration> = OnceLock::new();
    *DEADLINE.get_or_init(|| 50 * MS * slowness())
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) proxy: Proxy,
    pub(crate) gate: Gate,
    pub(crate) runtime: Runtime,
    pub(crate) asked: u32,
    pub(crate) admitted: u32,
    /// A connection that was there before the fault.
    pub(crate) held: Option<TcpStream>,
    deadline: Duration,
}

/// A way to fail.
pub(crate) struct Case {
    /// Arguments of the server.
    pub(crate) arguments: &'static [&'static str],
    /// User and password in the URL, and the database.
    pub(crate) login: (&'static str, &'static str),
    /// True: there is service before the fault.
    pub(crate) works_first: bool,
    pub(crate) begin: fn(&mut World),
    /// The counter of the error.
    pub(crate) kind: &'static str,
    /// A part of what people are told.
    pub(crate) says: &'static str,
    pub(crate) end: fn(&mut World),
    /// What becomes of the counts.
    pub(crate) counts: Counts,
}

#[derive(PartialEq)]
pub(crate) enum Counts {
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
    pub(crate) fn new(case: &Case, deadline: Duration) -> World {
        let server = Server::redis(case.arguments);
        let proxy = Proxy::before(server.port);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let gate = runtime.block_on(open(case.login.0, proxy.port, case.login.1, OnFailure::Deny, deadline));
        World { server, proxy, gate, runtime, asked: 0, admitted: 0, held: None, deadline }
    }

    /// One hit; true if the store decided.
    pub(crate) fn hit(&mut self) -> bool {
        self.asked += 1;
        let began = Stopwatch::start();
        let answer = self.runtime.block_on(self.gate.ask(&Request::hit("api", b"k"))).unwrap();
        assert!(began.elapsed() < self.deadline + 200 * MS, "an answer after {:?}", began.elapsed());
        assert!(answer.degraded.is_none() || !answer.allowed, "a denial at the worst: {answer:?}");
        self.admitted += u32::from(answer.allowed);
        answer.degraded.is_none()
    }

    #[track_caller]
    pub(crate) fn hits_until(
        &mut self,
        what: &str,
        most: Duration,
        done: impl Fn(&mut World, bool) -> bool,
    ) -> Duration {
        let since = Stopwatch::start();
        loop {
            let exact = self.hit();
            if done(self, exact) {
                return since.elapsed();
            }
            assert!(since.elapsed() < most, "not within {most:?}: {what}; {:?}", self.health());
            std::thread::sleep(2 * MS);
        }
    }

    pub(crate) fn health(&self) -> StoreHealth {
        self.gate.store_health().unwrap()
    }

    pub(crate) fn counted(&self, kind: &str) -> u64 {
        self.health().errors.iter().find(|(known, _)| *known == kind).map_or(0, |(_, count)| *count)
    }

    /// What the store holds of the key's limit.
    pub(crate) fn used(&self) -> u32 {
        let since = Stopwatch::start();
        loop {
            let peek = self.runtime.block_on(self.gate.ask(&Request::hit("api", b"k").peek())).unwrap();
            if peek.degraded.is_none() {
                return LIMIT - peek.remaining.unwrap();
            }
            assert!(since.elapsed() < 1_000 * MS, "F2: {:?}", self.health());
        }
    }
}

pub(crate) async fn open(login: &str, port: u16, database: &str, on_failure: OnFailure, deadline: Duration) -> Gate {
    let rules = Rules::new(Algorithm::FixedWindow, &[format!("{LIMIT} per hour").parse().unwrap()]).unwrap();
    let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
    let url = format!("redis://{login}127.0.0.1:{port}{database}").parse().unwrap();
    let settings = StoreSettings { on_failure, deadline, ..StoreSettings::default() };
    Gate::connect(&policy, url, settings, Clock::process()).await
}

#[track_caller]
pub(crate) fn check(case: Case) {
    let mut world = World::new(&case, deadline());
    if case.works_first {
        world.hits_until("service", 2_000 * MS, |_, exact| exact);
    }
    (case.begin)(&mut world);
    let since = Stopwatch::start();
    world.hits_until("a failure", 3_000 * MS, |_, exact| !exact);
    let told = |world: &World| {
        let error = world.health().error.map(|error| error.to_string()).unwrap_or_default();
        error.contains(case.says).then_some(error)
    };
    world.hits_until("a word on it, and its counter", 3_000 * MS, |world, _| {
        told(world).is_some() && world.counted(case.kind) > 0
    });
    println!("{:?}: {:?}", since.elapsed(), told(&world));
    let remedy = "start it, or correct its address";
    let answers = !["unreachable", "no_reply"].contains(&case.kind);
    let wrong = told(&world).filter(|told| answers && told.contains(remedy));
    assert_eq!(wrong, None, "a server that answers has been started, and was found");
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

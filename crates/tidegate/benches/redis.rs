//! Decisions through one Redis, beside redis-benchmark with the same script and as many requests under way.
//! `cargo bench -p tidegate --features redis --bench redis`
//!
//! One Redis, 50 × 16 requests under way on either side, 100,000 keys that are all known before. Rates are of the
//! wall clock and of the server's processor time; the machine's mood is in the former. The round trips
//! are what the server itself counted.
#![allow(clippy::unwrap_used, missing_docs, reason = "a bench that panics has failed")]
#![allow(clippy::cast_precision_loss, reason = "for people")]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Policy, Request, Rules, StoreSettings};
use tidegate_testkit::servers::Server;

const KEYS: u64 = 100_000;
const REQUESTS: u64 = 300_000;
const UNDER_WAY: u64 = 800;
const ROUNDS: usize = 5;

/// The usual way to do it: time of arrival in one number, nothing else.
const GCRA: &str = "local t=redis.call('TIME') local now=t[1]*1000000+t[2] local interval=tonumber(ARGV[1]) \
    local tat=math.max(tonumber(redis.call('GET',KEYS[1]) or now),now)+interval \
    local ahead=tat-now if ahead>interval*tonumber(ARGV[2]) then return {0,ahead} end \
    redis.call('SET',KEYS[1],tat,'PX',math.ceil(ahead/1000)) return {1,ahead}";

fn main() {
    let server = Server::redis(&[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let gate = runtime.block_on(gate(&server));
    let plain = include_str!("../../tidegate-store/src/redis/lua/token_bucket_plain.lua");
    let (plain, gcra) = (load(&server, plain), load(&server, GCRA));
    // What the library sends for a key whose name is kept; the limit, 1,000,000 per hour, comes last.
    let same: Vec<&str> =
        format!("EVALSHA {plain} 2 bench:__rand_int__ bench:index __rand_int__").leak().split(' ').collect();
    let limit: Vec<u8> =
        [3600.0, 1.0, 3.6e9, 3.6e9, 3.6e9].iter().flat_map(|number: &f64| number.to_le_bytes()).collect();
    let gcra: Vec<&str> = format!("EVALSHA {gcra} 1 gcra:__rand_int__ 3600").leak().split(' ').collect();
    run_library(&runtime, &gate, KEYS);
    redis_benchmark(&server, &same, &limit);
    println!("per second of the wall clock, and of the server's processor; medians of {ROUNDS}");
    let mut rows: [(&str, Vec<[f64; 2]>); 4] = [
        ("library", vec![]),
        ("redis-benchmark, same script", vec![]),
        ("redis-benchmark, plain GCRA", vec![]),
        ("redis-benchmark, INCR", vec![]),
    ];
    for _ in 0..ROUNDS {
        rows[0].1.push(measure(&server, || run_library(&runtime, &gate, REQUESTS)));
        rows[1].1.push(measure(&server, || redis_benchmark(&server, &same, &limit)));
        rows[2].1.push(measure(&server, || redis_benchmark(&server, &gcra, b"1000000")));
        rows[3].1.push(measure(&server, || redis_benchmark(&server, &["INCR"], b"incr:__rand_int__")));
    }
    let medians = rows.map(|(name, rates)| {
        let rates = [0, 1].map(|column| median(rates.iter().map(|rate| rate[column]).collect()));
        println!("  {name:30} {:>9.0} {:>9.0}", rates[0], rates[1]);
        rates
    });
    println!(
        "library / same script: {:.2} by the wall, {:.2} by the server's processor",
        medians[0][0] / medians[1][0],
        medians[0][1] / medians[1][1]
    );
    println!(
        "token bucket / plain GCRA: {:.2}; / INCR: {:.2}",
        medians[1][1] / medians[2][1],
        medians[1][1] / medians[3][1]
    );
    server.command(&["CONFIG", "RESETSTAT"]);
    run_library(&runtime, &gate, REQUESTS);
    println!("round trips of a decision: {:.4}", calls(&server) as f64 / REQUESTS as f64);
}

async fn gate(server: &Server) -> Gate {
    let rules = Rules::new(Algorithm::TokenBucket, &["1000000 per hour".parse().unwrap()]).unwrap();
    let settings = StoreSettings { deadline: Duration::from_secs(10), ..StoreSettings::default() };
    let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
    Gate::connect(&policy, server.url().parse().unwrap(), settings, Clock::process()).await
}

fn run_library(runtime: &tokio::runtime::Runtime, gate: &Gate, requests: u64) {
    let next = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let tasks: Vec<_> = (0..UNDER_WAY)
            .map(|_| {
                let (gate, next) = (gate.clone(), Arc::clone(&next));
                tokio::spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        if number >= requests {
                            return;
                        }
                        // Spread like random keys, and as many.
                        let key = format!("{:012}", number.wrapping_mul(2_654_435_761) % KEYS);
                        let answer = gate.ask(&Request::hit("api", key.as_bytes())).await.unwrap();
                        assert!(answer.allowed && answer.degraded.is_none(), "{answer:?}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// The last argument goes to its standard input, as it may be any bytes.
fn redis_benchmark(server: &Server, command: &[&str], last: &[u8]) {
    let (port, n, r) = (server.port.to_string(), REQUESTS.to_string(), KEYS.to_string());
    let mut run = Command::new("redis-benchmark");
    run.args(["-p", &port, "-q", "-c", "50", "-P", "16", "-n", &n, "-r", &r, "-x"]).args(command);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(last).unwrap();
    assert!(child.wait().unwrap().success());
}

fn measure(server: &Server, work: impl FnOnce()) -> [f64; 2] {
    let (before, since) = (processor(server), Instant::now());
    work();
    [REQUESTS as f64 / since.elapsed().as_secs_f64(), REQUESTS as f64 / (processor(server) - before)]
}

fn processor(server: &Server) -> f64 {
    let info = server.command(&["INFO", "cpu"]);
    let field =
        |name: &str| -> f64 { info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap() };
    field("used_cpu_sys:") + field("used_cpu_user:")
}

fn load(server: &Server, script: &str) -> String {
    server.command(&["SCRIPT", "LOAD", script]).lines().nth(1).unwrap().to_owned()
}

/// Scripts that the server ran since its counters were reset.
fn calls(server: &Server) -> u64 {
    let info = server.command(&["INFO", "commandstats"]);
    let of = |verb: &str| {
        let start = format!("cmdstat_{verb}:calls=");
        info.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    of("evalsha") + of("eval")
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

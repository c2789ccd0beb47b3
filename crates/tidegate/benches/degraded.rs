//! What a dead store costs: decisions a second through `Gate::ask` with a Redis that is not there, beside the
//! embedded store's in the same run.
//!
//! `cargo bench -p tidegate --features redis --bench degraded`. Rounds of all alternate, and the best round
//! counts: noise on a shared machine only adds. The target is 0.8 of the embedded store's for `local`.
#![allow(clippy::unwrap_used, reason = "a bench that cannot set itself up should stop")]

use std::time::Instant;
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, OnFailure, Policy, Request, Rules, StoreSettings};
use tokio::runtime::{Builder, Runtime};

const DECISIONS: usize = 1_000_000;
const ROUNDS: usize = 7;

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let dead = |on_failure| runtime.block_on(on_dead_store(on_failure));
    let gates = [
        ("embedded", Gate::embedded(policy())),
        ("store dead, local", dead(OnFailure::Local)),
        ("store dead, allow", dead(OnFailure::Allow)),
        ("store dead, deny", dead(OnFailure::Deny)),
    ];
    for keys in [1_usize, 10_000, 1_000_000] {
        let names: Vec<String> = (0..keys).map(|key| format!("user-{key:011}")).collect();
        for threads in [1, 2] {
            let mut best = [f64::MAX; 4];
            for _ in 0..ROUNDS {
                for (best, (_, gate)) in best.iter_mut().zip(&gates) {
                    *best = best.min(nanos(&runtime, gate, &names, threads));
                }
            }
            println!("{keys} keys, {threads} thread(s)");
            for ((what, _), each) in gates.iter().zip(best) {
                let million_a_second = 1_000.0 * f64::from(threads) / each;
                println!("  {what:<20}{million_a_second:>8.2} M/s{:>8.2}x", best[0] / each);
            }
        }
    }
}

/// Wall nanoseconds per decision and thread.
fn nanos(runtime: &Runtime, gate: &Gate, names: &[String], threads: u32) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads as usize {
            scope.spawn(move || {
                runtime.block_on(async {
                    for turn in 0..DECISIONS {
                        // A stride that is prime to the number of keys, so that all come, and none in order.
                        let key = &names[(turn + thread).wrapping_mul(7_919) % names.len()];
                        let answer = gate.ask(&Request::hit("bench", key.as_bytes())).await;
                        std::hint::black_box(answer.is_ok_and(|answer| answer.allowed));
                    }
                });
            });
        }
    });
    start.elapsed().as_nanos() as f64 / DECISIONS as f64
}

fn policy() -> Policy {
    let rules = Rules::new(Algorithm::TokenBucket, &["1000000 per second".parse().unwrap()]).unwrap();
    Policy::new(vec![LimiterSpec::new("bench", rules)]).unwrap()
}

/// Nobody listens on port 1.
async fn on_dead_store(on_failure: OnFailure) -> Gate {
    let settings = StoreSettings { on_failure, ..StoreSettings::default() };
    let url = "redis://127.0.0.1:1".parse().unwrap();
    let gate = Gate::connect(&policy(), url, settings, Clock::process()).await;
    assert!(gate.store().down().is_some());
    gate
}

//! Candidates (A12): counted beside the live limits on every store, as a naive recount says, and changing nothing.

use crate::play::{at, spec};
use crate::stores::{Store, patient};
use tidegate::{Algorithm, Clock, Gate, LimiterSpec, Request, Rules};
use tidegate_testkit::Random;

/// A user's limit with a candidate, an address's without, and a limiter that is a candidate by itself.
fn limiters(algorithm: Algorithm, scope: &str, candidates: bool) -> Vec<LimiterSpec> {
    let one = |name: &'static str, limit: &'static str, by: &'static str| {
        let limits: &'static [&'static str] = Box::leak(Box::new([limit]));
        spec(&(name, algorithm, limits, Some(by))).in_scope(format!("{scope}-{name}-{candidates}"))
    };
    let rules = |limit: &str| Rules::new(algorithm, &[limit.parse().unwrap()]).unwrap();
    let (user, ip) = (one("user", "3 per 10s", "user"), one("ip", "5 per 10s", "ip"));
    if !candidates {
        return vec![user, ip];
    }
    let user = LimiterSpec { candidate_rules: Some(rules("2 per 10s block 20s")), ..user };
    // Would deny everything.
    let never = LimiterSpec { candidate: true, ..one("never", "0 per 10s", "user") };
    vec![never, user, ip]
}

/// The naive recount: windows of ten seconds, by hand.
#[derive(Default)]
struct Recount {
    window: u64,
    user: [u32; 3],
    ip: [u32; 3],
    candidate: [u32; 3],
    blocked_until: [u64; 3],
    allowed: u64,
    denied: u64,
    never: u64,
}

impl Recount {
    fn hit(&mut self, second: u64, user: usize, ip: usize) -> bool {
        if second / 10 != self.window {
            let (window, blocked_until) = (second / 10, self.blocked_until);
            let (allowed, denied, never) = (self.allowed, self.denied, self.never);
            *self = Recount { window, blocked_until, allowed, denied, never, ..Recount::default() };
        }
        let (user_allows, ip_allows) = (self.user[user] < 3, self.ip[ip] < 5);
        let is_blocked = self.blocked_until[user] > second;
        let candidate_allows = !is_blocked && self.candidate[user] < 2;
        // In place of the user's own limit: that one is not asked.
        if candidate_allows && ip_allows {
            self.candidate[user] += 1;
            self.allowed += 1;
        } else if !candidate_allows {
            self.denied += 1;
            if !is_blocked {
                self.blocked_until[user] = second + 20;
            }
        }
        self.never += 1;
        let allowed = user_allows && ip_allows;
        self.user[user] += u32::from(allowed);
        self.ip[ip] += u32::from(allowed);
        allowed
    }
}

pub(crate) fn candidates_change_nothing_and_are_counted_as_by_hand(store: &Store) {
    let gate = |candidates| {
        let scope = format!("tried-{:?}", store.kind);
        store.gate(limiters(Algorithm::AlignedWindow, &scope, candidates), patient(), Clock::manual(at("0")))
    };
    let (with, without) = (gate(true), gate(false));
    let (mut recount, mut random) = (Recount::default(), Random(12));
    let mut second = 0;
    for step in 0..120 {
        second += random.below(3);
        let (user, ip) = (random.index(3), random.index(3));
        let (user_name, ip_name) = (format!("u{user}"), format!("192.0.2.{ip}"));
        let attributes = [("user", user_name.as_bytes()), ("ip", ip_name.as_bytes())];
        let ask = |gate: &Gate, request: Request<'_>| {
            gate.clock().set(at(&second.to_string()));
            store.wait(gate.ask(&request)).unwrap()
        };
        let request = Request::of(Some("all"), &attributes);
        let place = format!("{:?}, step {step}, second {second}", store.kind);
        let told = ask(&with, request);
        let plain = ask(&without, request);
        // Every figure of the answer, and by that every header.
        let shown = |answer: &tidegate::Answer| {
            let tidegate::Answer { allowed, reason, limit, remaining, retry_after, reset_after, at, .. } = *answer;
            let name = answer.limiter.as_ref().map(|limiter| limiter.name.clone());
            format!("{name:?} {:?}", (allowed, reason, limit, remaining, retry_after, reset_after, at))
        };
        assert_eq!(shown(&told), shown(&plain), "{place}");
        assert_eq!(told.allowed, recount.hit(second, user, ip), "{place}");
        let looked = ask(&with, request.peek().explained());
        let roles: Vec<(String, bool)> =
            looked.explanation.iter().map(|one| (one.limiter.name.clone(), one.candidate)).collect();
        let expected = [("never", true), ("user", false), ("user", true), ("ip", false)];
        assert_eq!(roles, expected.map(|(name, candidate)| (name.to_owned(), candidate)), "{place}");
        assert!(looked.explanation.iter().all(|one| !(one.candidate && one.decided)), "{place}");
    }
    let counts = |name: &str| with.limiter_info(name).unwrap();
    let candidate = counts("user").candidate.unwrap();
    assert_eq!((candidate.allowed, candidate.denied), (recount.allowed, recount.denied), "{:?}", store.kind);
    assert!(candidate.denied > 10 && candidate.allowed > 10, "the test sees both");
    let never = counts("never").counts;
    assert_eq!((never.allowed, never.denied), (0, recount.never), "{:?}", store.kind);
    // By name, a limiter that is a candidate limits nothing and is not named.
    let by_name = store.wait(with.ask(&Request::hit("never", b"u0"))).unwrap();
    assert!(by_name.allowed && by_name.limiter.is_none(), "{by_name:?}");
}

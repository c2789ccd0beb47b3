//! On a clock that is passed in: time goes on when the test says so.

use super::*;
use crate::{Algorithm, Clock, LimiterSpec, Policy, Rules};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Waiter<'a> = Pin<Box<dyn Future<Output = Result<Answer, AskError>> + 'a>>;

fn gate(clock: &Clock, limit: &str) -> Gate {
    let rules = Rules::new(Algorithm::FixedWindow, &[limit.parse().unwrap()]).unwrap();
    let policy = Policy::new(vec![LimiterSpec::new("api", rules)]).unwrap();
    Gate::with_clock(policy, clock.clone())
}

fn seconds(at: u64) -> Micros {
    Micros::from_secs(at)
}

/// Polls every waiter that is left, last first: who passes is not decided by who is polled first. Returns who did.
fn pass<'a>(waiters: &mut [Option<Waiter<'a>>]) -> Vec<usize> {
    let mut passed = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    // Twice: a turn that is given up reaches the next one with its next poll.
    for index in (0..waiters.len()).rev().chain((0..waiters.len()).rev()) {
        let Some(waiter) = &mut waiters[index] else { continue };
        if let Poll::Ready(answer) = waiter.as_mut().poll(&mut context) {
            assert!(answer.unwrap().allowed);
            waiters[index] = None;
            passed.push(index);
        }
    }
    passed
}

/// Waiters come one after the other, and are polled once each so that they stand in line.
fn line<'a>(gate: &'a Gate, costs: &[u32]) -> Vec<Option<Waiter<'a>>> {
    let mut waiters: Vec<Option<Waiter<'a>>> = Vec::new();
    for cost in costs.iter().copied() {
        let mut waiter: Waiter<'a> = Box::pin(gate.until_ready("api", b"k", cost));
        assert!(waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        waiters.push(Some(waiter));
    }
    waiters
}

#[test]
fn those_who_wait_pass_in_the_order_in_which_they_came() {
    let clock = Clock::manual(seconds(100));
    let gate = gate(&clock, "2 per 10s");
    assert!(gate.hit("api", "k").unwrap().allowed && gate.hit("api", "k").unwrap().allowed);
    let mut waiters = line(&gate, &[1, 1, 1, 2, 1]);
    assert!(pass(&mut waiters).is_empty());
    clock.set(seconds(109));
    assert!(pass(&mut waiters).is_empty());
    let mut all = Vec::new();
    for at in [110, 120, 130, 140] {
        clock.set(seconds(at));
        loop {
            let passed = pass(&mut waiters);
            if passed.is_empty() {
                break;
            }
            all.extend(passed.into_iter().map(|index| (at, index)));
        }
    }
    // The fourth wants two, and the fifth does not overtake it though one was left at 120.
    assert_eq!(all, [(110, 0), (110, 1), (120, 2), (130, 3), (140, 4)]);
    assert_eq!(gate.lines(), 0);
}

#[test]
fn whoever_leaves_is_not_charged_and_holds_nobody_up() {
    let clock = Clock::manual(seconds(100));
    let gate = gate(&clock, "1 per 10s");
    assert!(gate.hit("api", "k").unwrap().allowed);
    let mut waiters = line(&gate, &[1, 1, 1, 1]);
    // The one whose turn it is, and one in the middle.
    waiters[0] = None;
    waiters[2] = None;
    clock.set(seconds(110));
    assert_eq!(pass(&mut waiters), [1]);
    clock.set(seconds(120));
    assert_eq!(pass(&mut waiters), [3]);
    assert_eq!(gate.lines(), 0);
    clock.set(seconds(130));
    assert!(gate.hit("api", "k").unwrap().allowed, "those who left were charged nothing");
}

#[test]
fn keys_do_not_wait_for_each_other_and_what_never_passes_is_told() {
    let clock = Clock::manual(seconds(100));
    let gate = gate(&clock, "2 per 10s");
    assert!(gate.hit("api", "k").unwrap().allowed && gate.hit("api", "k").unwrap().allowed);
    let waiters = line(&gate, &[1]);
    let mut context = Context::from_waker(Waker::noop());
    let mut other = Box::pin(gate.until_ready("api", b"other", 2));
    assert!(matches!(other.as_mut().poll(&mut context), Poll::Ready(Ok(answer)) if answer.allowed));
    let mut never = Box::pin(gate.until_ready("api", b"third", 3));
    assert!(matches!(never.as_mut().poll(&mut context), Poll::Ready(Ok(answer)) if !answer.allowed));
    let mut wait = Box::pin(gate.wait("api", b"k", 1));
    assert!(matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(Some(left))) if left == seconds(10)));
    let mut wait = Box::pin(gate.wait("api", b"k", 3));
    assert!(matches!(wait.as_mut().poll(&mut context), Poll::Ready(Ok(None))));
    assert_eq!(gate.lines(), 1);
    drop(waiters);
    assert_eq!(gate.lines(), 0);
}

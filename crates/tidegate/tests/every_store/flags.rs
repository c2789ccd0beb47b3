//! Flags of disabled limiters: what they do, and that every gate on the store learns of them.

use crate::play::{Limiter, spec};
use crate::stores::{Store, patient};
use std::time::{Duration, Instant};
use tidegate::{Algorithm, Clock, LimiterSpec, Reason, Request};

/// The window that every store can count in.
const ONE: Limiter = ("flagged", Algorithm::AlignedWindow, &["1 per day"], None);

pub(crate) fn a_disabled_limiter_is_always_fine_and_counts_nothing(store: &Store) {
    let ignoring = LimiterSpec { name: "ignoring".to_owned(), honour_disable: false, ..spec(&ONE) };
    let gate = store.gate(vec![spec(&ONE), ignoring], patient(), Clock::process());
    store.wait(async {
        for (limiter, honours) in [("flagged", true), ("ignoring", false)] {
            let all = gate.actions(limiter);
            assert!(all.is_enabled().await.unwrap());
            all.disable().await.unwrap();
            assert!(!all.is_enabled().await.unwrap());
            for allowed in [true, honours] {
                assert_eq!(gate.ask(&Request::hit(limiter, b"u")).await.unwrap().allowed, allowed, "{:?}", store.kind);
            }
            all.enable().await.unwrap();
            // What was asked of a disabled limiter was not counted.
            let left = gate.ask(&Request::hit(limiter, b"u").peek()).await.unwrap().remaining;
            assert_eq!(left, Some(u32::from(honours)), "{:?}", store.kind);
        }
    });
}

pub(crate) fn a_flag_reaches_every_gate_within_a_second(store: &Store) {
    if !store.capabilities().shared {
        return;
    }
    let gates = [(); 2].map(|()| store.gate(vec![spec(&ONE).in_scope("seen-by-two")], patient(), Clock::process()));
    for enabled in [false, true] {
        store.wait(gates[0].set_enabled("flagged", enabled)).unwrap();
        let since = Instant::now();
        loop {
            let answer = store.wait(gates[1].ask(&Request::hit("flagged", b"u").peek())).unwrap();
            if (answer.reason != Reason::Disabled) == enabled {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(1), "{:?}: {answer:?}", store.kind);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

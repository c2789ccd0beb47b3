//! The same scenarios on every store, each as far as its [`tidegate::Capabilities`] go.
//!
//! [`stores::Kind`] is the one list of stores; `decisions.rs` and `actions.rs` are the scenarios as texts, which
//! [`play`] reads, and `steering.rs` those of limits by value; `flags.rs` and `faults.rs` those of two gates and of servers that stop and die. A store's servers are
//! started once for all its scenarios: starting a cluster takes longer than playing them.
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

mod actions;
mod batches;
mod candidates;
mod decisions;
mod faults;
mod flags;
mod play;
mod reserve;
mod steering;
mod stores;
mod together;

use stores::Kind;

/// What a store that works answers.
fn check(kind: Kind) {
    let store = kind.start();
    for scenario in decisions::ALL.iter().chain(&actions::ALL).chain(&steering::ALL) {
        play::check(&store, scenario);
    }
    actions::any_identifier_survives_listing_and_scopes_stay_apart(&store);
    actions::work_is_done_unless_limited_and_counted_when_it_succeeds(&store);
    together::requests_are_charged_together_or_not_at_all(&store);
    together::one_of_the_alternatives_has_to_allow(&store);
    flags::a_disabled_limiter_is_always_fine_and_counts_nothing(&store);
    flags::a_flag_reaches_every_gate_within_a_second(&store);
    steering::an_override_reaches_every_gate_within_a_second(&store);
    candidates::candidates_change_nothing_and_are_counted_as_by_hand(&store);
    batches::many_are_answered_each_by_itself_in_order(&store);
    batches::overrides_and_candidates_count_in_batches(&store);
    batches::each_call_brings_its_limit_and_may_give_back(&store);
    batches::what_was_charged_is_given_back_the_latest_first(&store);
    reserve::a_reservation_is_ended_once_by_whoever_has_it(&store);
    store.check_expiries();
}

#[test]
fn a5_a9_a10_the_same_answers_embedded() {
    check(Kind::Embedded);
}

#[test]
fn a5_a9_a10_the_same_answers_on_redis() {
    check(Kind::Redis);
}

#[test]
fn a5_a9_a10_the_same_answers_on_valkey() {
    check(Kind::Valkey);
}

#[test]
fn a5_a9_a10_the_same_answers_behind_sentinels() {
    check(Kind::Sentinel);
}

#[test]
fn a5_a9_a10_the_same_answers_on_a_cluster() {
    check(Kind::Cluster);
}

#[test]
fn a5_a9_a10_the_same_answers_behind_twemproxy() {
    check(Kind::Twemproxy);
}

#[test]
fn a5_a9_a10_the_same_answers_on_etcd() {
    check(Kind::Etcd);
}

#[test]
fn a5_a9_a10_the_same_answers_on_a_memory_server() {
    check(Kind::MemoryServer);
}

#[test]
fn f1_f2_redis_stops_and_dies() {
    faults::check(Kind::Redis);
}

#[test]
fn f1_f2_valkey_stops_and_dies() {
    faults::check(Kind::Valkey);
}

#[test]
fn f1_f2_redis_and_its_sentinels_stop_and_die() {
    faults::check(Kind::Sentinel);
}

#[test]
fn f1_f2_a_cluster_stops_and_dies() {
    faults::check(Kind::Cluster);
}

#[test]
fn f1_f2_twemproxy_and_its_shards_stop_and_die() {
    faults::check(Kind::Twemproxy);
}

#[test]
fn f1_f2_etcd_stops_and_dies() {
    faults::check(Kind::Etcd);
}

#[test]
fn f1_f2_a_memory_server_stops_and_dies() {
    faults::check(Kind::MemoryServer);
}

//! Coalesces requests for the same keys into batches: one transaction each.
//!
//! Keys of a transaction under way are busy. A request that needs one of them is parked behind it; when the transaction
//! is done, all that were parked are taken up in the order in which they came, and those that share keys go into
//! one batch. Nothing here waits.

use super::batch::{Batch, Request};
use std::collections::HashMap;

/// Busy keys, each with the requests that wait for it.
#[derive(Default)]
pub(super) struct Coalescer {
    busy: HashMap<Vec<u8>, Vec<Request>>,
    /// How many requests came, to keep their order.
    came: u64,
}

/// Most keys of a batch: a transaction compares each, and etcd takes 128 comparisons.
const KEYS_MAX: usize = 64;
/// Most requests of a batch.
const REQUESTS_MAX: usize = 1_000;

impl Coalescer {
    /// Batches that can start now; all else is parked.
    pub(super) fn take(&mut self, requests: Vec<Request>) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        // The keys of these batches.
        let mut forming: HashMap<Vec<u8>, usize> = HashMap::new();
        for mut request in requests {
            if request.number == 0 {
                self.came += 1;
                request.number = self.came;
            }
            if request.is_given_up() {
                continue;
            }
            match self.place(&request, &batches, &forming) {
                Place::Parked(key) => self.busy.entry(key).or_default().push(request),
                Place::In(batch) => {
                    for key in request.keys() {
                        self.busy.entry(key.to_vec()).or_default();
                        forming.insert(key.to_vec(), batch);
                    }
                    if batch == batches.len() {
                        batches.push(Batch::default());
                    }
                    batches[batch].add(request);
                }
            }
        }
        batches
    }

    /// A batch has come to an end: what waited for its keys can go on.
    pub(super) fn done(&mut self, batch: &Batch) -> Vec<Batch> {
        let mut parked: Vec<Request> = batch.keys().filter_map(|key| self.busy.remove(key)).flatten().collect();
        parked.sort_by_key(|request| request.number);
        self.take(parked)
    }

    fn place(&self, request: &Request, batches: &[Batch], forming: &HashMap<Vec<u8>, usize>) -> Place {
        let under_way = request.keys().find(|key| self.busy.contains_key(*key) && !forming.contains_key(*key));
        if let Some(key) = under_way {
            return Place::Parked(key.to_vec());
        }
        let mut shared = request.keys().filter_map(|key| Some((key, *forming.get(key)?)));
        match (shared.next(), shared.next()) {
            (None, _) => Place::In(batches.len()),
            // Its keys are in two batches: it waits for one of them.
            (Some((key, one)), Some((_, other))) if one != other => Place::Parked(key.to_vec()),
            (Some((key, batch)), _) => {
                let has_room = batches[batch].len() < REQUESTS_MAX
                    && batches[batch].keys().count() + request.keys().count() <= KEYS_MAX;
                if has_room { Place::In(batch) } else { Place::Parked(key.to_vec()) }
            }
        }
    }
}

enum Place {
    /// Behind this key.
    Parked(Vec<u8>),
    /// In this batch; one past the last is a new one.
    In(usize),
}

//! Requests with a ticket: in line, or called and not yet started.
//!
//! Each stands in the line of one place. Its weight is counted while it is in line.

use super::line::{Line, Linked, Links, NONE, at};
use super::{Micros, Permit};
use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(super) struct Waiter<W> {
    pub(super) place: u32,
    pub(super) call: Option<W>,
    weight: u32,
    /// A request that comes back goes in front of all whose order is later. A new request has the latest order.
    order: Micros,
    permit: Option<Permit>,
    links: Links,
}

impl<W> Linked for Waiter<W> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

#[derive(Debug)]
pub(super) struct Waiters<W> {
    all: Vec<Waiter<W>>,
    free: Line,
    in_line: u32,
    weight: u64,
}

impl<W> Default for Waiters<W> {
    fn default() -> Waiters<W> {
        Waiters { all: Vec::new(), free: Line::EMPTY, in_line: 0, weight: 0 }
    }
}

impl<W> Waiters<W> {
    /// Goes to the end of a line.
    pub(super) fn join(&mut self, line: &mut Line, place: u32, weight: u32, call: W) -> u32 {
        let number = self.make(place, weight, call, Micros::MAX);
        line.push_back(&mut self.all, number);
        number
    }

    /// Goes back into a line, in front of all requests that came later.
    pub(super) fn rejoin(&mut self, line: &mut Line, place: u32, weight: u32, call: W, order: Micros) -> u32 {
        let number = self.make(place, weight, call, order);
        line.insert_before(&mut self.all, number, |other| other.order > order);
        number
    }

    fn make(&mut self, place: u32, weight: u32, call: W, order: Micros) -> u32 {
        let waiter = Waiter { place, call: Some(call), weight, order, permit: None, links: Links::ALONE };
        self.in_line += 1;
        self.weight += u64::from(weight);
        match self.free.pop_front(&mut self.all) {
            Some(number) => {
                self.all[at(number)] = waiter;
                number
            }
            None => {
                self.all.push(waiter);
                // New requests are bounded by `Bounds::waiting`, those that come back by `Bounds::total`.
                u32::try_from(self.all.len() - 1).unwrap_or(NONE)
            }
        }
    }

    /// Gives the first request of a line a permit, and takes it out of the line. There must be one.
    pub(super) fn call_first(&mut self, line: &mut Line, permit: Permit) -> Option<W> {
        let number = line.pop_front(&mut self.all)?;
        let waiter = &mut self.all[at(number)];
        waiter.permit = Some(permit);
        let (weight, call) = (waiter.weight, waiter.call.take());
        self.step_out(weight);
        call
    }

    /// Calls all requests of a line that want to be called, each once.
    pub(super) fn call_all(&mut self, line: &Line, called: &mut Vec<W>) {
        let mut number = line.next_of(&mut self.all, None);
        while let Some(waiter) = number {
            called.extend(self.all[at(waiter)].call.take());
            number = line.next_of(&mut self.all, Some(waiter));
        }
    }

    /// Takes the permit, if there is one, and the ticket with it.
    pub(super) fn claim(&mut self, number: u32) -> Result<Permit, ()> {
        let permit = self.all[at(number)].permit.take().ok_or(())?;
        self.free(number);
        Ok(permit)
    }

    pub(super) fn leave(&mut self, line: &mut Line, number: u32) {
        line.remove(&mut self.all, number);
        self.step_out(self.all[at(number)].weight);
        self.free(number);
    }

    fn step_out(&mut self, weight: u32) {
        self.in_line -= 1;
        self.weight -= u64::from(weight);
    }

    fn free(&mut self, number: u32) {
        self.all[at(number)].call = None;
        self.free.push_back(&mut self.all, number);
    }

    pub(super) fn in_line(&self) -> u32 {
        self.in_line
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight
    }
}

impl<W> Index<u32> for Waiters<W> {
    type Output = Waiter<W>;

    fn index(&self, number: u32) -> &Waiter<W> {
        &self.all[at(number)]
    }
}

impl<W> IndexMut<u32> for Waiters<W> {
    fn index_mut(&mut self, number: u32) -> &mut Waiter<W> {
        &mut self.all[at(number)]
    }
}

//! Waiting until a request passes: how long that is, and waiting for it in a line for each key.
//!
//! The line is this process's: who came first asks first, and nobody behind asks before. Whoever leaves, by dropping the future, leaves the line, and
//! nothing is charged for it; unless it leaves while a store on other machines is charging it, as every hit does.
//! Invariant: a line is there as long as somebody stands in it, and no longer.

use super::Gate;
use crate::{Answer, AskError, Request};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::Micros;
use tokio::sync::Mutex as Turn;

/// A limiter's name and a key.
type Name = (String, Vec<u8>);

/// The lines of all keys that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Lines(Mutex<HashMap<Name, Arc<Turn<()>>>>);

/// A place in a line. The turn goes in the order of places: tokio's lock is a fair one.
struct Place<'a> {
    lines: &'a Lines,
    name: Name,
    turn: Arc<Turn<()>>,
}

impl Gate {
    /// How long until a hit of this cost would pass, as things stand: zero when it would now; `None`: it never can. Charges nothing.
    ///
    /// # Errors
    /// As [`Gate::ask`].
    pub async fn wait(&self, limiter: &str, key: &[u8], cost: u32) -> Result<Option<Micros>, AskError> {
        let seen = self.ask(&Request::hit(limiter, key).cost(cost).peek()).await?;
        Ok(if seen.allowed { Some(Micros::ZERO) } else { seen.retry_after })
    }

    /// Waits until a hit of this cost passes, and charges it. Those who wait for one key in this process pass in the order in which they
    /// came; a hit that does not wait may pass before them. A denial is returned only where it can never pass. The future can be
    /// dropped at any time.
    ///
    /// It peeks before it hits, so that waiting starts no blocks and counts no denials, unless another is faster between the two.
    ///
    /// # Errors
    /// As [`Gate::ask`].
    pub async fn until_ready(&self, limiter: &str, key: &[u8], cost: u32) -> Result<Answer, AskError> {
        let place = self.0.lines.enter(self.line_of(limiter, key)?);
        let _turn = place.turn.lock().await;
        let hit = Request::hit(limiter, key).cost(cost);
        loop {
            let mut answer = self.ask(&hit.peek()).await?;
            if answer.allowed {
                answer = self.ask(&hit).await?;
            }
            match answer.retry_after {
                Some(wait) if !answer.allowed => {
                    self.0.clock.reach(self.now().saturating_add(wait.max(SHORTEST))).await
                }
                _ => return Ok(answer),
            }
        }
    }

    /// The name of the line: two addresses of one network are one key.
    fn line_of(&self, limiter: &str, key: &[u8]) -> Result<Name, AskError> {
        let (limiter, key) = self.limiter_of(limiter, key)?;
        Ok((limiter.spec.name.clone(), key.into_owned()))
    }

    /// Keys that somebody waits for.
    #[cfg(test)]
    fn lines(&self) -> usize {
        self.0.lines.all().len()
    }
}

/// Nobody asks again without waiting at all.
const SHORTEST: Micros = Micros::saturating(1);

impl Lines {
    fn enter(&self, name: Name) -> Place<'_> {
        let turn = Arc::clone(self.all().entry(name.clone()).or_default());
        Place { lines: self, name, turn }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Name, Arc<Turn<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.lines.all();
        // Places are made under the same lock: the map and this one are the last two that know the line.
        if Arc::strong_count(&self.turn) == 2 {
            all.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests;

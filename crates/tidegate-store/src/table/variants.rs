//! Keys that are decided by other limits than their limiter's own: what is fresh, and what the sketch has to remember.
//!
//! A table does not know which of its keys has which limits: names may not be kept. So an entry is dropped only if it is fresh
//! by all the rules that its table is asked with, and the cells of a sketch, which keys share, count over the longest period.

use super::Table;
use super::flags::VARIANTS;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use tidegate_core::{Micros, Rules};

/// All rules that a table is asked with, where they are several.
#[derive(Debug)]
pub(crate) struct Variants {
    pub(crate) rules: Vec<Rules>,
    /// For each limit the longest period that a sketch counts it over.
    pub(crate) longest: Vec<Micros>,
}

impl Table {
    /// Says by which rules its keys are decided, besides those that it was made with; none: by those alone.
    pub fn set_variants(&self, others: Vec<Rules>) {
        let own = self.rules();
        let mut rules = vec![own];
        for other in others {
            // A count makes no difference to when a key is fresh; an average's does.
            let same = |known: &Rules| known == &other || (!is_average(&other) && periods(known).eq(periods(&other)));
            if !rules.iter().any(same) {
                rules.push(other);
            }
        }
        let longest = (0..rules[0].limits().len()).map(|at| {
            let sketched = rules.iter().filter_map(|rules| Some(rules.checks().nth(at)?.sketched().period()));
            sketched.max().unwrap_or_default()
        });
        let several = rules.len() > 1;
        let variants = Variants { longest: longest.collect(), rules };
        let mut held = self.variants.write().unwrap_or_else(PoisonError::into_inner);
        *held = several.then(|| Arc::new(variants));
        self.set_flag(VARIANTS, several);
    }

    /// All rules that it is asked with, where they are several.
    pub(super) fn variants(&self) -> Option<Arc<Variants>> {
        if self.flags.load(Relaxed) & VARIANTS == 0 {
            return None;
        }
        self.variants.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn is_average(rules: &Rules) -> bool {
    use tidegate_core::Algorithm::{LeakyAverage, StrictAverage};
    matches!(rules.algorithm(), StrictAverage | LeakyAverage)
}

fn periods(rules: &Rules) -> impl Iterator<Item = (Micros, Micros)> + '_ {
    rules.limits().iter().map(|limit| (limit.period(), limit.lead()))
}

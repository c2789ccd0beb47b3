//! What is wrong with a configuration: every problem found, each with its place.

use super::source::{Place, Source};
use std::fmt;

/// One thing that is wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    /// Where; `None` when the file as a whole is at fault.
    pub(crate) place: Option<Place>,
    /// The setting, value, bound and remedy.
    pub(crate) message: String,
}

/// Most problems printed at once; a file with more of them is probably another kind of file.
const TOLD_MAX: usize = 20;

/// Why a configuration was refused.
#[derive(Debug)]
pub(crate) struct ConfigError {
    pub(super) file: String,
    pub(super) sources: Vec<Source>,
    pub(super) problems: Vec<Problem>,
}

impl ConfigError {
    /// An error of the file as a whole.
    pub(crate) fn whole(file: String, message: String) -> ConfigError {
        ConfigError { file, sources: Vec::new(), problems: vec![Problem { place: None, message }] }
    }

    pub(crate) fn count(&self) -> usize {
        self.problems.len()
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().take(TOLD_MAX).enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            match problem.place {
                Some(place) => {
                    let source = &self.sources[place.source];
                    write!(f, "error: {}: {}\n{}", source.label(place), problem.message, source.excerpt(place))?;
                }
                None => write!(f, "error: {}: {}", self.file, problem.message)?,
            }
        }
        match self.problems.len().saturating_sub(TOLD_MAX) {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

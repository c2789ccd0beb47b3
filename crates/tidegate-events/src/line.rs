//! Where a stream's timeline is: in this process, or on a Redis that several servers share.

use crate::embedded::Embedded;
#[cfg(feature = "redis")]
use crate::shared::Shared;
use crate::{Outcome, Snapshot, SubmitError, Unavailable};

/// A stream's timeline.
pub(crate) enum Line {
    Embedded(Box<Embedded>),
    #[cfg(feature = "redis")]
    Shared(std::sync::Arc<Shared>),
}

impl Line {
    pub(crate) async fn submit(&self, event: &str) -> Result<Outcome, SubmitError> {
        match self {
            Line::Embedded(line) => line.submit(event).await,
            #[cfg(feature = "redis")]
            Line::Shared(line) => line.submit(event).await,
        }
    }

    /// The snapshot now.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        match self {
            Line::Embedded(line) => line.snapshot(),
            #[cfg(feature = "redis")]
            Line::Shared(line) => line.snapshot().await,
        }
    }

    /// Why nothing can be taken or shown now, if that is known.
    pub(crate) fn failure(&self) -> Option<Unavailable> {
        match self {
            Line::Embedded(line) => line.failure(),
            #[cfg(feature = "redis")]
            Line::Shared(line) => line.failure(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Line::Embedded(line) => line.len(),
            #[cfg(feature = "redis")]
            Line::Shared(line) => line.len(),
        }
    }

    pub(crate) fn stop(&self) {
        match self {
            Line::Embedded(line) => line.stop(),
            #[cfg(feature = "redis")]
            Line::Shared(line) => line.stop(),
        }
    }
}

//! `[grpc]`: what answers of the rate limit service carry.

use super::section::{Known, Section};
use tidegate_doors::ratelimit::RateLimitSettings;

pub(super) const KNOWN: Known = Known { here: &["headers", "dynamic_metadata"], later: &[] };

/// Reads the table.
pub(super) fn read(section: &mut Section<'_>) -> RateLimitSettings {
    RateLimitSettings {
        headers: section.boolean("headers").unwrap_or(false),
        dynamic_metadata: section.boolean("dynamic_metadata").unwrap_or(false),
    }
}

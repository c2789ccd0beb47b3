//! The figures of TLS: when certificates expire, and what became of handshakes.

use super::{Kind, Page};
use crate::listener::Tls;
use std::sync::Arc;

/// Tells of the certificate of each of these doors.
pub fn fill_certificates(doors: &[(&str, Arc<Tls>)], page: &mut Page) {
    if doors.is_empty() {
        return;
    }
    let help = "When the certificate of a door expires, in seconds since the epoch.";
    let mut expiry = page.family("tidegate_tls_certificate_expiry_seconds", Kind::Gauge, help);
    for (door, tls) in doors {
        expiry.sample(&[("door", door)], tls.expires().get() / 1_000_000);
    }
    let help = "TLS handshakes by what became of them.";
    let mut handshakes = page.family("tidegate_tls_handshakes_total", Kind::Counter, help);
    for (door, tls) in doors {
        for (outcome, count) in ["completed", "failed"].into_iter().zip(tls.handshakes()) {
            handshakes.sample(&[("door", door), ("outcome", outcome)], count);
        }
    }
}

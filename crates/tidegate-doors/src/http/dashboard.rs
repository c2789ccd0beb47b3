//! The dashboard's files, which are in the program. They need no token: what they show they ask for, as the person at the browser.
//!
//! Invariant: nothing comes from elsewhere, no script or style is inline, and no other page frames it; the browser holds the files to it.

use super::reply::{Reply, text_reply};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue};

/// `data:` is for the icon that is none: browsers would ask for one otherwise.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Does the client want a page for people? Commands get the table of routes as text.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

pub(crate) fn page() -> Reply {
    file("text/html; charset=utf-8", include_str!("dashboard/index.html"))
}

pub(crate) fn script() -> Reply {
    file("text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js"))
}

pub(crate) fn style() -> Reply {
    file("text/css; charset=utf-8", include_str!("dashboard/dashboard.css"))
}

fn file(content_type: &'static str, text: &'static str) -> Reply {
    let mut reply = text_reply(content_type, text.to_owned());
    let fields: [(HeaderName, &'static str); 4] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-cache"),
    ];
    reply.headers_mut().extend(fields.map(|(name, value)| (name, HeaderValue::from_static(value))));
    reply
}

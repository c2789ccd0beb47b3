//! The two texts that a page can be: Prometheus's own, and OpenMetrics.
//!
//! They differ in what a counter is called in its head, and in the end. OpenMetrics has room for exemplars, which name the request behind a sample:
//! there are none, as requests have no trace of their own here, and a key must not be told to monitors (promise M3).

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// How a page is written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

const OPEN_METRICS: &str = "application/openmetrics-text";

impl Format {
    /// What a monitor wants, by its `Accept` fields.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Format {
        let fields: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        Format::accepted(&fields.join(","))
    }

    /// OpenMetrics if that is named, and nothing of Prometheus's own that is liked better.
    fn accepted(accept: &str) -> Format {
        let weight = |kind: &str| {
            let ranges = accept
                .split(',')
                .filter(|range| range.split(';').next().is_some_and(|name| name.trim().eq_ignore_ascii_case(kind)));
            ranges.map(weight_of).max()
        };
        match (weight(OPEN_METRICS), weight("text/plain")) {
            (Some(open), text) if open > 0 && open >= text.unwrap_or(0) => Format::OpenMetrics,
            _ => Format::Text,
        }
    }

    /// What `Content-Type` says.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What a family is called in its head: a counter without the end that its samples have.
    pub(super) fn family(self, name: &str) -> &str {
        match self {
            Format::Text => name,
            Format::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
        }
    }

    /// What stands at the end of a page: a monitor knows by it that nothing was cut off.
    pub(super) const fn end(self) -> &'static str {
        match self {
            Format::Text => "",
            Format::OpenMetrics => "# EOF\n",
        }
    }
}

/// `q=0.5` of a media range, in thousandths; 1 where it says nothing, 0 where it is no number.
fn weight_of(range: &str) -> u16 {
    let said = range.split(';').skip(1).find_map(|parameter| parameter.trim().strip_prefix("q="));
    let Some(text) = said else { return 1_000 };
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    let thousandths = format!("{whole}{part:0<3}");
    thousandths
        .get(..4)
        .filter(|digits| whole.len() == 1 && digits.len() == thousandths.len())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitors_get_what_they_accept() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,\
                          text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, expected) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html, */*;q=0.8", Format::Text),
            (prometheus, Format::OpenMetrics),
            ("Application/OpenMetrics-Text", Format::OpenMetrics),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text; version=1.0.0; q=0.75", Format::OpenMetrics),
            ("text/plain, application/openmetrics-text;q=0.9", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=0.0001", Format::Text),
            ("application/openmetrics-text;q=many", Format::Text),
            ("application/openmetrics-textual", Format::Text),
        ] {
            assert_eq!(Format::accepted(accept), expected, "{accept}");
        }
    }
}

//! Times as a report shows them: dates where the trace has them, else seconds from its origin.

use super::super::at::Seconds;
use super::super::timeline::Axis;
use crate::{calendar, human};
use tidegate::Micros;

/// How times of one trace are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Clockface {
    /// Epoch times, within one day.
    TimeOfDay,
    /// Epoch times over several days.
    Dates,
    /// Seconds from an origin of the trace's own.
    Seconds,
}

/// Times from here on (September 2001) are taken for epoch times.
const EPOCH_TIMES: Micros = Micros::from_secs(1_000_000_000);

impl Clockface {
    pub(super) fn of(axis: &Axis) -> Clockface {
        match axis.span() {
            Some((first, last)) if first >= EPOCH_TIMES => {
                let days = |at| calendar::date_and_time(at).0;
                if days(first) == days(last) { Clockface::TimeOfDay } else { Clockface::Dates }
            }
            _ => Clockface::Seconds,
        }
    }

    /// `, 2026-11-15 10:00:00 to 12:30:00 UTC`: the trace's first and last time.
    pub(super) fn span(self, axis: &Axis) -> String {
        let Some((first, last)) = axis.span() else { return String::new() };
        let length = human::duration_ms(last.saturating_sub(first).as_millis_ceil());
        match self {
            Clockface::Seconds => format!(", {} s to {} s ({length})", Seconds(first), Seconds(last)),
            _ => format!(", {} to {} UTC ({length})", Clockface::Dates.instant(first), Clockface::Dates.instant(last)),
        }
    }

    /// One instant, to the second, or exactly where the trace has its own origin.
    pub(super) fn instant(self, at: Micros) -> String {
        let (date, time) = calendar::date_and_time(at);
        match self {
            Clockface::Dates => format!("{date} {time}"),
            Clockface::TimeOfDay => time,
            Clockface::Seconds => format!("{} s", Seconds(at)),
        }
    }

    /// A label below a chart: short.
    pub(super) fn tick(self, at: Micros, step: Micros) -> String {
        let (date, time) = calendar::date_and_time(at);
        let whole_minutes = step >= Micros::from_secs(60);
        match self {
            Clockface::Seconds => format!("{} s", Seconds(at)),
            Clockface::TimeOfDay if whole_minutes => time[..5].to_owned(),
            Clockface::TimeOfDay => time,
            Clockface::Dates if step >= Micros::from_secs(86_400) => date,
            Clockface::Dates => format!("{} {}", &date[5..], &time[..5]),
        }
    }
}

//! Instants as days and dates, in UTC.

pub(crate) use tidegate_wire::calendar::days_from_date;

use tidegate::Micros;

/// `2026-11-15` and `21:04:05` of an instant, in UTC.
pub(crate) fn date_and_time(at: Micros) -> (String, String) {
    tidegate_wire::calendar::date_and_time(at.get() / 1_000_000)
}

/// `2026-11-15T21:04:05Z`, of an instant.
pub(crate) fn written(at: Micros) -> String {
    let (date, time) = date_and_time(at);
    format!("{date}T{time}Z")
}

/// The instant that is written so; `None`: it is not, or before 1970.
pub(crate) fn instant(text: &str) -> Option<Micros> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, between: char, lens: [usize; 3]| {
        let parts: Vec<&str> = text.split(between).collect();
        let is_number =
            |(part, len): (&&str, usize)| part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit());
        (parts.len() == 3 && parts.iter().zip(lens).all(is_number))
            .then(|| parts.iter().map(|part| part.parse::<i64>().unwrap_or(0)).collect::<Vec<_>>())
    };
    let (date, time) = (numbers(date, '-', [4, 2, 2])?, numbers(time, ':', [2, 2, 2])?);
    let days = days_from_date(date[0], date[1], date[2]);
    let seconds = u64::try_from(days * 86_400 + time[0] * 3_600 + time[1] * 60 + time[2]).ok()?;
    let at = Micros::new(seconds.checked_mul(1_000_000)?)?;
    // What is no day or no time of day comes back as another.
    (written(at) == text).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_and_read() {
        for seconds in [0, 1_709_251_199, 1_794_778_897, 4_102_444_800] {
            let at = Micros::from_secs(seconds);
            assert_eq!(instant(&written(at)), Some(at));
        }
        for wrong in [
            "",
            "2026-02-30T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01",
            "1969-12-31T23:59:59Z",
            "2026-1-1T0:0:0Z",
        ] {
            assert_eq!(instant(wrong), None, "{wrong}");
        }
    }
}

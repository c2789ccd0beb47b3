//! Times as logs write them: `10/Oct/2000:13:55:36 -0700`, ISO 8601, or seconds since the epoch.

use tidegate::Micros;

/// Any of the three.
pub(super) fn any(text: &str) -> Option<Micros> {
    super::at::parse(text).ok().or_else(|| iso(text.as_bytes())).or_else(|| clf(text.as_bytes()))
}

/// `10/Oct/2000:13:55:36 -0700`.
pub(super) fn clf(text: &[u8]) -> Option<Micros> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let shape = text.len() == 26 && [2, 6].iter().all(|at| text[*at] == b'/') && text[11] == b':' && text[20] == b' ';
    if !shape {
        return None;
    }
    let month = MONTHS.iter().position(|month| *month == &text[3..6])?;
    let date = (digits(&text[7..11])?, i64::try_from(month).ok()? + 1, digits(&text[0..2])?);
    micros(date, time_of_day(&text[12..20])?, offset(&text[21..26])?, 0)
}

/// `2026-11-15T10:00:00.123+01:00`, with a space for the `T`, a comma for the point, and `Z` or `+0100` for the zone.
pub(super) fn iso(text: &[u8]) -> Option<Micros> {
    let shape = text.len() >= 20 && text[4] == b'-' && text[7] == b'-' && matches!(text[10], b'T' | b't' | b' ');
    if !shape {
        return None;
    }
    let date = (digits(&text[0..4])?, digits(&text[5..7])?, digits(&text[8..10])?);
    let time = time_of_day(&text[11..19])?;
    let mut rest = &text[19..];
    let mut micros_of_second = 0;
    if let [b'.' | b',', fraction @ ..] = rest {
        let len = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (1..=9).contains(&len).then_some(())?;
        let six = |place| fraction[..len].get(place).map_or(0, |byte| u64::from(byte - b'0'));
        micros_of_second = (0..6).fold(0, |n, place| n * 10 + six(place));
        rest = &fraction[len..];
    }
    let offset = if matches!(rest, b"Z" | b"z") { 0 } else { offset(rest)? };
    (1..=12).contains(&date.1).then_some(())?;
    micros(date, time, offset, micros_of_second)
}

/// `13:55:36` in seconds; a leap second is one.
fn time_of_day(text: &[u8]) -> Option<i64> {
    let (hour, minute, second) = (digits(&text[0..2])?, digits(&text[3..5])?, digits(&text[6..8])?);
    let fits = text[2] == b':' && text[5] == b':' && hour <= 23 && minute <= 59 && second <= 60;
    fits.then_some(hour * 3600 + minute * 60 + second)
}

/// `+0100`, `-07:00` or `+01` in seconds.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, rest) = text.split_first()?;
    let (hours, minutes) = match rest.len() {
        2 => (rest, &b"00"[..]),
        4 => rest.split_at(2),
        5 if rest[2] == b':' => (&rest[..2], &rest[3..]),
        _ => return None,
    };
    let seconds = digits(hours)? * 3600 + digits(minutes)? * 60;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

fn micros((year, month, day): (i64, i64, i64), time: i64, offset: i64, fraction_us: u64) -> Option<Micros> {
    (1..=31).contains(&day).then_some(())?;
    let seconds = crate::calendar::days_from_date(year, month, day) * 86_400 + time - offset;
    Micros::new(u64::try_from(seconds).ok()?.checked_mul(1_000_000)? + fraction_us)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |n, byte| byte.is_ascii_digit().then(|| n * 10 + i64::from(byte - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_logs_are_read() {
        for (text, us) in [
            ("10/Oct/2000:13:55:36 -0700", 971_211_336_000_000),
            ("29/Feb/2024:23:59:60 +0000", 1_709_251_200_000_000),
            ("2000-10-10T13:55:36-07:00", 971_211_336_000_000),
            ("2000-10-10T20:55:36Z", 971_211_336_000_000),
            ("2000-10-10 20:55:36,250Z", 971_211_336_250_000),
            ("2000-10-10T20:55:36.123456789+00", 971_211_336_123_456),
            ("971211336.123", 971_211_336_123_000),
            ("0", 0),
        ] {
            assert_eq!(any(text).map(Micros::get), Some(us), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_times() {
        for text in [
            "",
            "now",
            "10/Okt/2000:13:55:36 -0700",
            "10/Oct/2000 13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "01/Jan/1969:00:00:00 +0000",
            "2000-13-10T20:55:36Z",
            "2000-10-10T20:55:36",
            "2000-10-10T20:55:36.Z",
            "2000-10-10T25:55:36Z",
            "2000-10-10T20:55:36+1",
            "9999-10-10T20:55:36Z",
        ] {
            assert_eq!(any(text), None, "{text}");
        }
    }
}

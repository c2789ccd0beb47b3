//! Days and dates of the Gregorian calendar, in UTC.
//!
//! Years are counted from March, so that the leap day comes last: then a month's first day is a
//! linear formula. 400 years have 146,097 days.

/// Days from 1970-01-01 to a date; a day past the month's end runs into the next month.
#[must_use]
pub fn days_from_date(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day, so many days after 1970-01-01.
fn date_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

/// `2026-11-15` and `21:04:05`, so many seconds after the epoch.
#[must_use]
pub fn date_and_time(seconds: u64) -> (String, String) {
    let (year, month, day) = date_from_days(i64::try_from(seconds / 86_400).unwrap_or(0));
    let of_day = seconds % 86_400;
    let time = format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60);
    (format!("{year:04}-{month:02}-{day:02}"), time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_days_agree() {
        assert_eq!(days_from_date(1970, 1, 1), 0);
        assert_eq!(days_from_date(2000, 3, 1), 11_017);
        for days in 0..60_000 {
            let (year, month, day) = date_from_days(days);
            assert_eq!(days_from_date(year, month, day), days);
        }
        let (date, time) = date_and_time(1_709_251_199);
        assert_eq!((date.as_str(), time.as_str()), ("2024-02-29", "23:59:59"));
    }
}

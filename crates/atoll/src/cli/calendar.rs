//! Dates and times of the Gregorian calendar, in UTC.

const MICROS: i64 = 1_000_000;
const DAY_SECONDS: i64 = 86_400;

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar. Counts years from March, so that the leap day is the last of a
/// year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns the date of a day since 1970-01-01: year, month, day.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Parses `YYYY-MM-DDTHH:MM:SS[.ffffff]Z`, or a number of microseconds. Returns microseconds since 1970.
pub fn timestamp(text: &str) -> Option<i64> {
    if let Ok(us) = text.parse() {
        return Some(us);
    }
    let text = text.strip_suffix('Z')?;
    let (day, time) = text.split_once(['T', ' '])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let numbers = |text: &str, sep: char, digits: [usize; 3]| -> Option<[i64; 3]> {
        let parts: Vec<&str> = text.split(sep).collect();
        let fits = parts.len() == 3
            && parts.iter().zip(digits).all(|(p, n)| p.len() == n && p.bytes().all(|b| b.is_ascii_digit()));
        fits.then(|| [0, 1, 2].map(|i: usize| parts[i].parse().unwrap_or(0)))
    };
    let [year, month, day] = numbers(day, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    if fraction.len() > 6 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = days(year, month, day);
    // A day that its month does not have comes back as another date.
    if date(number) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
    Some((number * DAY_SECONDS + hour * 3_600 + minute * 60 + second) * MICROS + micros)
}

/// Returns the time as text, as [`timestamp`] parses it.
pub fn timestamp_text(us: i64) -> String {
    let (seconds, micros) = (us.div_euclid(MICROS), us.rem_euclid(MICROS));
    let (year, month, day) = date(seconds.div_euclid(DAY_SECONDS));
    if !(0..=9999).contains(&year) {
        return us.to_string();
    }
    let of_day = seconds.rem_euclid(DAY_SECONDS);
    let time = format!("{:02}:{:02}:{:02}", of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let fraction = if micros == 0 { String::new() } else { format!(".{micros:06}") };
    format!("{year:04}-{month:02}-{day:02}T{time}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_four_centuries_has_its_date() {
        let (first, last) = (days(1900, 1, 1), days(2300, 1, 1));
        assert_eq!((days(1970, 1, 1), days(2000, 3, 1)), (0, 11_017));
        for day in first..last {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), day);
        }
    }
}

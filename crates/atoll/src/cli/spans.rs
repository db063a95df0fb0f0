//! Spans of time, dates and sizes, as people write them.

use std::time::Duration;

use super::calendar::timestamp_text;

/// Parses `5s`, `10m`, `6h`, `7d`, `250ms` or `forever`.
pub fn span(text: &str) -> Result<Duration, String> {
    let wrong = || "a number with ms, s, m, h or d, such as 5s, or `forever`".to_owned();
    if text == "forever" {
        return Ok(Duration::MAX);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)
}

/// Returns it in milliseconds; the highest number stands for ever.
pub fn to_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a number of milliseconds as a time of people.
pub fn of_ms(ms: u64) -> String {
    match ms {
        u64::MAX => "forever".to_owned(),
        ms if ms % 86_400_000 == 0 && ms > 0 => format!("{} d", ms / 86_400_000),
        ms if ms % 3_600_000 == 0 && ms > 0 => format!("{} h", ms / 3_600_000),
        ms if ms % 60_000 == 0 && ms > 0 => format!("{} min", ms / 60_000),
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}

/// Returns a time since 1970, in milliseconds, as a date.
pub fn date(ms: u64) -> String {
    i64::try_from(ms).ok().and_then(|ms| ms.checked_mul(1000)).map_or_else(|| ms.to_string(), timestamp_text)
}

/// Parses `64kB`, `10MB`, `2GB`, `1TB`, or a number of bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || "a number of bytes, or one with kB, MB, GB or TB, such as 10GB".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let times = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(times).ok_or_else(wrong)
}

/// Returns a number of bytes as people write it.
pub fn of_bytes(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    let fits = units.into_iter().find(|(times, _)| bytes > 0 && bytes.is_multiple_of(*times));
    fits.map_or_else(|| format!("{bytes} bytes"), |(times, unit)| format!("{} {unit}", bytes / times))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_and_shown() {
        for (text, ms, shown) in [
            ("250ms", 250, "250 ms"),
            ("5s", 5000, "5 s"),
            ("10m", 600_000, "10 min"),
            ("6h", 21_600_000, "6 h"),
            ("7d", 604_800_000, "7 d"),
            ("forever", u64::MAX, "forever"),
        ] {
            assert_eq!(to_ms(span(text).unwrap()), ms, "{text}");
            assert_eq!(of_ms(ms), shown);
        }
        for bad in ["", "5", "s", "5 s", "-5s", "5w", "99999999999999999d"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_parsed_and_shown() {
        for (text, number, shown) in [
            ("17", 17, "17 bytes"),
            ("64kB", 64_000, "64 kB"),
            ("1500kB", 1_500_000, "1500 kB"),
            ("10MB", 10_000_000, "10 MB"),
            ("2GB", 2_000_000_000, "2 GB"),
            ("1TB", 1_000_000_000_000, "1 TB"),
        ] {
            assert_eq!(bytes(text).unwrap(), number, "{text}");
            assert_eq!(of_bytes(number), shown);
        }
        for bad in ["", "GB", "1 GB", "1GiB", "-1", "99999999999TB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}

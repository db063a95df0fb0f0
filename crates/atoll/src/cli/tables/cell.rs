//! Converts values to and from text and JSON, by the type of their column. Bytes are base64; timestamps are RFC 3339 in UTC, or
//! microseconds since 1970. Numbers come back as they went, to the last bit. JSON has no infinities, so they are the texts inf and -inf.

use atoll_client::proto::cell::Value as Of;
use atoll_client::proto::{Cell, ColumnKind, TableColumn};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The types, and their names.
pub(super) const KINDS: [(ColumnKind, &str); 6] = [
    (ColumnKind::Bool, "bool"),
    (ColumnKind::Int64, "int64"),
    (ColumnKind::Float64, "float64"),
    (ColumnKind::Text, "text"),
    (ColumnKind::Bytes, "bytes"),
    (ColumnKind::Timestamp, "timestamp"),
];

/// What a column of type float64 takes.
const FLOATS: &str =
    "a number from -1.7976931348623157e308 to 1.7976931348623157e308, inf or -inf is allowed";
const MICROS: i64 = 1_000_000;
const DAY_SECONDS: i64 = 86_400;

/// Returns the name of a column's type.
pub(super) fn kind_word(column: &TableColumn) -> &'static str {
    KINDS.iter().find(|(kind, _)| *kind == column.kind()).map_or("unknown", |(_, word)| word)
}

fn wrong(column: &TableColumn, got: &str, allowed: &str) -> String {
    let short: String = got.chars().take(60).collect();
    let dots = if short.len() < got.len() { "…" } else { "" };
    format!("column {:?}: {short:?}{dots} is not a {}: {allowed}", column.name, kind_word(column))
}

/// Parses a value from text, as in CSV and on the command line.
pub(super) fn of_text(column: &TableColumn, text: &str) -> Result<Cell, String> {
    let value = match column.kind() {
        ColumnKind::Bool => {
            Of::BoolValue(text.parse().map_err(|_| wrong(column, text, "true and false are allowed"))?)
        }
        ColumnKind::Int64 => Of::Int64Value(
            text.parse().map_err(|_| wrong(column, text, "an integer from -2^63 to 2^63 - 1 is allowed"))?,
        ),
        ColumnKind::Float64 => match (text, text.parse::<f64>()) {
            ("inf" | "+inf", _) => Of::Float64Value(f64::INFINITY),
            ("-inf", _) => Of::Float64Value(f64::NEG_INFINITY),
            // The parser turns 1e400 into infinity, too.
            (_, Ok(f)) if f.is_finite() => Of::Float64Value(f),
            _ => return Err(wrong(column, text, FLOATS)),
        },
        ColumnKind::Text => Of::TextValue(text.to_owned()),
        ColumnKind::Bytes => {
            let bytes = STANDARD.decode(text).map_err(|_| wrong(column, text, "base64 is allowed"))?;
            Of::BytesValue(bytes.into())
        }
        ColumnKind::Timestamp => Of::TimestampUs(timestamp(text).ok_or_else(|| {
            wrong(column, text, "2026-11-21T22:15:00.5Z, or microseconds since 1970, is allowed")
        })?),
        ColumnKind::Unspecified => {
            return Err(format!("column {:?} has a type of a later version", column.name));
        }
    };
    Ok(Cell { value: Some(value) })
}

/// Parses a value from JSON.
pub(super) fn of_json(column: &TableColumn, json: &Value) -> Result<Cell, String> {
    let value = match (column.kind(), json) {
        (_, Value::Null) => return Ok(Cell { value: None }),
        (ColumnKind::Bool, Value::Bool(b)) => Of::BoolValue(*b),
        (ColumnKind::Int64 | ColumnKind::Timestamp | ColumnKind::Float64, Value::Number(n)) => {
            return of_text(column, &n.to_string());
        }
        (ColumnKind::Text | ColumnKind::Bytes | ColumnKind::Timestamp, Value::String(text)) => {
            return of_text(column, text);
        }
        (ColumnKind::Float64, Value::String(text)) if matches!(text.as_str(), "inf" | "+inf" | "-inf") => {
            return of_text(column, text);
        }
        (ColumnKind::Float64, other) => return Err(wrong(column, &other.to_string(), FLOATS)),
        _ => return Err(wrong(column, &json.to_string(), "JSON of its type is allowed, or null")),
    };
    Ok(Cell { value: Some(value) })
}

/// Returns a value as JSON.
pub(super) fn to_json(cell: &Cell) -> Value {
    match &cell.value {
        None => Value::Null,
        Some(Of::BoolValue(b)) => json!(b),
        Some(Of::Int64Value(n)) => json!(n),
        // JSON has no number for infinity, and null is another value. A table holds no NaN.
        Some(Of::Float64Value(f)) if !f.is_finite() => json!(f.to_string()),
        Some(Of::Float64Value(f)) => json!(f),
        Some(Of::TextValue(text)) => json!(text),
        Some(Of::BytesValue(bytes)) => json!(STANDARD.encode(bytes)),
        Some(Of::TimestampUs(us)) => json!(timestamp_text(*us)),
    }
}

/// Returns a value as text; null is empty.
pub(super) fn to_text(cell: &Cell) -> String {
    match to_json(cell) {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

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
fn timestamp(text: &str) -> Option<i64> {
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

fn timestamp_text(us: i64) -> String {
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn column(kind: ColumnKind) -> TableColumn {
        TableColumn { name: "c".into(), kind: kind.into(), nullable: true }
    }

    #[test]
    fn values_come_back_from_text_and_json_as_they_went() {
        for (kind, text) in [
            (ColumnKind::Bool, "true"),
            (ColumnKind::Int64, "-9223372036854775808"),
            (ColumnKind::Float64, "0.1"),
            (ColumnKind::Float64, "inf"),
            (ColumnKind::Float64, "-inf"),
            (ColumnKind::Text, "a \"b\", c"),
            (ColumnKind::Bytes, "AP8="),
            (ColumnKind::Timestamp, "2026-11-21T22:15:00.500000Z"),
            (ColumnKind::Timestamp, "1969-12-31T23:59:59Z"),
        ] {
            let cell = of_text(&column(kind), text).unwrap();
            assert_eq!(to_text(&cell), text);
            assert_eq!(of_json(&column(kind), &to_json(&cell)), Ok(cell));
        }
        assert_eq!(of_json(&column(ColumnKind::Bool), &Value::Null).unwrap().value, None);
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_would() {
        for (kind, text) in [
            (ColumnKind::Bool, "yes"),
            (ColumnKind::Int64, "1.5"),
            (ColumnKind::Float64, "NaN"),
            (ColumnKind::Float64, "1e400"),
            (ColumnKind::Float64, "infinite"),
            (ColumnKind::Bytes, "*"),
            (ColumnKind::Timestamp, "2026-02-29T00:00:00Z"),
            (ColumnKind::Timestamp, "2026-01-01T24:00:00Z"),
        ] {
            let words = of_text(&column(kind), text).unwrap_err();
            assert!(words.contains("\"c\"") && words.contains(text) && words.contains("allowed"), "{words}");
        }
        assert!(of_json(&column(ColumnKind::Text), &json!(1)).is_err());
        for json in [json!("1.5"), json!("NaN"), json!(true)] {
            let words = of_json(&column(ColumnKind::Float64), &json).unwrap_err();
            assert!(words.contains("inf or -inf"), "{words}");
        }
    }

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

//! Converts values to and from text and JSON, by the type of their column. Bytes are base64; timestamps are RFC 3339 in UTC, or
//! microseconds since 1970. Numbers come back as they went, to the last bit. JSON has no infinities, so they are the texts inf and -inf.

use atoll_client::proto::cell::Value as Of;
use atoll_client::proto::{Cell, ColumnKind, TableColumn};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cli::calendar::{timestamp, timestamp_text};

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
}

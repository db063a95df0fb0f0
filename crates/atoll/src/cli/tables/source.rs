//! Reads rows from a file, line by line: CSV (RFC 4180, with the names of the columns first) or JSON lines. Every row knows its line.

use std::io::{self, BufRead, Read};

use atoll_client::proto::{NamedCell, Table, TableColumn};
use serde_json::{Map, Value};

use super::cell;
use super::rows::{self, Format};

/// Longest line or CSV record, in bytes. This is longer than a row may be.
const MAX_LINE_BYTES: usize = 2 * 1024 * 1024;

/// A row of a file, or what is wrong with its line.
pub(super) struct Line {
    /// The number of the line, from 1. For a record of several lines, the first one.
    pub(super) number: u64,
    /// The length in the file, in bytes.
    pub(super) bytes: u64,
    pub(super) cells: Result<Vec<NamedCell>, String>,
}

/// Why no further line can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error("line {number}: {words}")]
    Broken { number: u64, words: String },
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A source of rows for a table.
pub(super) struct Source<'a, R> {
    from: R,
    table: &'a Table,
    format: Format,
    /// For CSV, the columns that the first line names.
    header: Option<Vec<&'a TableColumn>>,
    /// Number of lines that were read so far.
    lines: u64,
}

impl<'a, R: BufRead> Source<'a, R> {
    pub(super) fn new(from: R, table: &'a Table, format: Format) -> Self {
        Source { from, table, format, header: None, lines: 0 }
    }

    /// Returns the next row; None at the end.
    pub(super) fn next(&mut self) -> Result<Option<Line>, SourceError> {
        match self.format {
            Format::Jsonl => self.json(),
            Format::Csv => self.csv(),
        }
    }

    fn broken(&self, words: impl Into<String>) -> SourceError {
        SourceError::Broken { number: self.lines, words: words.into() }
    }

    /// Appends the next line, with its line end. Returns false at the end of the file.
    fn line(&mut self, to: &mut Vec<u8>) -> Result<bool, SourceError> {
        let room = MAX_LINE_BYTES.saturating_sub(to.len()) + 1;
        let n = self.from.by_ref().take(room as u64).read_until(b'\n', to)?;
        self.lines += u64::from(n > 0);
        if n == room && to.last() != Some(&b'\n') {
            return Err(self.broken(format!("it has more than {MAX_LINE_BYTES} bytes, the maximum")));
        }
        Ok(n > 0)
    }

    fn json(&mut self) -> Result<Option<Line>, SourceError> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if !self.line(&mut line)? {
                return Ok(None);
            }
            if !line.trim_ascii().is_empty() {
                break;
            }
        }
        let object = serde_json::from_slice::<Map<String, Value>>(&line);
        let cells =
            object.map_err(|e| format!("no JSON object: {e}")).and_then(|o| rows::cells(self.table, &o));
        Ok(Some(Line { number: self.lines, bytes: line.len() as u64, cells }))
    }

    fn csv(&mut self) -> Result<Option<Line>, SourceError> {
        if self.header.is_none() {
            let Some((_, _, fields)) = self.record()? else { return Ok(None) };
            let names = fields.map_err(|words| self.broken(words))?;
            let mut header: Vec<&TableColumn> = Vec::new();
            for name in &names {
                let column = rows::column(self.table, name).map_err(|words| self.broken(words))?;
                if header.iter().any(|c| c.name == *name) {
                    return Err(self.broken(format!("column {name:?} is named twice")));
                }
                header.push(column);
            }
            self.header = Some(header);
        }
        let Some((number, bytes, fields)) = self.record()? else { return Ok(None) };
        let header = self.header.as_deref().unwrap_or_default();
        let cells = fields.and_then(|fields| {
            if fields.len() != header.len() {
                return Err(format!(
                    "{} fields; the first line names {} columns",
                    fields.len(),
                    header.len()
                ));
            }
            let one = |(column, text): (&&TableColumn, &String)| {
                let value = match text.is_empty() && column.nullable {
                    true => None,
                    false => Some(cell::of_text(column, text)?),
                };
                Ok(NamedCell { column: column.name.clone(), value })
            };
            header.iter().zip(&fields).map(one).collect()
        });
        Ok(Some(Line { number, bytes, cells }))
    }

    /// Returns the fields of the next CSV record, with its first line and its length in bytes. A quoted field may contain line ends.
    #[allow(clippy::type_complexity)]
    fn record(&mut self) -> Result<Option<(u64, u64, Result<Vec<String>, String>)>, SourceError> {
        let mut record = Vec::new();
        while record.trim_ascii().is_empty() {
            record.clear();
            if !self.line(&mut record)? {
                return Ok(None);
            }
        }
        let first = self.lines;
        let (mut seen, mut place) = (record.len(), Place::Start.after(&record));
        while place == Place::Quoted {
            if !self.line(&mut record)? {
                return Err(SourceError::Broken { number: first, words: "a quote is not closed".to_owned() });
            }
            place = place.after(&record[seen..]);
            seen = record.len();
        }
        Ok(Some((first, record.len() as u64, fields(&record))))
    }
}

/// The position in a CSV record. A quote opens a quoted field only at the beginning of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning of a field.
    Start,
    /// In a field without quotes, or after a quoted one.
    Plain,
    /// In a quoted field, where a line end is part of the field.
    Quoted,
    /// After a quote in a quoted field: either its end, or the first of two quotes that stand for one.
    Closed,
}

impl Place {
    fn after(self, bytes: &[u8]) -> Place {
        bytes.iter().fold(self, |place, byte| match (place, byte) {
            (Place::Start | Place::Closed, b'"') => Place::Quoted,
            (Place::Quoted, b'"') => Place::Closed,
            (Place::Quoted, _) => Place::Quoted,
            (_, b',') => Place::Start,
            _ => Place::Plain,
        })
    }
}

/// Returns the fields of a record.
fn fields(record: &[u8]) -> Result<Vec<String>, String> {
    let text =
        std::str::from_utf8(record).map_err(|e| format!("no UTF-8 from byte {} on", e.valid_up_to() + 1))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut rest = text.strip_suffix('\r').unwrap_or(text);
    let mut fields = Vec::new();
    loop {
        let field = if let Some(mut quoted) = rest.strip_prefix('"') {
            let mut value = String::new();
            loop {
                let (head, tail) = quoted.split_once('"').ok_or("a quote is not closed")?;
                value.push_str(head);
                rest = tail;
                let Some(more) = tail.strip_prefix('"') else { break };
                value.push('"');
                quoted = more;
            }
            value
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let (head, tail) = rest.split_at(end);
            if head.contains('"') {
                let at = fields.len() + 1;
                return Err(format!("field {at}: a quote within a field that does not begin with one"));
            }
            rest = tail;
            head.to_owned()
        };
        fields.push(field);
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None if rest.is_empty() => return Ok(fields),
            None => return Err(format!("field {}: something stands behind the closing quote", fields.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::cell::to_text;
    use super::*;
    use atoll_client::proto::{Cell, ColumnKind, TableRow, cell};
    use proptest::prelude::*;

    fn table() -> Table {
        let column = |name: &str, kind: ColumnKind| TableColumn {
            name: name.into(),
            kind: kind.into(),
            nullable: name != "a",
        };
        let columns = vec![column("a", ColumnKind::Text), column("n", ColumnKind::Int64)];
        Table { name: "t".into(), columns, ..Table::default() }
    }

    fn read(input: &str, format: Format) -> Vec<(u64, Result<Vec<String>, String>)> {
        let table = table();
        let mut source = Source::new(input.as_bytes(), &table, format);
        let mut all = Vec::new();
        while let Some(line) = source.next().unwrap() {
            let text = |c: &NamedCell| c.value.as_ref().map_or("null".to_owned(), to_text);
            all.push((line.number, line.cells.map(|cells| cells.iter().map(text).collect())));
        }
        all
    }

    #[test]
    fn csv_has_quotes_lines_within_fields_and_nulls() {
        let got = read("n,a\r\n1,\"x, \"\"y\"\"\nz\"\n\n,b\n2,\n", Format::Csv);
        let row = |n: &str, a: &str| Ok(vec![n.to_owned(), a.to_owned()]);
        assert_eq!(got, [(2, row("1", "x, \"y\"\nz")), (5, row("null", "b")), (6, row("2", ""))]);
    }

    #[test]
    fn broken_lines_are_named_and_do_not_end_the_file() {
        let got = read("a,n\nx,y\nx\nx\"y,1\n\"x\"y,1\nok,7\n", Format::Csv);
        let words: Vec<_> = got.iter().map(|(n, r)| (*n, r.clone().err().unwrap_or_default())).collect();
        assert!(words[0].0 == 2 && words[0].1.contains("\"n\""), "{words:?}");
        assert!(words[1].0 == 3 && words[1].1.contains("1 fields"), "{words:?}");
        assert!(words[2].1.contains("quote") && words[3].1.contains("behind"), "{words:?}");
        assert_eq!(words[4], (6, String::new()));
        let got = read("{\"a\":\"x\",\"n\":1}\n\n{\"a\":1}\n{\"b\":1}\nnot\n", Format::Jsonl);
        assert_eq!(
            got.iter().map(|(n, r)| (*n, r.is_ok())).collect::<Vec<_>>(),
            [(1, true), (3, false), (4, false), (5, false)]
        );
    }

    fn number(f: f64) -> Cell {
        Cell { value: Some(cell::Value::Float64Value(f)) }
    }

    /// Writes numbers as `table export` does, and reads them as `table import` does.
    fn exported_and_imported(numbers: &[f64], format: Format) -> Vec<u64> {
        let column = |name: &str| TableColumn {
            name: name.to_owned(),
            kind: ColumnKind::Float64.into(),
            nullable: name == "v",
        };
        let table = Table { name: "t".into(), columns: vec![column("k"), column("v")], ..Table::default() };
        let names = ["k".to_owned(), "v".to_owned()];
        let mut file = Vec::new();
        rows::write_head(&mut file, format, &names).unwrap();
        for f in numbers {
            let row = TableRow { version: 1, cells: vec![number(*f), number(*f)] };
            rows::write_row(&mut file, format, &names, &row).unwrap();
        }
        let mut source = Source::new(file.as_slice(), &table, format);
        let mut bits = Vec::new();
        while let Some(line) = source.next().unwrap() {
            let [k, v] = <[NamedCell; 2]>::try_from(line.cells.unwrap()).unwrap();
            assert_eq!(k.value, v.value);
            match k.value.unwrap().value {
                Some(cell::Value::Float64Value(f)) => bits.push(f.to_bits()),
                other => panic!("{other:?}"),
            }
        }
        bits
    }

    #[test]
    fn special_numbers_come_back_to_the_last_bit() {
        let special = [
            0.945_270_695_553_922_3,
            0.1 + 0.2,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            f64::from_bits(1),
            f64::EPSILON,
            9_007_199_254_740_993.0,
            1e21,
            1e-7,
            0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ];
        for format in [Format::Csv, Format::Jsonl] {
            assert_eq!(exported_and_imported(&special, format), special.map(f64::to_bits));
        }
    }

    proptest! {
        #[test]
        fn numbers_come_back_to_the_last_bit(bits in proptest::collection::vec(any::<u64>(), 1..200)) {
            // A table holds no NaN.
            let numbers: Vec<f64> = bits.into_iter().map(f64::from_bits).filter(|f| !f.is_nan()).collect();
            let bits: Vec<u64> = numbers.iter().map(|f| f.to_bits()).collect();
            for format in [Format::Csv, Format::Jsonl] {
                prop_assert_eq!(&exported_and_imported(&numbers, format), &bits);
            }
        }
    }

    #[test]
    fn an_unclosed_quote_and_an_unknown_column_end_it_with_the_line() {
        let table = table();
        let end = |input: &str| {
            let mut source = Source::new(input.as_bytes(), &table, Format::Csv);
            loop {
                match source.next() {
                    Ok(Some(_)) => {}
                    Ok(None) => return String::new(),
                    Err(error) => return error.to_string(),
                }
            }
        };
        assert_eq!(end("a,n\nx,1\n\"y,2\nz,3\n"), "line 3: a quote is not closed");
        assert!(end("a,b\n").starts_with("line 1: ") && end("a,b\n").contains("\"b\""));
        assert!(end("a,a\n").contains("twice"));
    }
}

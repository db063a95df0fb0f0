//! Aligned columns.

/// A table with columns as wide as their widest cell. Numbers are aligned to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these headings.
    pub fn new<const N: usize>(headings: [&str; N]) -> Self {
        Table { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, c: usize| row.get(c).cloned().unwrap_or_default();
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.rows.iter().map(|r| cell(r, c).chars().count()).max().unwrap_or(0))
            .collect();
        let is_number = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || matches!(c, ',' | '.' | '-'))
        };
        let numeric: Vec<bool> = (0..columns)
            .map(|c| self.rows.len() > 1 && self.rows.iter().skip(1).all(|r| is_number(&cell(r, c))))
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (c, width) in widths.iter().enumerate() {
                let (text, width) = (cell(row, c), *width);
                match numeric.get(c) {
                    Some(true) => line.push_str(&format!("{text:>width$}  ")),
                    _ => line.push_str(&format!("{text:<width$}  ")),
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_numbers_stand_right() {
        let mut table = Table::new(["NAME", "TAIL", "WHY"]);
        table.row(["a".into(), "1,000".into(), String::new()]);
        table.row(["longer".into(), "7".into(), "slow disk".into()]);
        assert_eq!(table.to_string(), "NAME     TAIL  WHY\na       1,000\nlonger      7  slow disk\n");
    }
}

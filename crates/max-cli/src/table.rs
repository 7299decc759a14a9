//! Text in columns.

use std::io::{self, Write};

/// Writes rows with columns that are as wide as their widest cell.
pub fn write(rows: &[Vec<String>], output: &mut dyn Write) -> io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(output, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// Text on one line, at most this many characters, without any that move the cursor.
pub fn shortened(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let short: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() { format!("{short}...") } else { short }
}

/// A number of bytes.
pub fn size(bytes: u64) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB"];
    let mut number = bytes as f64;
    let mut unit = 0;
    while number >= 999.95 && unit + 1 < units.len() {
        number /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} bytes") } else { format!("{number:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let row = |cells: &[&str]| cells.iter().map(|cell| cell.to_string()).collect::<Vec<_>>();
        let mut text = Vec::new();
        write(&[row(&["a", "bcd", "e"]), row(&["äöü", "b"])], &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "  a    bcd  e\n  äöü  b\n");
        write(&[], &mut Vec::new()).unwrap();
    }

    #[test]
    fn text_is_made_harmless() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "abc...");
        assert_eq!(shortened("a\x1b[2J\n", 9), "a\\u{1b}[2J\\n");
    }

    #[test]
    fn sizes_have_units() {
        let shown = [0, 999, 1000, 999_949, 999_950, 1_500_000_000, u64::MAX].map(size);
        let expected = ["0 bytes", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "1.5 GB", "18446744.1 TB"];
        assert_eq!(shown, expected);
    }
}

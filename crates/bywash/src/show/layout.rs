//! Text layout: tables without lines, and numbers with units.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::net::IpAddr;

/// Table with headings. Columns that are empty in every row are left out.
pub struct Grid {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Renders the table without trailing spaces, with numbers right-aligned, or the line `none` if it has no rows.
    pub fn render(&self, none: &str) -> String {
        if self.rows.is_empty() {
            return format!("{none}\n");
        }
        let used = |column: &usize| self.rows.iter().any(|row| !row[*column].is_empty());
        let columns: Vec<usize> = (0..self.headings.len()).filter(used).collect();
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(columns.iter().map(|&column| self.headings[column]));
        for row in &self.rows {
            table.add_row(columns.iter().map(|&column| row[column].as_str()));
        }
        for (at, &column) in columns.iter().enumerate() {
            let number =
                |row: &Vec<String>| row[column].is_empty() || row[column].starts_with(|c: char| c.is_ascii_digit());
            // Addresses and queues also start with a digit, but are not numbers.
            let words = ["address", "mac", "queues"].contains(&self.headings[column]);
            let right = !words && self.rows.iter().all(number);
            if let Some(column) = table.column_mut(at) {
                column.set_padding((0, 2));
                if right {
                    column.set_cell_alignment(CellAlignment::Right);
                }
            }
        }
        table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
    }
}

/// Value of a table cell.
pub trait Cell {
    /// Formats the value: a float with one decimal, `None` as an empty cell.
    fn cell(&self) -> String;
}

macro_rules! cells {
    ($($type:ty),+) => {
        $(impl Cell for $type {
            fn cell(&self) -> String {
                self.to_string()
            }
        })+
    };
}

cells!(u8, u16, u32, u64, String, str, IpAddr);

impl Cell for f64 {
    fn cell(&self) -> String {
        format!("{self:.1}")
    }
}

impl<T: Cell + ?Sized> Cell for &T {
    fn cell(&self) -> String {
        T::cell(self)
    }
}

impl<T: Cell> Cell for Option<T> {
    fn cell(&self) -> String {
        self.as_ref().map_or_else(String::new, T::cell)
    }
}

/// Adds a row of values to a table.
macro_rules! row {
    ($grid:expr; $($value:expr),+ $(,)?) => {
        $grid.row(vec![$($crate::show::layout::Cell::cell(&$value)),+])
    };
}

/// Formats a number of bytes in binary units.
pub fn bytes(count: f64) -> String {
    scaled(count, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Formats a rate in packets per second: `1.42 Mpps`.
pub fn pps(rate: f64) -> String {
    scaled(rate, 1000.0, &["pps", "kpps", "Mpps", "Gpps"])
}

/// Formats a rate in bits per second: `1.42 Gbit/s`.
pub fn bits(rate: f64) -> String {
    scaled(rate, 1000.0, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut at) = (value, 0);
    while value >= step && at + 1 < units.len() {
        value /= step;
        at += 1;
    }
    match value {
        value if at == 0 || value >= 100.0 => format!("{value:.0} {}", units[at]),
        value if value >= 10.0 => format!("{value:.1} {}", units[at]),
        value => format!("{value:.2} {}", units[at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(pps(0.0), "0 pps");
        assert_eq!(pps(14_880_952.0), "14.9 Mpps");
        assert_eq!(bits(9.9e9), "9.90 Gbit/s");
        assert_eq!(bytes(33_554_432.0), "32.0 MiB");
        assert_eq!(bytes(512.0), "512 B");
    }

    #[test]
    fn empty_columns_are_left_out() {
        let mut grid = Grid::new(&["name", "reason", "n"]);
        grid.row(vec!["a".into(), String::new(), "5".into()]);
        grid.row(vec!["bcd".into(), String::new(), "1234".into()]);
        assert_eq!(grid.render("none"), "name  n\na        5\nbcd   1234\n".replace("name  n\n", "name     n\n"));
        assert_eq!(Grid::new(&["x"]).render("no x"), "no x\n");
    }
}

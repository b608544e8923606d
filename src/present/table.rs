//! Aligned tables of text that fit a width.
#![forbid(unsafe_code)]

use crate::present::text;

/// Blanks between two columns.
const GAP: usize = 2;
/// Lines of one cell in a column of prose.
const PROSE_LINES: usize = 3;
/// A column that gives way keeps at least this much.
const LEAST: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Right-aligned and never cut.
    Number(&'static str),
    /// Left-aligned and never cut.
    Word(&'static str),
    /// Left-aligned; cut at the end when the table is too wide.
    Text(&'static str),
    /// Left-aligned; cut in the middle when the table is too wide.
    Name(&'static str),
    /// Left-aligned, `name:number`; cut before the last colon when the table is too wide: half a number is another's.
    Task(&'static str),
    /// Left-aligned, for the last column; takes a few lines when the table is too wide.
    Prose(&'static str),
}

impl Column {
    fn title(self) -> &'static str {
        match self {
            Column::Number(title)
            | Column::Word(title)
            | Column::Text(title)
            | Column::Name(title)
            | Column::Task(title)
            | Column::Prose(title) => title,
        }
    }

    fn gives_way(self) -> bool {
        match self {
            Column::Number(_) | Column::Word(_) => false,
            Column::Text(_) | Column::Name(_) | Column::Task(_) | Column::Prose(_) => true,
        }
    }
}

#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[Column]) -> Self {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// One cell for each column.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.cells(cells);
    }

    /// The same, where the columns depend on the width.
    pub fn cells(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter();
        let row: Vec<String> = cells.map(|cell| text::clean(&cell).into_owned()).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Title line and rows, at most `width` columns wide as long as the columns that
    /// cannot give way leave room.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let widths = self.widths(width);
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.title().to_string())
            .collect();
        std::iter::once(&titles)
            .chain(&self.rows)
            .flat_map(|cells| self.row_lines(cells, &widths))
            .collect()
    }

    fn row_lines(&self, cells: &[String], widths: &[usize]) -> Vec<String> {
        let mut first = cells.to_vec();
        let mut more = Vec::new();
        if let (Some(Column::Prose(_)), Some(&width)) = (self.columns.last(), widths.last()) {
            if let Some(cell) = first.get_mut(widths.len() - 1) {
                let mut lines = text::wrap_within(cell, width, PROSE_LINES).into_iter();
                *cell = lines.next().unwrap_or_default();
                more.extend(lines);
            }
        }
        let continued = more.into_iter().map(|text| {
            let mut cells = vec![String::new(); widths.len() - 1];
            cells.push(text);
            self.line(&cells, widths)
        });
        std::iter::once(self.line(&first, widths))
            .chain(continued)
            .collect()
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (i, (column, &width)) in self.columns.iter().zip(widths).enumerate() {
            let cell = cells.get(i).map_or("", String::as_str);
            let cell = match column {
                Column::Number(_) | Column::Word(_) | Column::Text(_) | Column::Prose(_) => {
                    text::cut_end(cell, width)
                }
                Column::Name(_) => text::cut_middle(cell, width),
                Column::Task(_) => text::cut_before(cell, ':', width),
            };
            // Padding is our own work: `format!` counts characters, not columns.
            let padding = " ".repeat(width.saturating_sub(text::width(&cell)));
            if i > 0 {
                line.push_str(&" ".repeat(GAP));
            }
            match column {
                Column::Number(_) => line.extend([padding.as_str(), &cell]),
                Column::Word(_)
                | Column::Text(_)
                | Column::Name(_)
                | Column::Task(_)
                | Column::Prose(_) => {
                    line.extend([&cell, padding.as_str()]);
                }
            }
        }
        line
    }

    fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(i, column)| {
                let cells = self
                    .rows
                    .iter()
                    .filter_map(|row| row.get(i))
                    .map(|cell| text::width(cell));
                cells
                    .chain([text::width(column.title())])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let gaps = GAP * self.columns.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
        // The widest column gives first, so that short ones stay whole.
        while excess > 0 {
            let giving =
                (0..widths.len()).filter(|&i| self.columns[i].gives_way() && widths[i] > LEAST);
            let Some(widest) = giving.max_by_key(|&i| widths[i]) else {
                break;
            };
            let second = (0..widths.len())
                .filter(|&i| i != widest && self.columns[i].gives_way())
                .map(|i| widths[i])
                .max()
                .unwrap_or(LEAST)
                .clamp(LEAST, widths[widest] - 1);
            let give = excess.min(widths[widest] - second);
            widths[widest] -= give;
            excess -= give;
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&[
            Column::Number("TIME"),
            Column::Text("WHO"),
            Column::Name("NAME"),
        ]);
        table.row(["1.0 ms".into(), "訓練 12".into(), "kernel".into()]);
        table.row([
            "12 ms".into(),
            "python3 4711/4712".into(),
            format!("start<{}>::end", "x".repeat(100)),
        ]);
        table
    }

    #[test]
    fn columns_line_up_by_width_not_by_characters() {
        let mut table = Table::new(&[Column::Word("WHO"), Column::Number("N")]);
        for who in ["訓練", "🚀", "e\u{301}", "ab", ""] {
            table.row([who.into(), "1".into()]);
        }
        assert_eq!(
            table.lines(80),
            [
                "WHO   N",
                "訓練  1",
                "🚀    1",
                "e\u{301}     1",
                "ab    1",
                "      1"
            ]
        );
    }

    #[test]
    fn a_table_uses_the_width_there_is_and_no_more() {
        for width in [40, 60, 80, 100, 300] {
            for line in sample().lines(width) {
                assert!(text::width(&line) <= width, "{width}: {line}");
            }
        }
        assert!(sample().lines(300)[2].contains(&"x".repeat(100)));
        assert!(
            sample().lines(80)[2].ends_with("...xxxxxxxxxx>::end"),
            "{:?}",
            sample().lines(80)[2]
        );
    }

    #[test]
    fn the_widest_column_gives_way_first() {
        let lines = sample().lines(60);
        assert!(lines[2].contains("python3 4711/4712"), "{lines:?}");
    }

    #[test]
    fn prose_goes_on_below_before_it_is_cut() {
        let mut table = Table::new(&[Column::Number("N"), Column::Prose("WHAT")]);
        table.row(["1".into(), "stress-ng 9001 ran".into()]);
        table.row(["2".into(), "a b c d e f g h i j k l m n o p q r s t".into()]);
        assert_eq!(
            table.lines(13),
            [
                "N  WHAT      ",
                "1  stress-ng ",
                "   9001 ran  ",
                "2  a b c d e ",
                "   f g h i j ",
                "   k l m n..."
            ]
        );
        assert_eq!(table.lines(80).len(), 3);
    }

    #[test]
    fn cells_are_cleaned_before_they_are_measured() {
        let mut table = Table::new(&[Column::Word("A"), Column::Word("B")]);
        table.row(["\x1b".into(), "x".into()]);
        assert_eq!(table.lines(80)[1], "\\x1b  x");
    }
}

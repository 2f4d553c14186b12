//! Tables as kubectl prints them: columns that are as wide as their widest cell, and no lines.

/// Space between two columns.
const GAP: &str = "   ";

/// A column of a table: its head, whether only wide tables have it, and the text of its cells.
pub type Column<'a, T> = (&'a str, bool, &'a dyn Fn(&T) -> String);

/// Formats a table with a head. Empty cells are `-`, and the last cell of a row has no padding.
pub fn table<T>(rows: &[T], wide: bool, columns: &[Column<'_, T>]) -> String {
    let columns: Vec<_> = columns.iter().filter(|(_, is_wide, _)| wide || !is_wide).collect();
    let head = columns.iter().map(|(head, ..)| (*head).to_owned()).collect();
    let cells = rows.iter().map(|row| columns.iter().map(|(_, _, text)| cell(text(row))).collect());
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(cells).collect();
    let mut widths = vec![0; columns.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<_> = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text += cells.join(GAP).trim_end();
        text.push('\n');
    }
    text
}

fn cell(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a", "long cell", ""], ["é", "b", "c"]];
        let columns: [Column<'_, [&str; 3]>; 4] = [
            ("X", false, &|row| row[0].to_owned()),
            ("Y", false, &|row| row[1].to_owned()),
            ("WIDE", true, &|_| "w".to_owned()),
            ("Z", false, &|row| row[2].to_owned()),
        ];
        assert_eq!(table(&rows, false, &columns), "X   Y           Z\na   long cell   -\né   b           c\n");
        assert!(table(&rows, true, &columns).starts_with("X   Y           WIDE   Z\n"));
    }
}

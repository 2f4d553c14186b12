//! Tables as kubectl prints them: columns that are as wide as their widest cell, and no lines.

/// Space between two columns.
const GAP: &str = "   ";

/// Formats a table whose first row is the head. The last cell of a row has no padding.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let mut widths = vec![0; head.len()];
    for row in std::iter::once(&head).chain(rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text += cells.join(GAP).trim_end();
        text.push('\n');
    }
    text
}

/// Returns the text of a cell, `-` if it is empty.
pub(crate) fn cell(value: &str) -> String {
    if value.is_empty() { "-".to_owned() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "long cell".to_owned(), cell("")], vec!["é".to_owned(), cell("b"), cell("c")]];
        assert_eq!(table(&["X", "Y", "Z"], &rows), "X   Y           Z\na   long cell   -\né   b           c\n");
    }
}

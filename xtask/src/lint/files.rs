//! Names of files and lengths of lines.

use super::finding::Finding;
use super::source::Source;

/// Columns of a line. rustfmt leaves longer comments and strings alone.
const COLUMNS: usize = 120;

/// Finds lines of more than 120 columns.
pub(crate) fn find_long_lines(sources: &[Source]) -> Vec<Finding> {
    let in_source = |source: &Source| {
        let is_long = |(line, text): (usize, &str)| {
            let columns = text.chars().count();
            let message = || format!("{columns} columns: break the line at {COLUMNS}");
            (columns > COLUMNS).then(|| Finding::new(source, line, message()))
        };
        (1..).zip(source.text.lines()).filter_map(is_long).collect::<Vec<_>>()
    };
    sources.iter().flat_map(in_source).collect()
}

/// Finds modules that are files `mod.rs`.
pub(crate) fn find_mod_rs(sources: &[Source]) -> Vec<Finding> {
    let has_name = |source: &&Source| source.file.ends_with("/mod.rs");
    let finding = |source| Finding::new(source, 1, "call the file like the module, beside the module's directory");
    sources.iter().filter(has_name).map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &str, text: &str) -> [Source; 1] {
        [Source::parse(file, text.to_owned()).unwrap()]
    }

    #[test]
    fn a_line_of_121_columns_is_too_long() {
        let line = |columns: usize| format!("// {}", "ä".repeat(columns - 3));
        let text = format!("{}\n{}\n", line(120), line(121));
        let findings = find_long_lines(&source("crates/lvm/src/a.rs", &text));
        let found: Vec<_> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["crates/lvm/src/a.rs:2: 121 columns: break the line at 120"]);
    }

    #[test]
    fn a_file_mod_rs_is_found() {
        assert_eq!(find_mod_rs(&source("crates/lvm/src/a/mod.rs", "")).len(), 1);
        assert_eq!(find_mod_rs(&source("crates/lvm/src/a.rs", "")), []);
    }
}

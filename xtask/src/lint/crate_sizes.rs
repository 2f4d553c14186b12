//! Sizes of the product's crates: a limit, and the column `lines` of the code map in ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::fs;

use super::finding::Finding;
use super::source::Source;
use crate::tools::repository;

/// The file with the code map.
const MAP: &str = "ARCHITECTURE.md";
/// Most lines of product code that a crate may have.
const MOST_LINES: usize = 6000;
/// The code map has multiples of this.
const STEP: usize = 100;
/// Part of a crate's lines by which the code map may differ.
const TOLERATED_PART: usize = 4;

/// Finds crates of the product that are too large, or whose lines in the code map are out of date.
pub(crate) fn find_large_crates(sources: &[Source]) -> Vec<Finding> {
    find_in(sources, &fs::read_to_string(repository().join(MAP)).unwrap_or_default())
}

fn find_in(sources: &[Source], map: &str) -> Vec<Finding> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_product() && !source.is_test()) {
        *sizes.entry(source.package()).or_default() += count_lines(&source.text);
    }
    let finding = |(name, lines): (&str, usize)| {
        let place = format!("| `crates/{name}` | ");
        let row = (1..).zip(map.lines()).find_map(|(line, text)| Some((line, text.strip_prefix(&place)?)));
        let (line, message) = match row {
            _ if lines > MOST_LINES => {
                (1, format!("crates/{name} has {lines} lines of product code, more than {MOST_LINES}: split it"))
            }
            None => (1, format!("crates/{name} is not in the code map")),
            Some((line, rest)) => {
                let shown = rest.split(' ').next().unwrap_or_default().replace(',', "").parse().unwrap_or(0);
                let is_close = lines.abs_diff(shown) <= lines / TOLERATED_PART + STEP;
                let rounded = lines.div_ceil(STEP) * STEP;
                if is_close {
                    return None;
                }
                (line, format!("crates/{name} has {rounded} lines and not {shown}"))
            }
        };
        Some(Finding { file: MAP.to_owned(), line, message })
    };
    sizes.into_iter().filter_map(finding).collect()
}

/// Counts the lines of product code: without blank lines, comments, and the unit tests at the end.
fn count_lines(text: &str) -> usize {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    product.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Findings about a crate of this size with this code map.
    fn find(lines: usize, map: &str) -> Vec<String> {
        let text = "const A: u8 = 0;\n// A comment\n\n".repeat(lines) + "#[cfg(test)]\nmod tests {\n}\n";
        let source = Source::parse("crates/lvm/src/a.rs", text).unwrap();
        find_in(&[source], map).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_crate_of_more_than_6000_lines_is_found() {
        let map = "| `crates/lvm` | 6,000 | LVM | |\n";
        assert!(find(6000, map).is_empty());
        let message = "ARCHITECTURE.md:1: crates/lvm has 6001 lines of product code, more than 6000: split it";
        assert_eq!(find(6001, map), [message]);
    }

    #[test]
    fn a_size_that_differs_in_the_code_map_is_found() {
        let map = "# Code map\n| `crates/lvm` | 4,000 | LVM | |\n";
        assert!(find(4500, map).is_empty());
        assert_eq!(find(2001, map), ["ARCHITECTURE.md:2: crates/lvm has 2100 lines and not 4000"]);
        assert_eq!(find(10, ""), ["ARCHITECTURE.md:1: crates/lvm is not in the code map"]);
    }
}

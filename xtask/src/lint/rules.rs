//! The rules of ARCHITECTURE.md and CONTRIBUTING.md that are checked in the text of the Rust files.

use anyhow::ensure;

use super::finding::Finding;
use super::source::Source;
use super::{code_blocks, crate_sizes, cycles, doc_comments, documented, files, impl_blocks, places, words};
use crate::tools::repository;

/// Finds all breaches of a rule.
type Rule = fn(&[Source]) -> Vec<Finding>;

const RULES: [Rule; 11] = [
    places::find_misplaced,
    cycles::find_cycles,
    impl_blocks::find_large_types,
    doc_comments::find_questions,
    documented::find_undocumented,
    words::find_unusual_words,
    words::find_unusual_names,
    code_blocks::find_unaccounted,
    crate_sizes::find_large_crates,
    files::find_long_lines,
    files::find_mod_rs,
];

/// Prints the breaches of the rules. Fails if there are any.
pub(crate) fn check() -> anyhow::Result<()> {
    let sources = Source::read_all(&repository())?;
    let findings: Vec<Finding> = RULES.iter().flat_map(|find| find(&sources)).collect();
    for finding in &findings {
        eprintln!("{finding}");
    }
    ensure!(findings.is_empty(), "{} breaches of the rules in ARCHITECTURE.md and CONTRIBUTING.md", findings.len());
    Ok(())
}

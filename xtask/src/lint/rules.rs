//! The rules of ARCHITECTURE.md and CONTRIBUTING.md that are checked in the text of the Rust files, and their breaches.

use std::collections::BTreeMap;

use anyhow::ensure;

use super::finding::Finding;
use super::source::Source;
use super::{cycles, doc_comments, files, places};
use crate::tools::repository;

/// Finds all breaches of a rule.
type Rule = fn(&[Source]) -> Vec<Finding>;

/// Rules by name.
pub(crate) const RULES: [(&str, Rule); 5] = [
    ("places", places::find_misplaced),
    ("module cycles", cycles::find_cycles),
    ("doc comments", doc_comments::find_questions),
    ("long lines", files::find_long_lines),
    ("mod.rs", files::find_mod_rs),
];

/// Breaches older than their rule, by rule and package. A number may only become smaller.
const KNOWN: [(&str, &str, usize); 3] = [
    ("module cycles", "system", 5),
    ("doc comments", "system", 218),
    ("long lines", "system", 37),
];

/// Prints the breaches in packages that have more of them than are known. Fails if there are any, or fewer than known.
pub(crate) fn check() -> anyhow::Result<()> {
    let sources = Source::read_all(&repository())?;
    let mut wrong = Vec::new();
    for (rule, find) in RULES {
        let findings = by_package(&sources, find(&sources));
        wrong.extend(compare(rule, &findings, &KNOWN));
    }
    for line in &wrong {
        eprintln!("{line}");
    }
    ensure!(wrong.is_empty(), "{} breaches of the rules in ARCHITECTURE.md and CONTRIBUTING.md", wrong.len());
    Ok(())
}

/// Groups findings by package; packages without one are there too.
fn by_package(sources: &[Source], findings: Vec<Finding>) -> BTreeMap<&str, Vec<Finding>> {
    let mut packages: BTreeMap<_, _> = sources.iter().map(|source| (source.package(), Vec::new())).collect();
    for finding in findings {
        let source = sources.iter().find(|source| source.file == finding.file);
        packages.entry(source.map_or("", Source::package)).or_default().push(finding);
    }
    packages
}

/// Returns a line for each finding of a package with more findings than known, and one for a package with fewer.
fn compare(rule: &str, packages: &BTreeMap<&str, Vec<Finding>>, known: &[(&str, &str, usize)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (package, findings) in packages {
        let is_this = |(of, in_package, _): &&(&str, &str, usize)| *of == rule && in_package == package;
        let known = known.iter().find(is_this).map_or(0, |(_, _, known)| *known);
        if findings.len() > known {
            lines.extend(findings.iter().map(ToString::to_string));
        } else if findings.len() < known {
            let count = findings.len();
            lines.push(format!("xtask/src/lint/rules.rs: {rule} in {package}: write {count} instead of {known}"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(count: usize) -> BTreeMap<&'static str, Vec<Finding>> {
        let finding = |line| Finding { file: "crates/lvm/src/a.rs".to_owned(), line, message: "do this".to_owned() };
        BTreeMap::from([("lvm", (1..=count).map(finding).collect())])
    }

    #[test]
    fn a_finding_is_a_breach_and_names_its_place() {
        assert_eq!(compare("places", &findings(1), &[]), ["crates/lvm/src/a.rs:1: do this"]);
        assert!(compare("places", &findings(0), &[]).is_empty());
    }

    #[test]
    fn known_breaches_may_become_fewer_only() {
        let known = [("places", "lvm", 2), ("places", "lvmd", 9), ("long lines", "lvm", 9)];
        assert!(compare("places", &findings(2), &known).is_empty());
        assert_eq!(compare("places", &findings(3), &known).len(), 3);
        let fewer = ["xtask/src/lint/rules.rs: places in lvm: write 1 instead of 2"];
        assert_eq!(compare("places", &findings(1), &known), fewer);
    }

    #[test]
    fn a_package_without_findings_is_compared_too() {
        let source = Source::parse("crates/lvm/src/a.rs", String::new()).unwrap();
        let sources = [source];
        let packages = by_package(&sources, Vec::new());
        assert_eq!(compare("places", &packages, &[("places", "lvm", 1)]).len(), 1);
    }
}

//! Cycles between the modules of a package.
//!
//! Counted are modules beside each other, each with all that is below it. A module and one inside of it may use each
//! other: the inner one is a part of the outer one.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::source::{NamedPath, Source};

/// Names of a module and of those around it, from the outermost; empty for the root of the package.
type Module = Vec<String>;

/// Imports that are followed from one to the next, for one that a module exports again.
const IMPORTS: usize = 8;

/// Finds modules that use themselves through others; one finding for each module.
pub(crate) fn find_cycles(sources: &[Source]) -> Vec<Finding> {
    let packages: BTreeSet<_> = sources.iter().map(Source::package).collect();
    let modules = |package| Modules::new(sources.iter().filter(|source| source.package() == package));
    packages.into_iter().flat_map(|package| modules(package).find_cycles()).collect()
}

/// The modules of a package with their files.
struct Modules<'a> {
    files: BTreeMap<Module, &'a Source>,
}

impl<'a> Modules<'a> {
    fn new(sources: impl Iterator<Item = &'a Source>) -> Self {
        let mut files = BTreeMap::new();
        for source in sources {
            if let Some(module) = module_of(&source.file) {
                // The root is lib.rs where there is one, which comes before main.rs
                files.entry(module).or_insert(source);
            }
        }
        Self { files }
    }

    fn find_cycles(&self) -> Vec<Finding> {
        let edges = self.edges();
        let mut findings = Vec::new();
        let mut found = BTreeSet::new();
        for ((from, to), (source, line)) in &edges {
            if let Some(way) = find_way(&edges, to, from).filter(|_| found.insert(from)) {
                let way: Vec<_> = [from].into_iter().chain(way).map(|module| module.join("::")).collect();
                let message =
                    format!("module cycle {}: move what both need into a module of its own", way.join(" -> "));
                findings.push(Finding::new(source, *line, message));
            }
        }
        findings
    }

    /// Returns which module uses which other one beside it, with a place where it does.
    fn edges(&self) -> BTreeMap<(Module, Module), (&'a Source, usize)> {
        let mut edges = BTreeMap::new();
        for (from, source) in &self.files {
            for path in &source.paths {
                let Some(to) = self.resolve(from, &path.segments, IMPORTS) else { continue };
                let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
                if let (Some(from), Some(to)) = (from.get(..=common), to.get(..=common)) {
                    edges.entry((from.to_vec(), to.to_vec())).or_insert((*source, path.line));
                }
            }
        }
        edges
    }

    /// Returns the module of what a path means in a module; none for what is outside of the package.
    fn resolve(&self, at: &[String], path: &[String], imports: usize) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut module = match first.as_str() {
            "crate" => Module::new(),
            "self" => at.to_vec(),
            "super" => at.split_last()?.1.to_vec(),
            name => self.enter(at, name, imports)?,
        };
        while let [name, tail @ ..] = rest {
            let next = if name == "super" { module.split_last().map(|(_, above)| above.to_vec()) } else { None };
            let Some(next) = next.or_else(|| self.enter(&module, name, imports)) else { break };
            (module, rest) = (next, tail);
        }
        Some(module)
    }

    /// Returns the module of this name in a module, or that of what the module imports under this name.
    fn enter(&self, at: &[String], name: &str, imports: usize) -> Option<Module> {
        let inner = [at, &[name.to_owned()]].concat();
        if self.files.contains_key(&inner) {
            return Some(inner);
        }
        let has_name = |path: &&NamedPath| path.import.as_deref() == Some(name);
        let import = self.files.get(at)?.paths.iter().find(has_name)?;
        self.resolve(at, &import.segments, imports.checked_sub(1)?)
    }
}

/// Returns the module of a file in `src`.
fn module_of(file: &str) -> Option<Module> {
    let (_, path) = file.strip_suffix(".rs")?.split_once("/src/")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = path == "lib" || path == "main";
    Some(if is_root { Module::new() } else { path.split('/').map(str::to_owned).collect() })
}

/// Returns the shortest way from one module to another, with both ends.
fn find_way<'a, T>(
    edges: &'a BTreeMap<(Module, Module), T>,
    start: &'a Module,
    end: &Module,
) -> Option<Vec<&'a Module>> {
    let mut ways = vec![vec![start]];
    let mut seen = BTreeSet::from([start]);
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = *way.last()?;
            if last == end {
                return Some(way);
            }
            for to in edges.keys().filter(|(from, _)| from == last).map(|(_, to)| to) {
                if seen.insert(to) {
                    longer.push([way.as_slice(), &[to]].concat());
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles of a package with these modules.
    fn find(files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(name, text): &(&str, &str)| Source::parse(&format!("crates/a/src/{name}"), (*text).to_owned());
        let sources: Vec<_> = files.iter().map(|file| parse(file).unwrap()).collect();
        let cycle = |finding: Finding| finding.message.split(':').take(5).collect::<Vec<_>>().join(":");
        find_cycles(&sources).into_iter().map(|finding| finding.file.clone() + " " + &cycle(finding)).collect()
    }

    #[test]
    fn two_modules_that_use_each_other_are_found() {
        let findings = find(&[("lib.rs", ""), ("b.rs", "use crate::c::C;"), ("c.rs", "fn f() { super::b::g() }")]);
        assert_eq!(findings.len(), 2);
        assert!(findings[0].starts_with("crates/a/src/b.rs module cycle b -> c -> b: "), "{findings:?}");
    }

    #[test]
    fn a_cycle_over_what_is_exported_again_is_found() {
        let root = ("lib.rs", "mod b; mod c;\npub use b::{B as Renamed};\nuse c::C;");
        assert_eq!(find(&[root, ("b.rs", "use crate::C;"), ("c.rs", "use crate::Renamed;")]).len(), 2);
    }

    #[test]
    fn modules_count_with_what_is_in_them() {
        let files = [("b.rs", ""), ("b/x.rs", "use crate::c::C;"), ("c/mod.rs", ""), ("c/y.rs", "use crate::b::B;")];
        assert_eq!(find(&files).len(), 2);
        let inner = [("b.rs", "use x::X;"), ("b/x.rs", "use super::y::Y;"), ("b/y.rs", "use super::super::b::x::X;")];
        assert_eq!(find(&inner).len(), 2);
    }

    #[test]
    fn modules_in_order_are_no_cycle() {
        let files = [
            ("lib.rs", "pub use b::B;"),
            ("b.rs", "mod x; use x::X; use std::fmt; use crate::c::{self, C};"),
            ("b/x.rs", "use super::B; use c::external;"),
            ("c.rs", "#[cfg(test)]\nmod tests { use crate::b::B; }"),
        ];
        assert_eq!(find(&files), [""; 0]);
    }
}

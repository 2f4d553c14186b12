//! Words of public texts and of names: they are the terms of Kubernetes, LVM and CSI, for which readers search.

use std::fs;
use std::path::Path;

use heck::ToSnakeCase as _;
use proc_macro2::{Ident, Literal, TokenStream, TokenTree};

use super::finding::Finding;
use super::source::{Source, is_punct, skip_item};
use crate::tools::repository;

/// Words and phrases that public texts and names do not use, and what to write. A word that ends with `*` may go on.
const REPLACEMENTS: [(&str, &str); 36] = [
    ("anew", "again, or recreate"),
    ("anybody", "the actor: a user, the caller"),
    ("by itself", "automatically"),
    ("doubt*", "blocker, reason"),
    ("for ever", "forever, indefinitely"),
    ("heed*", "handle, respect"),
    ("hold still", "wait, pause"),
    ("in the mean", "on average"),
    ("keep up", "maintain"),
    ("keeps up", "maintains"),
    ("kept up", "maintained"),
    ("look again", "scan, poll, re-read"),
    ("looked at", "inspected, checked"),
    ("looks at", "inspects, checks, reads"),
    ("made again", "recreated"),
    ("make again", "recreate"),
    ("mend*", "fix, repair"),
    ("nobody", "the actor, or passive voice"),
    ("occasion", "event"),
    ("promise*", "reservation, reserve"),
    ("put on", "add"),
    ("puts on", "adds"),
    ("room", "free space, capacity"),
    ("sighting", "observation"),
    ("somebody", "the actor: an administrator, another program"),
    ("suspect*", "candidate"),
    ("take off", "remove"),
    ("taken off", "removed"),
    ("takes off", "removes"),
    ("tell*", "report, publish, return, print, log"),
    ("told", "reported, published, returned, printed, logged"),
    ("untold", "unreported"),
    ("upkeep", "maintenance"),
    ("verdict*", "state, result, decision"),
    ("whoever", "the actor: the user, the caller"),
    ("wish*", "request, desired"),
];

/// Words that names of tests, and of what tests use, do not have either.
const REPLACEMENTS_IN_NAMES: [(&str, &str); 4] =
    [("bed", "setup, test cluster"), ("planted", "injected"), ("stories", "scenarios"), ("story", "scenario")];

/// Files and directories that users and contributors read, besides the texts in the programs.
const PUBLIC: [&str; 11] = [
    "README.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs",
    "deploy",
    "charts",
    "examples",
    "proto",
    "scheduler-config",
    "systemd",
];

/// Finds words of the table in public texts: documentation, manifests, the chart, strings of the programs and the help
/// of their flags.
pub(crate) fn find_unusual_words(sources: &[Source]) -> Vec<Finding> {
    let product = sources.iter().filter(|source| source.is_product() && !source.is_test());
    let mut findings: Vec<Finding> = product.flat_map(find_in_program).collect();
    for path in PUBLIC {
        find_in_files(Path::new(path), &mut findings);
    }
    findings
}

/// Finds words of the table in the names of functions, types, variables and modules, those of tests too.
pub(crate) fn find_unusual_names(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(find_in_names).collect()
}

fn find_in_names(source: &Source) -> Vec<Finding> {
    let mut names = Vec::new();
    // Parsed before
    collect_names(source.text.parse().unwrap_or_default(), &mut names);
    let check = |name: &Ident| {
        let words = name.to_string().to_snake_case().replace('_', " ");
        let mut replacements = REPLACEMENTS.iter().chain(&REPLACEMENTS_IN_NAMES);
        let found = replacements.find(|(word, _)| contains(&words, word));
        found.map(|(word, instead)| {
            Finding::new(source, name.span().start().line, format!("{name} has {word:?}: write {instead}"))
        })
    };
    names.iter().filter_map(check).collect()
}

fn collect_names(tokens: TokenStream, names: &mut Vec<Ident>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_names(group.stream(), names),
            TokenTree::Ident(name) => names.push(name),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn find_in_program(source: &Source) -> Vec<Finding> {
    // Parsed before
    let tokens: TokenStream = source.text.parse().unwrap_or_default();
    let mut literals = Vec::new();
    collect_texts(tokens, source.file.ends_with("/args.rs"), &mut literals);
    let in_literal = |literal: &Literal| {
        let first = literal.span().start().line;
        find_in_text(&literal.to_string())
            .map(move |(line, message)| Finding::new(source, first + line - 1, message))
            .collect::<Vec<_>>()
    };
    literals.iter().flat_map(in_literal).collect()
}

fn find_in_files(path: &Path, findings: &mut Vec<Finding>) {
    let whole = repository().join(path);
    if let Ok(entries) = fs::read_dir(&whole) {
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        for name in names {
            find_in_files(&path.join(name), findings);
        }
    } else if let Ok(text) = fs::read_to_string(&whole) {
        let file = path.to_string_lossy().into_owned();
        findings.extend(find_in_text(&text).map(|(line, message)| Finding { file: file.clone(), line, message }));
    }
}

/// Appends the string literals that are sentences or parts of them: outside of tests and attributes, and with the
/// comments if they are what `--help` prints.
fn collect_texts(tokens: TokenStream, has_help: bool, literals: &mut Vec<Literal>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut rest = tokens.as_slice();
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (hash, [TokenTree::Group(attribute), tail @ ..]) if is_punct(hash, '#') => {
                let text = attribute.stream().to_string().replace(' ', "");
                if has_help && text.starts_with("doc=") {
                    collect_texts(attribute.stream(), has_help, literals);
                }
                if text == "cfg(test)" { skip_item(tail) } else { tail }
            }
            (TokenTree::Group(group), tail) => {
                collect_texts(group.stream(), has_help, literals);
                tail
            }
            (TokenTree::Literal(literal), tail) => {
                if literal.to_string().contains(' ') {
                    literals.push(literal.clone());
                }
                tail
            }
            (_, tail) => tail,
        };
    }
}

/// Returns the lines with words of the table, from 1, and what to write instead.
fn find_in_text(text: &str) -> impl Iterator<Item = (usize, String)> {
    (1..).zip(text.lines()).flat_map(|(line, text)| {
        let text = text.to_lowercase();
        let found = REPLACEMENTS.iter().filter(move |(word, _)| contains(&text, word));
        found.map(move |(word, instead)| (line, format!("{word:?}: write {instead}")))
    })
}

/// Returns true if a text has a word or phrase, and not merely as a part of a longer word or name.
fn contains(text: &str, word: &str) -> bool {
    let (word, goes_on) = word.strip_suffix('*').map_or((word, false), |word| (word, true));
    let is_of_name = |letter: char| letter.is_alphanumeric() || "_-/.".contains(letter);
    text.match_indices(word).any(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + word.len()..]);
        let ends = !after.starts_with(|letter: char| letter.is_alphanumeric() || "_-/".contains(letter));
        !before.ends_with(is_of_name) && (goes_on || ends)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_table_are_found_with_their_lines() {
        let found: Vec<_> = find_in_text("A request.\nSomebody wished it.").collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|(line, _)| *line == 2), "{found:?}");
    }

    #[test]
    fn parts_of_words_and_names_are_not_found() {
        for text in ["mushroom", "headroom-bytes", "a_told_b", "intelligent", "room-size", "/room"] {
            assert_eq!(find_in_text(text).count(), 0, "{text}");
        }
    }

    #[test]
    fn names_are_checked_word_by_word() {
        let find = |text: &str| find_in_names(&Source::parse("crates/lvm/src/a.rs", text.to_owned()).unwrap()).len();
        assert_eq!(find("struct NobodyAsks; #[cfg(test)] mod tests { fn volume_is_made_again() {} }"), 2);
        assert_eq!(find("fn mushroom() { intelligent(\"nobody asks\") }"), 0);
    }

    #[test]
    fn strings_of_tests_and_attributes_are_left_out() {
        let find = |file: &str, text: &str| find_in_program(&Source::parse(file, text.to_owned()).unwrap()).len();
        let text = "#[expect(a, reason = \"nobody asks\")]\nfn f() { g(\"nobody asks\") }\n\
                    #[cfg(test)]\nmod tests { fn h() { g(\"nobody asks\") } }";
        assert_eq!(find("crates/lvm/src/a.rs", text), 1);
    }

    #[test]
    fn comments_are_texts_only_where_they_are_help() {
        let text = "/// Nobody asks.\nstruct A;";
        let find = |file: &str| find_in_program(&Source::parse(file, text.to_owned()).unwrap()).len();
        assert_eq!((find("crates/lvm/src/a.rs"), find("crates/lvm/src/args.rs")), (0, 1));
    }
}

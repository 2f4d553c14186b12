//! Code blocks of the documentation: each says what it is, commands marked `sh` are run by a test, and a table says why
//! others are not.

use std::fs;

use testbed::page::{CodeBlock, code_blocks};

use super::finding::Finding;
use super::source::Source;
use crate::tools::repository;

/// Marks of blocks that have no commands.
const DATA: [&str; 5] = ["ini", "json", "promql", "text", "yaml"];
/// Mark of commands that a test runs.
const RUN: &str = "sh";
/// Mark of commands that no test runs.
const NOT_RUN: &str = "console";
/// Page and section of the table of commands that no test runs.
const TABLE: (&str, &str) = ("testing.md", "\n## Commands in the documentation\n");

/// Finds blocks without a mark, commands that no test runs although their mark says so, and commands without a reason
/// why no test runs them.
pub(crate) fn find_unaccounted(sources: &[Source]) -> Vec<Finding> {
    let docs = repository().join("docs");
    let read = |name: String| Page { text: fs::read_to_string(docs.join(&name)).unwrap_or_default(), name };
    let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap_or_default();
    let pages: Vec<_> = links(&contents).map(read).collect();
    let tests = sources.iter().filter(|source| source.file.starts_with("tests/system/"));
    let tests = tests.map(|source| without_breaks(&source.text)).collect::<String>();
    check_pages(&pages, &tests)
}

/// Returns the pages that the table of contents of the book links to.
fn links(contents: &str) -> impl Iterator<Item = String> {
    contents.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
}

/// A page, named by its path from `docs`.
struct Page {
    name: String,
    text: String,
}

fn check_pages(pages: &[Page], tests: &str) -> Vec<Finding> {
    let table = pages.iter().find(|page| page.name == TABLE.0).and_then(|page| page.text.split_once(TABLE.1));
    let table = table.and_then(|(_, rest)| rest.split("\n## ").next()).unwrap_or_default();
    let mut findings = Vec::new();
    for page in pages {
        let blocks = code_blocks(&page.text);
        findings.extend(blocks.iter().filter_map(|block| Some(page.finding(block.line, fault(page, block, tests)?))));
        let not_run = blocks.iter().find(|block| block.language == NOT_RUN);
        let has_row = table.lines().any(|line| is_row_of(line, &page.name));
        let where_to = "the table \"Commands in the documentation\" of docs/testing.md";
        match (not_run, has_row) {
            (Some(block), false) => {
                let message = format!("say in {where_to} why no test runs this, or mark it `{RUN}` and run it");
                findings.push(page.finding(block.line, message));
            }
            (None, true) => findings.push(page.finding(1, format!("take the page out of {where_to}: all is run"))),
            _ => {}
        }
    }
    findings
}

impl Page {
    fn finding(&self, line: usize, message: String) -> Finding {
        let file = self.name.strip_prefix("../").map_or_else(|| format!("docs/{}", self.name), str::to_owned);
        Finding { file, line, message }
    }
}

/// Returns what is wrong with the mark of a block.
fn fault(page: &Page, block: &CodeBlock, tests: &str) -> Option<String> {
    let language = block.language.as_str();
    if language == RUN {
        let call = format!("Commands::of({:?}, {:?})", page.name, block.section);
        return (!tests.contains(&call))
            .then(|| format!("no test runs this: call {call} in one, or mark it `{NOT_RUN}`"));
    }
    let is_known = language == NOT_RUN || DATA.contains(&language);
    (!is_known).then(|| {
        format!("mark the block `{RUN}` if a test runs it, `{NOT_RUN}` if none can, or one of {}", DATA.join(", "))
    })
}

/// Returns true for the row of a page: its first cell has a link to the page.
fn is_row_of(line: &str, page: &str) -> bool {
    line.strip_prefix("| [")
        .and_then(|row| row.split(" | ").next())
        .is_some_and(|cell| cell.contains(&format!("]({page})")))
}

/// Joins the lines into which rustfmt breaks the arguments of a call.
fn without_breaks(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.join(" ").replace("( ", "(").replace(", )", ")").replace(",)", ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(page: &str, table: &str, tests: &str) -> Vec<String> {
        let page = Page { name: "page.md".to_owned(), text: page.to_owned() };
        let table =
            format!("# Testing\n\n## Commands in the documentation\n\n{table}\n\n## Next\n\n| [page.md](page.md) |\n");
        let testing = Page { name: "testing.md".to_owned(), text: table };
        check_pages(&[page, testing], &without_breaks(tests)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_pages_are_those_of_the_table_of_contents() {
        let contents = "# Summary\n\n[Title](../README.md)\n\n- [A](a.md)\n  - [B](../b/README.md)\n";
        assert_eq!(links(contents).collect::<Vec<_>>(), ["../README.md", "a.md", "../b/README.md"]);
    }

    #[test]
    fn a_block_without_a_mark_or_with_an_unknown_one_is_found() {
        let found = check("# Page\n\n```\nls\n```\n\n```bash\nls\n```\n\n```json\n{}\n```\n", "", "");
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("docs/page.md:3: mark the block `sh` if a test runs it"), "{found:?}");
        assert!(found[1].starts_with("docs/page.md:7: "), "{found:?}");
    }

    #[test]
    fn commands_that_are_said_to_be_run_are_named_in_a_test() {
        let page = "# Page\n\n## The part\n\n```sh\nls\n```\n";
        assert_eq!(check(page, "", "Commands::of(\n    \"page.md\",\n    \"The part\",\n)?.run()"), [""; 0]);
        let message = "no test runs this: call Commands::of(\"page.md\", \"The part\") in one, or mark it `console`";
        assert_eq!(check(page, "", "Commands::of(\"page.md\", \"Another\")"), [format!("docs/page.md:5: {message}")]);
    }

    #[test]
    fn commands_that_are_not_run_have_a_row_and_no_page_else() {
        let page = "# Page\n\n```console\nreboot\n```\n";
        assert_eq!(check(page, "| [page.md](page.md) | it reboots |", ""), [""; 0]);
        let table = "the table \"Commands in the documentation\" of docs/testing.md";
        let message = format!("docs/page.md:3: say in {table} why no test runs this, or mark it `sh` and run it");
        assert_eq!(check(page, "| [other.md](other.md) | as [page.md](page.md) |", ""), [message]);
        let message = format!("docs/page.md:1: take the page out of {table}: all is run");
        assert_eq!(check("# Page\n", "| [page.md](page.md) | it reboots |", ""), [message]);
    }
}

//! Beginnings of doc comments.

use super::finding::Finding;
use super::source::Source;

/// Words with which a doc comment would ask a question instead of naming its item.
const QUESTION_WORDS: [&str; 11] =
    ["What", "Whatever", "Whether", "Who", "Whom", "Whose", "Where", "How", "Why", "Which", "When"];

/// Finds doc comments that begin with a question word. The help text of a flag is none.
pub(crate) fn find_questions(sources: &[Source]) -> Vec<Finding> {
    sources.iter().flat_map(in_source).collect()
}

fn in_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Line and first word of the doc comment that the line before belongs to
    let mut comment: Option<(usize, &str)> = None;
    for (line, text) in (1..).zip(source.text.lines().map(str::trim_start)) {
        if let Some(text) = text.strip_prefix("///").or_else(|| text.strip_prefix("//!")) {
            comment = comment.or_else(|| Some((line, first_word(text))));
        } else if let Some((line, word)) = comment.take() {
            let is_help = text.starts_with("#[arg(") || text.starts_with("#[command(");
            if QUESTION_WORDS.contains(&word) && !is_help {
                let message = format!("{word} begins a doc comment: name what the item is or does");
                findings.push(Finding::new(source, line, message));
            }
        }
    }
    findings
}

fn first_word(comment: &str) -> &str {
    let word = comment.split_whitespace().next().unwrap_or_default();
    word.trim_end_matches(|c: char| !c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_words_at_the_beginning_are_found() {
        let text = "//! What it is.\n\n/// Returns it.\n/// When it is there.\nfn a() {}\n    /// Whether, or not.\n\
                    fn b() {}\n/// Whatsoever is another word.\n// Why not\nfn c() {}\
                    \n/// How to print.\n#[arg(long)]\nd: D\n";
        let source = Source::parse("crates/lvm/src/a.rs", text.to_owned()).unwrap();
        let lines: Vec<_> = find_questions(&[source]).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 6]);
    }
}

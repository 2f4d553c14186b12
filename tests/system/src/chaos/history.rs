//! Who did what when. Shown for what does not come out right.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Whose lines are part of every history.
pub(super) const EVENTS: &str = "event";

/// Everything that was done, in its order.
#[derive(Debug)]
pub(super) struct History {
    start: Instant,
    file: File,
    lines: Mutex<Vec<Line>>,
}

#[derive(Debug)]
struct Line {
    at: Duration,
    who: String,
    what: String,
}

impl History {
    /// A history that can also be followed in a file.
    pub(super) fn new(file: &Path) -> Result<Self> {
        let file = File::create(file).with_context(|| format!("create {}", file.display()))?;
        Ok(Self { start: Instant::now(), file, lines: Mutex::default() })
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn record(&self, who: &str, what: impl Into<String>) {
        let line = Line { at: self.elapsed(), who: who.to_owned(), what: what.into() };
        // Only for whoever looks
        writeln!(&self.file, "{line}").ok();
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Those whose lines mention one of these words.
    pub(super) fn who_mentions(&self, words: &[String]) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mentions = |line: &&Line| words.iter().any(|word| line.what.contains(word.as_str()));
        let mut who: Vec<String> = lines.iter().filter(mentions).map(|line| line.who.clone()).collect();
        who.sort();
        who.dedup();
        who
    }

    /// Whether a line that ends with `later` came after one that ends with `first`.
    pub(super) fn follows(&self, first: &str, later: &str) -> bool {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut after = lines.iter().skip_while(|line| !line.what.ends_with(first));
        after.any(|line| line.what.ends_with(later))
    }

    /// What these did, and what happened meanwhile.
    pub(super) fn of(&self, who: &[String]) -> String {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = lines.iter().filter(|line| line.who == EVENTS || who.contains(&line.who));
        shown.map(Line::to_string).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.2} s {:5} {}", self.at.as_secs_f64(), self.who, self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_has_its_own_lines_and_the_events() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::new(&directory.path().join("history")).unwrap();
        history.record("s001", "creates a");
        history.record(EVENTS, "kills it");
        history.record("s002", "makes b");
        assert_eq!(history.who_mentions(&["b".to_owned()]), ["s002"]);
        assert!(history.follows("creates a", "makes b"));
        assert!(!history.follows("makes b", "creates a") && !history.follows("nothing", "makes b"));
        let text = history.of(&["s001".to_owned()]);
        assert!(text.contains("creates a") && text.contains("kills it") && !text.contains("makes b"), "{text}");
    }
}

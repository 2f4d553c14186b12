//! Log of the steps and events of a run, from which the history of a volume is printed after a failure.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::plan::Outage;

/// Author of the entries that are part of every excerpt.
pub(super) const EVENTS: &str = "event";

/// All entries in their order.
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
    what: Fact,
}

/// Content of an entry. Facts that the checks search for have a separate variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// A message that is only read by people.
    Said(String),
    /// A claim was created, which is deleted at once.
    ShortLivedClaim { claim: String, uid: String },
    /// A short-lived claim is removed from the API server.
    ShortLivedClaimGone { uid: String },
    /// A program exited.
    Ended(&'static str, Cause),
    /// The API server becomes unavailable for this number of seconds.
    Away { outage: Outage, seconds: u64 },
    /// The API server is available again.
    Back,
    /// A fault is injected into a node; the text describes it.
    Disturbed(String),
    /// The disturbed node is as before.
    Restored,
}

/// Cause of the exit of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By itself.
    Exit,
    /// It is killed.
    Kill,
    /// Another program replaces it, or the same with other flags.
    Replacement,
}

/// A time span since the beginning of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Duration,
    pub(super) until: Duration,
}

impl From<String> for Fact {
    fn from(text: String) -> Self {
        Self::Said(text)
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said(text) => f.write_str(text),
            Self::ShortLivedClaim { claim, uid } => write!(f, "{claim} is deleted at once and has the UID {uid}"),
            Self::ShortLivedClaimGone { uid } => write!(f, "the claim with the UID {uid} is gone"),
            Self::Ended(name, Cause::Exit) => write!(f, "{name} has exited unexpectedly"),
            Self::Ended(name, Cause::Kill) => write!(f, "kills {name}"),
            Self::Ended(name, Cause::Replacement) => write!(f, "replaces {name}"),
            Self::Away { outage, seconds } => write!(f, "the API server is {outage:?} for {seconds} s"),
            Self::Back => f.write_str("the API server is back"),
            Self::Disturbed(how) => f.write_str(how),
            Self::Restored => f.write_str("the node is as before"),
        }
    }
}

impl History {
    /// Creates a history, which is also written to a file.
    pub(super) fn new(file: &Path) -> Result<Self> {
        let file = File::create(file).with_context(|| format!("create {}", file.display()))?;
        Ok(Self { start: Instant::now(), file, lines: Mutex::default() })
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn record(&self, who: &str, what: impl Into<Fact>) {
        let line = Line { at: self.elapsed(), who: who.to_owned(), what: what.into() };
        // The file is only for a person who reads it
        writeln!(&self.file, "{line}").ok();
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// Returns the authors of entries that mention one of these names.
    pub(super) fn authors_mentioning(&self, words: &[String]) -> Vec<String> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mentions = |line: &&Line| {
            let what = line.what.to_string();
            words.iter().any(|word| what.contains(word.as_str()))
        };
        let mut who: Vec<String> = lines.iter().filter(mentions).map(|line| line.who.clone()).collect();
        who.sort();
        who.dedup();
        who
    }

    /// Returns the span from the request for a claim that was deleted at once until it was removed.
    pub(super) fn short_lived_claim(&self, uid: &str) -> Option<Span> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let made = lines
            .iter()
            .position(|line| matches!(&line.what, Fact::ShortLivedClaim { uid: made, .. } if made == uid))?;
        let (before, since) = lines.split_at_checked(made)?;
        let made = since.first()?;
        // The answer of the API server may have been lost, and come late
        let asked = before.iter().rfind(|line| line.who == made.who).unwrap_or(made);
        let gone =
            since.iter().find(|line| matches!(&line.what, Fact::ShortLivedClaimGone { uid: gone } if gone == uid))?;
        Some(Span { from: asked.at, until: gone.at })
    }

    /// Returns the times at which a program exited.
    pub(super) fn exits(&self, name: &str) -> Vec<Duration> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .filter(|line| matches!(line.what, Fact::Ended(ended, _) if ended == name))
            .map(|line| line.at)
            .collect()
    }

    /// Returns the spans in which the API server was unavailable or a node disturbed, so that volumes may have waited.
    /// Those that have not ended are left out.
    pub(super) fn outages(&self) -> Vec<Span> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |is_it: fn(&Fact) -> bool| lines.iter().filter(move |line| is_it(&line.what)).map(|line| line.at);
        let away = at(|fact| matches!(fact, Fact::Away { .. } | Fact::Disturbed(_)));
        away.zip(at(|fact| matches!(fact, Fact::Back | Fact::Restored)))
            .map(|(from, until)| Span { from, until })
            .collect()
    }

    /// Returns the entries of these authors, and all events.
    pub(super) fn excerpt(&self, who: &[String]) -> String {
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
        for (who, what) in [("s001", "creates a"), (EVENTS, "kills it"), ("s002", "makes b")] {
            history.record(who, what.to_owned());
        }
        assert_eq!(history.authors_mentioning(&["b".to_owned()]), ["s002"]);
        let text = history.excerpt(&["s001".to_owned()]);
        assert!(text.contains("creates a") && text.contains("kills it") && !text.contains("makes b"), "{text}");
    }

    #[test]
    fn a_history_knows_when_what_matters_later_happened() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::new(&directory.path().join("history")).unwrap();
        history.record("s001", "creates a".to_owned());
        history.record("s002", "creates b".to_owned());
        history.record(EVENTS, Fact::Ended("p", Cause::Exit));
        history.record("s001", Fact::ShortLivedClaim { claim: "a".to_owned(), uid: "u".to_owned() });
        history.record("s002", Fact::ShortLivedClaim { claim: "b".to_owned(), uid: "v".to_owned() });
        history.record("s001", Fact::ShortLivedClaimGone { uid: "u".to_owned() });
        history.record(EVENTS, Fact::Away { outage: Outage::Frozen, seconds: 3 });
        history.record(EVENTS, Fact::Back);
        history.record(EVENTS, Fact::Disturbed("the power is cut".to_owned()));
        history.record(EVENTS, Fact::Restored);
        history.record(EVENTS, Fact::Away { outage: Outage::Frozen, seconds: 3 });
        let at: Vec<Duration> = history.lines.lock().unwrap().iter().map(|line| line.at).collect();
        assert_eq!(history.short_lived_claim("u"), Some(Span { from: at[0], until: at[5] }));
        assert_eq!(
            (history.short_lived_claim("v"), history.short_lived_claim("w")),
            (None, None),
            "one is not gone, one was never there"
        );
        assert_eq!((history.exits("p"), history.exits("q")), (vec![at[2]], Vec::new()));
        assert_eq!(
            history.outages(),
            [Span { from: at[6], until: at[7] }, Span { from: at[8], until: at[9] }],
            "one after the other"
        );
    }
}

//! A breach of a rule, with its place.

use std::fmt;

use super::source::Source;

/// A breach of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path from the top of the repository.
    pub(crate) file: String,
    /// Line, from 1.
    pub(crate) line: usize,
    /// Breach and remedy, in a sentence.
    pub(crate) message: String,
}

impl Finding {
    /// Makes a finding in a file.
    pub(crate) fn new(source: &Source, line: usize, message: impl Into<String>) -> Self {
        Self { file: source.file.clone(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

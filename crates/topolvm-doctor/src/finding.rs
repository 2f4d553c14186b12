//! Findings of checks.

use serde::Serialize;

use crate::read_error::ReadError;

/// Result of a check; a worse one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// It is unknown.
    Unknown,
    /// It works, and may not be meant.
    Warn,
    /// It does not work.
    Fail,
}

impl Outcome {
    /// Returns the keyword for people and for the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity.
    pub result: Outcome,
    /// The fault, or that all is well, with the names of the objects.
    pub found: String,
    /// Remedy; none if the result is [`Outcome::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Commands of the remedy for a shell, in their order; empty if commands alone do not fix it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

impl Finding {
    /// Makes the finding that all is well.
    pub(crate) fn ok(found: impl Into<String>) -> Self {
        Self { result: Outcome::Ok, found: found.into(), remedy: None, commands: Vec::new() }
    }

    /// Makes a warning with its remedy.
    pub(crate) fn warn(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { result: Outcome::Warn, remedy: Some(remedy.into()), ..Self::ok(found) }
    }

    /// Makes a failure with its remedy.
    pub(crate) fn fail(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { result: Outcome::Fail, ..Self::warn(found, remedy) }
    }

    /// Adds commands that fix it.
    #[must_use]
    pub(crate) fn with_commands(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.commands.extend(commands);
        self
    }

    /// Returns the findings of a check, or the finding that all is well where it has none.
    pub(crate) fn ok_if_none(findings: Vec<Self>, found: impl Into<String>) -> Vec<Self> {
        if findings.is_empty() { vec![Self::ok(found)] } else { findings }
    }

    /// Creates the finding about something unknown, with the place where it can be seen.
    pub(crate) fn undetermined(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { result: Outcome::Unknown, ..Self::warn(found, remedy) }
    }

    /// Makes the finding about a fact that could not be read.
    pub(crate) fn unknown(error: &ReadError) -> Self {
        let (found, remedy) = match error {
            ReadError::Forbidden { verb, resource } => (
                format!("you may not {verb} {resource}"),
                format!("run doctor with an account that may {verb} {resource}, or request this right"),
            ),
            ReadError::Absent { resource } => {
                (error.to_string(), format!("check why the API server does not serve {resource}"))
            }
            ReadError::Failed { .. } => (
                error.to_string(),
                "run doctor again; if the error persists, check the log of the API server".to_owned(),
            ),
        };
        Self::undetermined(found, remedy)
    }
}

//! Rows as text, in the format that is asked for.

mod args;

use std::io::{self, Write as _};

use serde::Serialize;

pub use args::{Format, OutputArgs, ReportFormat};

/// Error of printing an answer.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Standard output takes nothing.
    #[error("cannot print")]
    Print(#[source] io::Error),
    /// The answer has no form in JSON.
    #[error("cannot print as JSON")]
    Json(#[from] serde_json::Error),
    /// The answer has no form in YAML.
    #[error("cannot print as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl OutputError {
    /// Returns true for EPIPE: the reader of the output has gone, as `head` does, which is no failure.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// A row of an answer.
pub trait Row: Serialize {
    /// Returns `kind/name` as kubectl takes it; none if the row is about no object.
    fn name(&self) -> Option<String>;
}

/// List for programs.
#[derive(Serialize)]
struct Items<'a, T> {
    items: &'a [T],
}

/// Formats rows. `table` makes the table for people, with more columns if its argument is true.
pub fn render<T: Row>(format: Format, rows: &[T], table: impl FnOnce(bool) -> String) -> Result<String, OutputError> {
    match format {
        Format::Table => Ok(table(false)),
        Format::Wide => Ok(table(true)),
        Format::Json => json(&Items { items: rows }),
        Format::Yaml => yaml(&Items { items: rows }),
        Format::Name => {
            let mut names: Vec<_> = rows.iter().filter_map(Row::name).collect();
            names.dedup();
            Ok(names.into_iter().map(|name| name + "\n").collect())
        }
    }
}

/// Formats a report. `lines` makes the text for people.
pub fn render_report(
    format: ReportFormat,
    report: &impl Serialize,
    lines: impl FnOnce() -> String,
) -> Result<String, OutputError> {
    match format {
        ReportFormat::Table => Ok(lines()),
        ReportFormat::Json => json(report),
        ReportFormat::Yaml => yaml(report),
    }
}

/// Formats a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<String, OutputError> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Formats a value as YAML.
pub fn yaml(value: &impl Serialize) -> Result<String, OutputError> {
    Ok(serde_saphyr::to_string(value)?)
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(OutputError::Print)
}

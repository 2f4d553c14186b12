//! Rows as text, in the format that is asked for.

mod args;

use std::io::Write as _;

use serde::Serialize;

use crate::error::Error;

pub(crate) use args::{Format, OutputArgs, ReportFormat};

/// A row of an answer.
pub(crate) trait Row: Serialize {
    /// Returns `kind/name` as kubectl takes it; none if the row is about no object.
    fn name(&self) -> Option<String>;
}

/// List for programs.
#[derive(Serialize)]
struct Items<'a, T> {
    items: &'a [T],
}

/// Formats rows. `table` makes the table for people, with more columns if its argument is true.
pub(crate) fn render<T: Row>(format: Format, rows: &[T], table: impl FnOnce(bool) -> String) -> Result<String, Error> {
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
pub(crate) fn render_report(
    format: ReportFormat,
    report: &impl Serialize,
    lines: impl FnOnce() -> String,
) -> Result<String, Error> {
    match format {
        ReportFormat::Table => Ok(lines()),
        ReportFormat::Json => json(report),
        ReportFormat::Yaml => yaml(report),
    }
}

pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

pub(crate) fn yaml(value: &impl Serialize) -> Result<String, Error> {
    Ok(serde_saphyr::to_string(value)?)
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::Print)
}

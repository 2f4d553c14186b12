//! Flags for the format of the output.

use clap::ValueEnum;

/// Flag for the format of rows.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// How to print.
    #[arg(long = "output", short = 'o', value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Output format of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table for people.
    #[default]
    Table,
    /// The table with more columns.
    Wide,
    /// JSON for programs, sizes in bytes.
    Json,
    /// The same in YAML.
    Yaml,
    /// Names of the objects alone, for kubectl.
    Name,
}

/// Output format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Lines for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
    /// The same in YAML.
    Yaml,
}

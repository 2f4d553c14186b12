//! Flags for the format of the output.

use clap::ValueEnum;

/// Flag for the format of rows.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputArgs {
    /// Output format.
    #[arg(long = "output", short = 'o', value_enum, default_value_t)]
    pub format: Format,
}

/// Output format of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable table.
    #[default]
    Table,
    /// Table with additional columns.
    Wide,
    /// JSON, with sizes in bytes.
    Json,
    /// YAML, with sizes in bytes.
    Yaml,
    /// Only the names of the objects, for kubectl.
    Name,
}

/// Output format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Human-readable lines.
    #[default]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

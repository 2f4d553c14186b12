//! Log lines on standard error: JSON for collectors, text for people.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The logging flags of every program.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// What to log: off, error, warn, info, debug or trace, or a filter such as info,lvm=debug.
    #[arg(long, global = true, env = "LOG_LEVEL", default_value = "info", value_name = "FILTER", value_parser = parse_filter)]
    pub log_level: Targets,

    /// How to write log lines.
    #[arg(long, global = true, env = "LOG_FORMAT", default_value = "json", value_name = "FORMAT")]
    pub log_format: LogFormat,
}

/// How to write log lines.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For reading in a terminal.
    Text,
}

impl LogArgs {
    /// Makes these flags the process's logging. A second call changes nothing.
    pub(crate) fn install(&self) {
        let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
        let registry = tracing_subscriber::registry().with(self.log_level.clone());
        // An error means that a logger is installed already, which is as good
        drop(match self.log_format {
            LogFormat::Json => registry.with(lines.json().flatten_event(true).with_span_list(false)).try_init(),
            // A file or a pipe is read by programs, which do not know colours
            LogFormat::Text => registry.with(lines.with_ansi(std::io::stderr().is_terminal())).try_init(),
        });
    }
}

/// An error with all its causes, for a log line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

// Not an EnvFilter, which could also filter by fields of spans: its regular expressions are half a megabyte of each program
fn parse_filter(text: &str) -> Result<Targets, String> {
    text.parse().map_err(|error| format!("{error}; write a level such as info, or target=level pairs"))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_filter_is_a_level_and_levels_of_targets() {
        let filter = parse_filter("info,lvm=debug").unwrap();
        assert!(filter.would_enable("lvmd::engine", &Level::INFO) && !filter.would_enable("kube", &Level::DEBUG));
        assert!(filter.would_enable("lvm::system", &Level::DEBUG));
        assert!(!parse_filter("off").unwrap().would_enable("lvm", &Level::ERROR));
        assert!(parse_filter("lvm=loud").unwrap_err().contains("write a level such as info"));
    }
}

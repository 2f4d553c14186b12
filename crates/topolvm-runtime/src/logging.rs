//! Log lines on standard error: JSON for collectors, text for people.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

/// The logging flags of every program.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// What to log: off, error, warn, info, debug or trace, or a filter such as info,lvm=debug.
    #[arg(long, global = true, env = "LOG_LEVEL", default_value = "info", value_name = "FILTER", value_parser = parse_filter)]
    pub log_level: String,

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
        let filter = EnvFilter::new(&self.log_level);
        let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
        // An error means that a logger is installed already, which is as good
        drop(match self.log_format {
            LogFormat::Json => builder.json().flatten_event(true).with_span_list(false).try_init(),
            LogFormat::Text => builder.try_init(),
        });
    }
}

fn parse_filter(text: &str) -> Result<String, String> {
    EnvFilter::builder()
        .parse(text)
        .map(|_| text.to_owned())
        .map_err(|error| format!("{error}; write a level such as info, or target=level pairs"))
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

//! Log lines on standard error: JSON for collectors, text for people.

use std::io::IsTerminal as _;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, FromArgMatches};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The logging flags of every program.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    // The first, because those below take their values out of what was parsed
    #[command(flatten)]
    explicit: ExplicitFlags,

    /// What to log: off, error, warn, info, debug or trace, or a filter such as info,lvm=debug.
    #[arg(long, global = true, env = "LOG_LEVEL", default_value = "info", value_name = "FILTER",
          value_parser = parse_filter)]
    log_level: Targets,

    /// Format of log lines.
    #[arg(long, global = true, env = "LOG_FORMAT", default_value = "json", value_name = "FORMAT")]
    log_format: LogFormat,
}

/// Flags that do not have their default: only a default gives way to a flag of TopoLVM.
#[derive(Clone, Copy, Debug)]
struct ExplicitFlags {
    level: bool,
    format: bool,
}

impl clap::Args for ExplicitFlags {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for ExplicitFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_explicit = |flag| matches.value_source(flag).is_some_and(|source| source != ValueSource::DefaultValue);
        Ok(Self { level: is_explicit("log_level"), format: is_explicit("log_format") })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Human-readable text.
    Text,
}

impl LogArgs {
    /// Makes these flags the process's logging. A second call changes nothing. `retired` are level and format that
    /// flags of TopoLVM ask for; these flags count before them.
    pub(crate) fn install(&self, retired: (Option<LevelFilter>, Option<LogFormat>)) {
        let (level, format) = self.resolve(retired);
        let lines = fmt::layer().with_writer(std::io::stderr).with_target(false);
        let registry = tracing_subscriber::registry().with(level);
        // An error means that a logger is installed already, which is as good
        drop(match format {
            LogFormat::Json => registry.with(lines.json().flatten_event(true).with_span_list(false)).try_init(),
            // A file or a pipe is read by programs, which do not know colours
            LogFormat::Text => registry.with(lines.with_ansi(std::io::stderr().is_terminal())).try_init(),
        });
    }

    /// Returns filter and format of the log.
    fn resolve(&self, (level, format): (Option<LevelFilter>, Option<LogFormat>)) -> (Targets, LogFormat) {
        let level = level.filter(|_| !self.explicit.level);
        let format = format.filter(|_| !self.explicit.format);
        let level = level.map_or_else(|| self.log_level.clone(), |level| Targets::new().with_default(level));
        (level, format.unwrap_or(self.log_format))
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

// Not an EnvFilter, which could also filter by fields of spans: its regular expressions are half a megabyte of each
// program
fn parse_filter(text: &str) -> Result<Targets, String> {
    text.parse().map_err(|error| format!("{error}; use a level such as info, or target=level pairs"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rstest::rstest;
    use tracing::Level;

    use super::*;
    use crate::RetiredArgs;

    #[derive(Debug, clap::Parser)]
    struct Program {
        #[command(flatten)]
        log: LogArgs,
        #[command(flatten)]
        retired: RetiredArgs,
    }

    #[rstest]
    #[case(&[], LevelFilter::INFO, LogFormat::Json)]
    #[case(&["-v=4"], LevelFilter::DEBUG, LogFormat::Json)]
    #[case(&["-v=2"], LevelFilter::INFO, LogFormat::Json)]
    #[case(&["--zap-log-level=error"], LevelFilter::ERROR, LogFormat::Json)]
    #[case(&["--zap-devel"], LevelFilter::DEBUG, LogFormat::Text)]
    #[case(&["-v=4", "--log-level=warn"], LevelFilter::WARN, LogFormat::Json)]
    #[case(&["-v=4", "--log-level=info"], LevelFilter::INFO, LogFormat::Json)]
    #[case(&["--zap-devel", "--log-format=json"], LevelFilter::DEBUG, LogFormat::Json)]
    fn our_own_flags_count_before_those_of_topolvm(
        #[case] flags: &[&str],
        #[case] level: LevelFilter,
        #[case] format: LogFormat,
    ) {
        let Program { log, retired } = Program::try_parse_from([&["program"], flags].concat()).unwrap();
        let (filter, resolved) = log.resolve(retired.log_settings());
        assert_eq!((filter.default_level(), resolved), (Some(level), format));
    }

    #[test]
    fn a_filter_is_a_level_and_levels_of_targets() {
        let filter = parse_filter("info,lvm=debug").unwrap();
        assert!(filter.would_enable("lvmd::engine", &Level::INFO) && !filter.would_enable("kube", &Level::DEBUG));
        assert!(filter.would_enable("lvm::system", &Level::DEBUG));
        assert!(!parse_filter("off").unwrap().would_enable("lvm", &Level::ERROR));
        assert!(parse_filter("lvm=loud").unwrap_err().contains("use a level such as info"));
    }
}

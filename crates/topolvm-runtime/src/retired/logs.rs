//! The flags of klog and zap, the Go libraries with which TopoLVM's programs write their logs.

use clap::builder::{ArgAction, BoolishValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use tracing::level_filters::LevelFilter;

use crate::logging::LogFormat;

/// The verbosity from which Kubernetes' programs log debug messages.
const DEBUG_VERBOSITY: i32 = 4;
/// Flags with a value, about locations and formats that logs do not have here.
const WITH_VALUE: &[&str] = &[
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "stderrthreshold",
    "vmodule",
    "zap-stacktrace-level",
    "zap-time-encoding",
];
/// The same that are on or off.
const SWITCHES: &[&str] =
    &["add_dir_header", "alsologtostderr", "logtostderr", "one_output", "skip_headers", "skip_log_headers"];

/// The flags of klog and zap.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GoLogArgs {
    /// Verbosity of klog.
    #[arg(short, long, hide = true, overrides_with = "v", allow_negative_numbers = true, value_parser = verbosity)]
    v: Option<i32>,

    /// Level of zap.
    #[arg(long, hide = true, overrides_with = "zap_log_level", value_parser = zap_level)]
    zap_log_level: Option<LevelFilter>,

    /// Zap's settings for development: debug level, text.
    #[arg(long, hide = true, overrides_with = "zap_devel", num_args = 0..=1, default_missing_value = "true",
          require_equals = true, value_parser = BoolishValueParser::new())]
    zap_devel: Option<bool>,

    /// Format of zap.
    #[arg(long, hide = true, overrides_with = "zap_encoder", value_parser = encoder)]
    zap_encoder: Option<LogFormat>,

    #[command(flatten)]
    without_effect: WithoutEffect,
}

impl GoLogArgs {
    /// Returns the more verbose of klog's and zap's levels. klog's usual verbosities request only messages that are
    /// logged anyway.
    pub(super) fn level(&self) -> Option<LevelFilter> {
        let klog = self.v.filter(|&v| v >= DEBUG_VERBOSITY).map(|_| LevelFilter::DEBUG);
        let zap = self.zap_log_level.or_else(|| self.is_devel().then_some(LevelFilter::DEBUG));
        klog.max(zap)
    }

    pub(super) fn format(&self) -> Option<LogFormat> {
        self.zap_encoder.or_else(|| self.is_devel().then_some(LogFormat::Text))
    }

    /// Returns the names of the flags that were given and that mean nothing.
    pub(super) fn without_effect(&self) -> impl Iterator<Item = &'static str> {
        self.without_effect.0.iter().copied()
    }

    fn is_devel(&self) -> bool {
        self.zap_devel == Some(true)
    }
}

/// The flags without a meaning that were given.
#[derive(Clone, Debug)]
struct WithoutEffect(Vec<&'static str>);

// By hand: fifteen fields and fifteen ifs would express no more than two lists
impl clap::Args for WithoutEffect {
    fn augment_args(command: Command) -> Command {
        let flag =
            |name: &'static str| Arg::new(name).long(name).hide(true).action(ArgAction::Set).overrides_with(name);
        let switch = |name| flag(name).num_args(0..=1).require_equals(true).default_missing_value("true");
        command.args(WITH_VALUE.iter().copied().map(flag)).args(SWITCHES.iter().copied().map(switch))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for WithoutEffect {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given = |name: &&str| matches.value_source(name) == Some(ValueSource::CommandLine);
        Ok(Self([WITH_VALUE, SWITCHES].concat().into_iter().filter(is_given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn verbosity(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| "must be a whole number, such as 4".to_owned())
}

/// Parses a level. Numbers count from the level of debug on. There is nothing between an error and a panic here.
fn zap_level(text: &str) -> Result<LevelFilter, String> {
    match text.to_ascii_lowercase().as_str() {
        "debug" => Ok(LevelFilter::DEBUG),
        "info" => Ok(LevelFilter::INFO),
        "error" | "panic" => Ok(LevelFilter::ERROR),
        number if number.parse().is_ok_and(|number: i32| number > 0) => Ok(LevelFilter::DEBUG),
        _ => Err("must be debug, info, error or panic, or a number above 0".to_owned()),
    }
}

fn encoder(text: &str) -> Result<LogFormat, String> {
    match text {
        "json" => Ok(LogFormat::Json),
        "console" => Ok(LogFormat::Text),
        _ => Err("must be json or console".to_owned()),
    }
}

//! Flags of TopoLVM's programs that deployments may still carry and that have another name or no meaning here.

mod logs;

use crate::listen::is_off;
use crate::logging::LogFormat;

use logs::GoLogArgs;
use tracing::level_filters::LevelFilter;

/// Flags that are accepted so that a deployment of TopoLVM starts. Flags for the level and the format of logs have the
/// same effect here; the log names the others, so that users who miss their effect find the reason.
#[derive(Clone, Debug, clap::Args)]
pub struct RetiredArgs {
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = ":")]
    profiling_bind_address: Option<String>,

    #[command(flatten)]
    logs: GoLogArgs,
}

impl RetiredArgs {
    /// Returns level and format of the log that these flags ask for.
    pub(crate) fn log_settings(&self) -> (Option<LevelFilter>, Option<LogFormat>) {
        (self.logs.level(), self.logs.format())
    }

    /// Logs which flags have no effect.
    pub(crate) fn warn(&self) {
        for warning in self.warnings() {
            tracing::warn!("{warning}");
        }
    }

    /// Returns a sentence for each flag without effect that was given; an address that means nowhere is none.
    fn warnings(&self) -> Vec<String> {
        let address = self.profiling_bind_address.as_deref().filter(|address| !is_off(address));
        let profiles = address.map(|address| {
            format!(
                "--profiling-bind-address={address} has no effect: profiling over HTTP is not supported; remove the \
                 flag"
            )
        });
        let logs = self.logs.without_effect().map(|flag| {
            format!(
                "--{flag} has no effect: logs go to standard error and are configured with --log-level and \
                 --log-format; remove the flag"
            )
        });
        profiles.into_iter().chain(logs).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        retired: RetiredArgs,
    }

    fn parse(flags: &[&str]) -> Result<RetiredArgs, clap::Error> {
        Ok(Program::try_parse_from([&["program"], flags].concat())?.retired)
    }

    fn warnings(flags: &[&str]) -> Vec<String> {
        parse(flags).unwrap().warnings()
    }

    #[rstest]
    #[case(&["--profiling-bind-address=:6060"])]
    #[case(&["--profiling-bind-address", ":6060"])]
    #[case(&["--profiling-bind-address"])]
    #[case(&["--logtostderr"])]
    #[case(&["--logtostderr=false"])]
    #[case(&["--log_dir=/var/log", "--log_dir", "/tmp"])]
    #[case(&["--stderrthreshold=2"])]
    #[case(&["--zap-time-encoding=iso8601"])]
    fn a_flag_without_effect_is_taken_and_warned_of_once(#[case] flags: &[&str]) {
        let warnings = warnings(flags);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        let name = flags[0].split('=').next().unwrap();
        assert!(warning.starts_with(name) && warning.contains("has no effect"), "{warning}");
        assert!(warning.ends_with("remove the flag"), "{warning}");
    }

    /// All of klog's and zap's at once, as Go's pflag takes them, without a warning about those that have an effect.
    #[test]
    fn every_flag_of_klog_and_zap_is_taken() {
        let found = warnings(&[
            "--add_dir_header",
            "--alsologtostderr=true",
            "--log_backtrace_at=engine.go:12",
            "--log_dir=/var/log",
            "--log_file",
            "/var/log/lvmd.log",
            "--log_file_max_size=1800",
            "--logtostderr=false",
            "--one_output",
            "--skip_headers",
            "--skip_log_headers",
            "--stderrthreshold=ERROR",
            "--v=4",
            "--vmodule=a=1,b=2",
            "--zap-devel=false",
            "--zap-encoder=json",
            "--zap-log-level=info",
            "--zap-stacktrace-level=error",
            "--zap-time-encoding=rfc3339nano",
        ]);
        assert_eq!(found.len(), 14, "{found:#?}");
        for silent in ["--v=", "--v ", "--zap-devel", "--zap-encoder", "--zap-log-level"] {
            assert!(!found.iter().any(|warning| warning.starts_with(silent)), "{found:#?}");
        }
    }

    #[rstest]
    #[case(&["--v=4"], Some(LevelFilter::DEBUG))]
    #[case(&["--v", "10"], Some(LevelFilter::DEBUG))]
    #[case(&["-v=4"], Some(LevelFilter::DEBUG))]
    #[case(&["-v", "4"], Some(LevelFilter::DEBUG))]
    #[case(&["-v4"], Some(LevelFilter::DEBUG))]
    #[case(&["-v=2"], None)]
    #[case(&["-v=-1"], None)]
    #[case(&["-v=0", "-v=5"], Some(LevelFilter::DEBUG))]
    #[case(&["--zap-log-level=debug"], Some(LevelFilter::DEBUG))]
    #[case(&["--zap-log-level", "INFO"], Some(LevelFilter::INFO))]
    #[case(&["--zap-log-level=error"], Some(LevelFilter::ERROR))]
    #[case(&["--zap-log-level=panic"], Some(LevelFilter::ERROR))]
    #[case(&["--zap-log-level=3"], Some(LevelFilter::DEBUG))]
    #[case(&["--zap-devel"], Some(LevelFilter::DEBUG))]
    #[case(&["--zap-devel=F"], None)]
    #[case(&["--zap-devel", "--zap-log-level=error"], Some(LevelFilter::ERROR))]
    #[case(&["--zap-log-level=error", "-v=2"], Some(LevelFilter::ERROR))]
    #[case(&["--zap-log-level=error", "-v=4"], Some(LevelFilter::DEBUG))]
    fn verbosity_is_a_level(#[case] flags: &[&str], #[case] level: Option<LevelFilter>) {
        let retired = parse(flags).unwrap();
        assert_eq!(retired.log_settings().0, level);
        assert!(retired.warnings().is_empty());
    }

    #[rstest]
    #[case(&["--zap-encoder=console"], Some(LogFormat::Text))]
    #[case(&["--zap-encoder=json"], Some(LogFormat::Json))]
    #[case(&["--zap-devel"], Some(LogFormat::Text))]
    #[case(&["--zap-devel", "--zap-encoder=json"], Some(LogFormat::Json))]
    #[case(&["-v=4"], None)]
    fn an_encoder_is_a_format(#[case] flags: &[&str], #[case] format: Option<LogFormat>) {
        assert_eq!(parse(flags).unwrap().log_settings().1, format);
    }

    #[rstest]
    #[case("--v=loud", "whole number")]
    #[case("--zap-log-level=loud", "debug, info, error or panic")]
    #[case("--zap-log-level=0", "debug, info, error or panic")]
    #[case("--zap-encoder=xml", "json or console")]
    // Go's pflag takes no long flag behind one dash either
    #[case("-zap-log-level=debug", "unexpected argument")]
    fn what_topolvm_refuses_is_refused(#[case] flag: &str, #[case] hint: &str) {
        let refusal = parse(&[flag]).unwrap_err().to_string();
        assert!(refusal.contains(hint), "{refusal}");
    }

    #[rstest]
    #[case(&[])]
    #[case(&["--profiling-bind-address="])]
    #[case(&["--profiling-bind-address=0"])]
    fn disabled_flags_print_no_warning(#[case] flags: &[&str]) {
        assert!(warnings(flags).is_empty());
    }
}

//! Flags of TopoLVM's programs that deployments may still carry and that have no meaning here.

use crate::listen::is_off;

/// Those about logs are refused with a sentence that says what to use, because somebody wants to see more or less. The one about profiles is
/// taken and warned of: nothing is missed until somebody looks for a profile.
#[derive(Clone, Debug, clap::Args)]
pub struct RetiredArgs {
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = ":")]
    profiling_bind_address: Option<String>,

    #[arg(
        long,
        hide = true,
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = other_log_flags,
        short = 'v',
        aliases = [
            "zap-devel", "zap-encoder", "zap-log-level", "zap-stacktrace-level", "zap-time-encoding",
            "add_dir_header", "alsologtostderr", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size",
            "logtostderr", "one_output", "skip_headers", "skip_log_headers", "stderrthreshold", "vmodule",
        ],
    )]
    v: Option<String>,
}

impl RetiredArgs {
    /// Says in the log which flag has no effect.
    pub fn warn(&self) {
        if let Some(warning) = self.warning() {
            tracing::warn!("{warning}");
        }
    }

    /// An address that asks for nothing is not worth a word.
    fn warning(&self) -> Option<String> {
        let address = self.profiling_bind_address.as_deref().filter(|address| !is_off(address))?;
        Some(format!(
            "--profiling-bind-address={address} has no effect: there are no profiles to serve; remove the flag"
        ))
    }
}

fn other_log_flags(_: &str) -> Result<String, String> {
    Err("logs are controlled by --log-level and --log-format; use these".to_owned())
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

    #[test]
    fn a_flag_about_logs_is_refused_with_a_hint() {
        for flags in [&["--zap-log-level=debug"][..], &["--zap-devel"], &["-v=4"], &["-v", "4"], &["--logtostderr"]] {
            let refusal = parse(flags).unwrap_err().to_string();
            assert!(refusal.contains("--log-level and --log-format"), "{flags:?}");
        }
    }

    fn warning(flags: &[&str]) -> Option<String> {
        parse(flags).unwrap().warning()
    }

    #[rstest]
    #[case(&["--profiling-bind-address=:6060"])]
    #[case(&["--profiling-bind-address", ":6060"])]
    #[case(&["--profiling-bind-address"])]
    fn an_address_for_profiles_is_taken_and_warned_of(#[case] flags: &[&str]) {
        let warning = warning(flags).unwrap();
        assert!(warning.contains("has no effect") && warning.ends_with("remove the flag"), "{warning}");
    }

    #[rstest]
    #[case(&[])]
    #[case(&["--profiling-bind-address="])]
    #[case(&["--profiling-bind-address=0"])]
    fn who_asks_for_nothing_is_told_nothing(#[case] flags: &[&str]) {
        assert_eq!(warning(flags), None);
    }
}

//! Flags of TopoLVM's programs that deployments may still carry and that have no meaning here.

/// They are refused with a sentence that says what to use, unless they ask for nothing: an empty address is taken.
#[derive(Clone, Debug, clap::Args)]
pub struct RetiredArgs {
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = ":", value_parser = no_profiling)]
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

fn no_profiling(value: &str) -> Result<String, String> {
    if value.is_empty() { Ok(String::new()) } else { Err("profiles are not served; remove this flag".to_owned()) }
}

fn other_log_flags(_: &str) -> Result<String, String> {
    Err("logs are controlled by --log-level and --log-format; use these".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        _retired: RetiredArgs,
    }

    fn refusal(flags: &[&str]) -> String {
        Program::try_parse_from([&["program"], flags].concat()).unwrap_err().to_string()
    }

    #[test]
    fn a_flag_without_a_meaning_is_refused_with_a_hint() {
        for flags in [&["--zap-log-level=debug"][..], &["--zap-devel"], &["-v=4"], &["-v", "4"], &["--logtostderr"]] {
            assert!(refusal(flags).contains("--log-level and --log-format"), "{flags:?}");
        }
        for flags in [&["--profiling-bind-address=:6060"][..], &["--profiling-bind-address", ":6060"]] {
            assert!(refusal(flags).contains("profiles are not served; remove this flag"), "{flags:?}");
        }
    }

    #[test]
    fn a_flag_that_asks_for_nothing_is_taken() {
        Program::try_parse_from(["program", "--profiling-bind-address="]).unwrap();
    }
}

//! The flag of limits in annotations of pods.

use clap::ArgAction;

/// Settings of I/O limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct IoLimitSettings {
    /// Apply the I/O limits in annotations of pods, which the agent lists and watches. With false only the limits of
    /// volumes apply, and the agent needs no right to read pods.
    #[arg(long = "pod-io-limits", value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          default_missing_value = "true", require_equals = true, action = ArgAction::Set)]
    pub of_pods: bool,
}

impl Default for IoLimitSettings {
    fn default() -> Self {
        Self { of_pods: true }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        settings: IoLimitSettings,
    }

    #[test]
    fn pod_io_limits_apply_unless_switched_off() {
        let settings = |flags: &[&str]| Flags::try_parse_from([&["agent"], flags].concat()).unwrap().settings;
        assert_eq!(settings(&[]), IoLimitSettings::default());
        assert!(settings(&[]).of_pods && settings(&["--pod-io-limits"]).of_pods);
        assert!(settings(&["--pod-io-limits=true"]).of_pods && !settings(&["--pod-io-limits=false"]).of_pods);
    }
}

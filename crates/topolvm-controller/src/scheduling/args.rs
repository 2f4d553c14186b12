//! Flags of the scheduling mode.

use std::time::Duration;

use clap::ArgAction;
use kube::Client;
use topolvm_runtime::ConfigError;

use super::SchedulingConfig;
use topolvm_runtime::time_span::parse_duration;

/// The way in which pods find a node with enough free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SchedulingMode {
    /// Storage capacity tracking of Kubernetes; no pod gets the resource topolvm.io/capacity.
    Capacity,
    /// topolvm-scheduler; pods get the resource while a probe confirms that kube-scheduler calls topolvm-scheduler.
    Extender,
}

/// The settings of the extender probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeSettings {
    /// Namespace of the probe pod and of the ConfigMap with the result. Empty means the namespace of this pod.
    pub(crate) namespace: String,
    /// Pause between two probes while the extender is proven to be called.
    pub(crate) interval: Duration,
}

/// The flags of the scheduling mode.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct SchedulingArgs {
    /// How kube-scheduler finds nodes with free space. Without this flag --pod-capacity-resource alone decides what
    /// pods get, and no probe runs.
    #[arg(long, value_name = "MODE")]
    pub(crate) scheduling_mode: Option<SchedulingMode>,

    /// With --scheduling-mode=extender: give pods the resource without a probe that kube-scheduler calls
    /// topolvm-scheduler.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    assume_extender: bool,

    /// Interval of the probe whether kube-scheduler calls topolvm-scheduler. While it does not, the interval is at most
    /// 15 s.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    extender_probe_interval: Duration,
}

impl SchedulingArgs {
    /// Returns the configuration. `namespace` is that of the webhooks; `has_webhooks` is false where none are served.
    pub(crate) fn config(self, has_webhooks: bool, namespace: String) -> Result<SchedulingConfig, ConfigError> {
        let is_extender = self.scheduling_mode == Some(SchedulingMode::Extender);
        if is_extender && !has_webhooks {
            return Err(ConfigError::new(
                "--scheduling-mode=extender needs the pod webhook, which adds the resources and annotations that \
                 topolvm-scheduler reads; add --enable-webhooks, or set --scheduling-mode=capacity",
            ));
        }
        if self.assume_extender && !is_extender {
            return Err(ConfigError::new(
                "--assume-extender requires --scheduling-mode=extender; add it, or remove --assume-extender",
            ));
        }
        let probe = (is_extender && !self.assume_extender)
            .then_some(ProbeSettings { namespace, interval: self.extender_probe_interval });
        Ok(SchedulingConfig { mode: self.scheduling_mode, probe })
    }
}

impl ProbeSettings {
    /// Returns the namespace, that of the client's credentials if none is set.
    pub(crate) fn namespace_or<'a>(&'a self, client: &'a Client) -> &'a str {
        if self.namespace.is_empty() { client.default_namespace() } else { &self.namespace }
    }
}

//! The way in which kube-scheduler learns of free space, and what the controllers keep about the extender.

use k8s_openapi::api::core::v1::ConfigMap;
use topolvm_api::{EXTENDER_PROVEN_KEY, EXTENDER_REASON_KEY};

/// Way in which kube-scheduler learns of free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Storage capacity tracking of Kubernetes.
    Capacity,
    /// The webhook for pods and the scheduler extender.
    Extender,
}

/// Returns the reason for which the extender is not proven to be called, as the controllers keep it in a ConfigMap.
pub fn unproven_reason(outcome: &ConfigMap) -> Option<String> {
    let value = |key: &str| outcome.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
    let is_proven = value(EXTENDER_PROVEN_KEY) == Some("true");
    (!is_proven).then(|| value(EXTENDER_REASON_KEY).unwrap_or_default().to_owned())
}

//! The ConfigMap in which the controllers keep whether kube-scheduler calls the scheduler extender.

/// Name of the ConfigMap, in the namespace of the controller.
pub const EXTENDER_PROBE: &str = "topolvm-extender-probe";

/// Key of the ConfigMap: `true` while kube-scheduler is proven to call the extender.
pub const EXTENDER_PROVEN_KEY: &str = "extender-proven";

/// Key of the ConfigMap: the reason why it is not.
pub const EXTENDER_REASON_KEY: &str = "reason";

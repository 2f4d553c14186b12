//! Finds out the scheduling mode of an installation from the arguments of its controllers, and from its webhooks.

use crate::facts::Facts;
use crate::mode::Mode;
use crate::webhooks::{Entry, entries};
use crate::workloads::Role;

/// Returns the configured mode of the controller; if none is configured, the one that its webhooks imply. What could
/// not be read counts as absent.
pub(crate) fn mode(facts: &Facts) -> Mode {
    if let Some(mode) = facts.mode {
        return mode;
    }
    let configured = flag(facts, "--scheduling-mode");
    let is_prepared = pod_webhook(facts).is_some() && flag(facts, "--pod-capacity-resource") != Some("none");
    let uses_extender = configured == Some("extender") || configured != Some("capacity") && is_prepared;
    if uses_extender { Mode::Extender } else { Mode::Capacity }
}

/// Returns true if the controllers give pods the resource only while kube-scheduler is proven to call the extender:
/// with --scheduling-mode=extender, and without --assume-extender.
pub(crate) fn needs_proof(facts: &Facts) -> bool {
    let is_assumed = matches!(flag(facts, "--assume-extender"), Some("" | "true"));
    let is_configured = facts.mode == Some(Mode::Extender) || flag(facts, "--scheduling-mode") == Some("extender");
    is_configured && !is_assumed
}

/// Returns the value of a flag of topolvm-controller.
fn flag<'a>(facts: &'a Facts, name: &str) -> Option<&'a str> {
    let controllers = facts.workloads_of(Role::Controller).unwrap_or_default();
    controllers.into_iter().find_map(|controller| controller.flag(name))
}

/// Returns the webhook for pods.
pub(crate) fn pod_webhook(facts: &Facts) -> Option<Entry<'_>> {
    let configurations = facts.webhooks.as_deref().unwrap_or_default();
    entries(facts.flavor, &facts.namespace, configurations).into_iter().find(Entry::is_for_pods)
}

//! Reasons for which pods do not run, or cannot be created.

use std::fmt;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt as _;

/// Reason for which a pod does not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// `pod p, container c`, or the workload that cannot create its pods.
    pub(super) subject: String,
    pub(super) reason: String,
    pub(super) message: String,
    /// The container, where there is one.
    pub(super) container: Option<Container>,
}

/// A container that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Container {
    pub(super) pod: String,
    pub(super) name: String,
    pub(super) restarts: i32,
}

/// Chance that waiting fixes a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chance {
    /// As good as any.
    Open,
    /// Little: the problem stays unless something else changes.
    Small,
    /// The container starts and ends.
    Crash,
    /// None.
    Gone,
}

impl Problem {
    pub(super) fn chance(&self) -> Chance {
        match self.reason.as_str() {
            "ErrImageNeverPull" | "InvalidImageName" => Chance::Gone,
            "ErrImagePull"
            | "ImagePullBackOff"
            | "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "StartError"
            | "Unschedulable"
            | FAILED_CREATE => Chance::Small,
            "CrashLoopBackOff" => Chance::Crash,
            _ => Chance::Open,
        }
    }

    /// Returns true for reasons of a container that waiting does not fix, or so rarely that a check need not wait.
    pub(crate) fn is_stuck(&self) -> bool {
        self.container.is_some() && matches!(self.chance(), Chance::Small | Chance::Gone)
    }

    /// Makes the problem of a workload whose pods the API server refuses, as with a quota.
    pub(super) fn of_creation(workload: &str, event: &Event) -> Self {
        Self {
            subject: workload.to_owned(),
            reason: FAILED_CREATE.to_owned(),
            message: event.message.clone().unwrap_or_default(),
            container: None,
        }
    }
}

/// Reason of Events about pods that could not be created.
pub(super) const FAILED_CREATE: &str = "FailedCreate";

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, reason, message, .. } = self;
        write!(f, "{subject}: {reason}")?;
        if message.is_empty() { Ok(()) } else { write!(f, ": {message}") }
    }
}

/// Returns the reason for which a pod does not run, that of its first waiting container, if one is known.
pub(crate) fn find_pod_problem(pod: &Pod) -> Option<Problem> {
    let status = pod.status.as_ref()?;
    let name = pod.name_any();
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        return Some(Problem {
            subject: format!("pod {name}"),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
            container: None,
        });
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone()?;
        // What each pod goes through
        let is_problem = reason != "ContainerCreating" && reason != "PodInitializing";
        is_problem.then(|| Problem {
            subject: format!("pod {name}, container {}", container.name),
            reason,
            message: waiting.message.clone().unwrap_or_default(),
            container: Some(Container {
                pod: name.clone(),
                name: container.name.clone(),
                restarts: container.restart_count,
            }),
        })
    });
    waiting.next()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn the_reason_of_a_container_that_waits_is_named() {
        let pod = |reason: &str| -> Pod {
            from_value(json!({
                "metadata": {"name": "p"},
                "status": {"containerStatuses": [{
                    "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"waiting": {"reason": reason, "message": "why"}},
                }]},
            }))
            .unwrap()
        };
        assert_eq!(find_pod_problem(&pod("ContainerCreating")), None);
        let found = find_pod_problem(&pod("ImagePullBackOff")).unwrap();
        assert_eq!(found.to_string(), "pod p, container c: ImagePullBackOff: why");
        assert!(found.is_stuck());
        let crash = find_pod_problem(&pod("CrashLoopBackOff")).unwrap();
        assert_eq!((crash.chance(), crash.is_stuck()), (Chance::Crash, false));
    }

    #[test]
    fn a_pod_without_a_node_says_why() {
        let pod: Pod = from_value(json!({
            "metadata": {"name": "p"},
            "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes",
            }]},
        }))
        .unwrap();
        assert_eq!(find_pod_problem(&pod).unwrap().to_string(), "pod p: Unschedulable: 0/1 nodes");
    }
}

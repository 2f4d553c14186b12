//! Rollout of workloads: waits until their pods are ready, and reports why a pod does not start.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::LocalBoxStream;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::runtime::reflector::Store;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::manifests::NAMESPACE;
use super::object::ObjectId;
use super::{InstallError, print_progress};

/// Lines of the log of a container that crashes.
const LOG_LINES: i64 = 10;
/// Label selector of our pods.
const SELECTOR: &str = "app.kubernetes.io/name=topolvm";

/// Rollout status of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Progress {
    /// `kind/name`.
    name: String,
    ready: i32,
    wanted: i32,
    is_done: bool,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} pods are ready", self.name, self.ready, self.wanted)
    }
}

/// Reason for which a pod does not run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodProblem {
    pod: String,
    /// Empty where the pod has no node yet.
    container: String,
    reason: String,
    message: String,
}

impl PodProblem {
    /// Returns true for reasons that waiting does not mend, or so rarely that a check need not wait.
    pub(crate) fn is_stuck(&self) -> bool {
        let reasons = [
            "ErrImageNeverPull",
            "ErrImagePull",
            "ImagePullBackOff",
            "InvalidImageName",
            "CreateContainerConfigError",
            "CreateContainerError",
            "RunContainerError",
            "StartError",
        ];
        reasons.contains(&self.reason.as_str())
    }

    fn is_crash(&self) -> bool {
        self.reason == "CrashLoopBackOff"
    }
}

impl fmt::Display for PodProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, container, reason, message } = self;
        write!(f, "pod {pod}")?;
        if !container.is_empty() {
            write!(f, ", container {container}")?;
        }
        write!(f, ": {reason}")?;
        if message.is_empty() { Ok(()) } else { write!(f, ": {message}") }
    }
}

/// Waits until all pods of these workloads are updated and ready, and prints progress meanwhile.
pub(crate) async fn wait(client: &Client, workloads: &[ObjectId], limit: Duration) -> Result<(), InstallError> {
    let (deployments, deployment_changes) = watch::<Deployment>(client, watcher::Config::default());
    let (sets, set_changes) = watch::<DaemonSet>(client, watcher::Config::default());
    let (pods, pod_changes) = watch::<Pod>(client, watcher::Config::default().labels(SELECTOR));
    let mut changes = futures::stream::select_all([deployment_changes, set_changes, pod_changes]);
    let end = tokio::time::Instant::now() + limit;
    let mut printed = BTreeSet::new();
    loop {
        let is_over = tokio::select! {
            change = changes.next() => change.is_none(),
            () = tokio::time::sleep_until(end) => true,
            _ = tokio::signal::ctrl_c() => return Err(InstallError::Interrupted),
        };
        let (deployments, sets) = (deployments.state(), sets.state());
        let of_deployments = deployments.iter().map(|deployment| deployment_progress(deployment));
        let mut progress: Vec<_> = of_deployments.chain(sets.iter().map(|set| set_progress(set))).collect();
        progress.retain(|progress| workloads.iter().any(|id| progress.is_of(id)));
        let mut problems: Vec<_> = pods.state().iter().filter_map(|pod| find_pod_problem(pod)).collect();
        problems.sort();
        print_news(&progress, &problems, &mut printed);
        if progress.len() == workloads.len() && progress.iter().all(|one| one.is_done && one.wanted > 0) {
            return Ok(());
        }
        let has_no_nodes = progress.iter().any(|one| one.is_done && one.wanted == 0);
        if is_over || has_no_nodes {
            return Err(InstallError::NotReady(reasons(client, &progress, &problems).await));
        }
    }
}

/// Watches the objects of a kind in our namespace, and returns their cache with its changes. Errors of the watch are no
/// changes that matter: outages pass, and the deadline is there for those that do not.
fn watch<K>(client: &Client, config: watcher::Config) -> (Store<K>, LocalBoxStream<'static, ()>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let api = Api::<K>::namespaced(client.clone(), NAMESPACE);
    (store, watcher(api, config).default_backoff().reflect(writer).map(drop).boxed_local())
}

/// Prints what was not printed before.
fn print_news(progress: &[Progress], problems: &[PodProblem], printed: &mut BTreeSet<String>) {
    let progress = progress.iter().filter(|one| one.wanted > 0).map(ToString::to_string);
    for line in progress.chain(problems.iter().map(ToString::to_string)) {
        if printed.insert(line.clone()) {
            print_progress(&line);
        }
    }
}

impl Progress {
    fn is_of(&self, id: &ObjectId) -> bool {
        self.name == format!("{}/{}", id.kind.to_lowercase(), id.name)
    }
}

/// Returns the unfinished workloads, the reasons, and the last log lines of containers that crash.
async fn reasons(client: &Client, progress: &[Progress], problems: &[PodProblem]) -> Vec<String> {
    let mut reasons = Vec::new();
    for one in progress.iter().filter(|one| !one.is_done || one.wanted == 0) {
        reasons.push(match one.wanted {
            0 => format!("{}: no node has the labels of its node selector", one.name),
            _ => one.to_string(),
        });
    }
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    for problem in problems {
        let mut text = problem.to_string();
        if problem.is_crash() {
            let params = LogParams {
                container: Some(problem.container.clone()),
                previous: true,
                tail_lines: Some(LOG_LINES),
                ..LogParams::default()
            };
            let log = api.logs(&problem.pod, &params).await.unwrap_or_default();
            text.extend(log.lines().map(|line| format!("\n      {line}")));
        }
        reasons.push(text);
    }
    reasons
}

fn deployment_progress(deployment: &Deployment) -> Progress {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let number = Option::unwrap_or_default;
    let is_seen = status.observed_generation >= deployment.metadata.generation;
    let is_new = number(status.updated_replicas) == wanted && number(status.replicas) == wanted;
    let ready = if is_seen { number(status.available_replicas) } else { 0 };
    let name = format!("deployment/{}", deployment.name_any());
    Progress { name, ready, wanted, is_done: is_seen && is_new && ready == wanted }
}

fn set_progress(set: &DaemonSet) -> Progress {
    let name = format!("daemonset/{}", set.name_any());
    let status = set.status.clone().unwrap_or_default();
    let wanted = status.desired_number_scheduled;
    let is_seen = status.observed_generation >= set.metadata.generation;
    let ready = status.number_available.unwrap_or_default();
    let is_new = status.updated_number_scheduled.unwrap_or_default() == wanted;
    Progress { name, ready, wanted, is_done: is_seen && is_new && ready == wanted }
}

/// Returns the reason for which a pod does not run, that of its first waiting container, if one is known.
pub(crate) fn find_pod_problem(pod: &Pod) -> Option<PodProblem> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        return Some(PodProblem {
            pod: pod.name_any(),
            container: String::new(),
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        });
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone()?;
        // What each pod goes through
        let is_problem = reason != "ContainerCreating" && reason != "PodInitializing";
        let message = waiting.message.clone().unwrap_or_default();
        is_problem.then(|| PodProblem { pod: pod.name_any(), container: container.name.clone(), reason, message })
    });
    waiting.next()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::Deployment;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn set(status: &Value) -> DaemonSet {
        from_value(json!({"metadata": {"name": "x", "generation": 2}, "status": status})).unwrap()
    }

    #[test]
    fn a_daemon_set_is_done_when_all_its_pods_are_new_and_available() {
        let status = |observed, updated, available| {
            json!({
                "observedGeneration": observed, "desiredNumberScheduled": 3, "updatedNumberScheduled": updated,
                "numberAvailable": available, "currentNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 3,
            })
        };
        let is_done = |observed, updated, available| set_progress(&set(&status(observed, updated, available))).is_done;
        assert!(is_done(2, 3, 3));
        assert!(!is_done(1, 3, 3), "the change is not seen yet");
        assert!(!is_done(2, 2, 3), "a pod is of the old version");
        assert!(!is_done(2, 3, 2), "a pod is not available");
    }

    #[test]
    fn a_deployment_is_done_when_no_old_replica_is_left() {
        let deployment = |replicas| -> Deployment {
            from_value(json!({
                "metadata": {"name": "x", "generation": 1},
                "spec": {"replicas": 2, "selector": {}, "template": {}},
                "status": {
                    "observedGeneration": 1, "updatedReplicas": 2, "replicas": replicas, "availableReplicas": 2,
                },
            }))
            .unwrap()
        };
        assert!(deployment_progress(&deployment(2)).is_done);
        assert!(!deployment_progress(&deployment(3)).is_done);
    }

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
        assert!(found.is_stuck() && !found.is_crash());
        assert!(find_pod_problem(&pod("CrashLoopBackOff")).unwrap().is_crash());
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

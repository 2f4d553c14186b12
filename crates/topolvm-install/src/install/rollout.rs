//! Rollout of workloads: waits until their pods are ready, and reports why a pod does not start.

mod patience;
mod problem;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::LocalBoxStream;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::LogParams;
use kube::runtime::reflector::Store;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::manifests::NAMESPACE;
use super::object::ObjectId;
use super::{InstallError, print_progress};
use patience::Patience;
use problem::{Chance, FAILED_CREATE, Problem};

pub(crate) use problem::find_pod_problem;

/// Time after which problems are checked again, also without a change.
const TICK: Duration = Duration::from_secs(5);
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
    /// Pods of the present version that exist.
    created: i32,
    is_done: bool,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} pods are ready", self.name, self.ready, self.wanted)
    }
}

/// Waits until all pods of these workloads are updated and ready, and prints progress meanwhile. Ends early, with the
/// problem, when a pod cannot become ready.
pub(crate) async fn wait(client: &Client, workloads: &[ObjectId], limit: Duration) -> Result<(), InstallError> {
    let (deployments, deployment_changes) = watch::<Deployment>(client, watcher::Config::default());
    let (sets, set_changes) = watch::<DaemonSet>(client, watcher::Config::default());
    let (pods, pod_changes) = watch::<Pod>(client, watcher::Config::default().labels(SELECTOR));
    let refusals = watcher::Config::default().fields(&format!("reason={FAILED_CREATE}"));
    let (events, event_changes) = watch::<Event>(client, refusals);
    let mut changes = futures::stream::select_all([deployment_changes, set_changes, pod_changes, event_changes]);
    let end = Instant::now() + limit;
    let (mut printed, mut patience) = (BTreeSet::new(), Patience::default());
    loop {
        let is_over = tokio::select! {
            change = changes.next() => change.is_none(),
            () = tokio::time::sleep_until(end.min(Instant::now() + TICK)) => Instant::now() >= end,
            _ = tokio::signal::ctrl_c() => return Err(InstallError::Interrupted),
        };
        let (deployments, sets) = (deployments.state(), sets.state());
        let of_deployments = deployments.iter().map(|deployment| deployment_progress(deployment));
        let mut progress: Vec<_> = of_deployments.chain(sets.iter().map(|set| set_progress(set))).collect();
        progress.retain(|progress| workloads.iter().any(|id| progress.is_of(id)));
        let mut problems: Vec<_> = pods.state().iter().filter_map(|pod| find_pod_problem(pod)).collect();
        problems.extend(find_creation_problems(&progress, &events.state()));
        problems.sort();
        print_news(&progress, &problems, &mut printed);
        if progress.len() == workloads.len() && progress.iter().all(|one| one.is_done && one.wanted > 0) {
            return Ok(());
        }
        let has_no_nodes = progress.iter().any(|one| one.is_done && one.wanted == 0);
        let is_hopeless = !patience.find_final(&problems, Instant::now()).is_empty();
        if is_over || has_no_nodes || is_hopeless {
            return Err(InstallError::NotReady(reasons(client, &progress, &problems).await));
        }
    }
}

/// Watches the objects of a kind in our namespace, and returns their cache with its changes. Errors of the watch do not
/// count as changes: short outages pass, and the deadline ends long ones.
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
fn print_news(progress: &[Progress], problems: &[Problem], printed: &mut BTreeSet<String>) {
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

    /// Returns whether an Event is about the workload, or about a ReplicaSet of it.
    fn is_about(&self, event: &Event) -> bool {
        let object = &event.involved_object;
        let (kind, name) = (object.kind.as_deref().unwrap_or_default(), object.name.as_deref().unwrap_or_default());
        match (self.name.split_once('/'), kind) {
            (Some(("deployment", workload)), "ReplicaSet") => {
                name.rsplit_once('-').is_some_and(|(deployment, _)| deployment == workload)
            }
            (Some(("daemonset", workload)), "DaemonSet") => name == workload,
            (Some(_) | None, _) => false,
        }
    }
}

/// Returns the unfinished workloads, the reasons, and the last log lines of containers that crash.
async fn reasons(client: &Client, progress: &[Progress], problems: &[Problem]) -> Vec<String> {
    let mut reasons = Vec::new();
    for one in progress.iter().filter(|one| !one.is_done || one.wanted == 0) {
        reasons.push(match one.wanted {
            0 => format!("{}: no node matches the node selector", one.name),
            _ => one.to_string(),
        });
    }
    let api = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    for problem in problems {
        let mut text = problem.to_string();
        if let Some(container) = problem.container.as_ref().filter(|_| problem.chance() == Chance::Crash) {
            let params = LogParams {
                container: Some(container.name.clone()),
                previous: true,
                tail_lines: Some(LOG_LINES),
                ..LogParams::default()
            };
            let log = api.logs(&container.pod, &params).await.unwrap_or_default();
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
    let created = if is_seen { number(status.updated_replicas) } else { 0 };
    Progress { name, ready, wanted, created, is_done: is_seen && is_new && ready == wanted }
}

fn set_progress(set: &DaemonSet) -> Progress {
    let name = format!("daemonset/{}", set.name_any());
    let status = set.status.clone().unwrap_or_default();
    let wanted = status.desired_number_scheduled;
    let is_seen = status.observed_generation >= set.metadata.generation;
    let ready = status.number_available.unwrap_or_default();
    let is_new = status.updated_number_scheduled.unwrap_or_default() == wanted;
    let created = status.current_number_scheduled;
    Progress { name, ready, wanted, created, is_done: is_seen && is_new && ready == wanted }
}

/// Returns the problem of each workload that lacks pods because the API server refuses them, as with a quota: the
/// newest Event about it.
fn find_creation_problems(progress: &[Progress], events: &[Arc<Event>]) -> Vec<Problem> {
    let lacking = progress.iter().filter(|one| one.created < one.wanted);
    let newest = |one: &Progress| {
        let of_workload = events.iter().filter(|event| one.is_about(event));
        of_workload.max_by_key(|event| event.last_timestamp.as_ref().map(|time| time.0))
    };
    lacking.filter_map(|one| Some(Problem::of_creation(&one.name, newest(one)?))).collect()
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
    fn refused_pods_are_a_problem_of_their_workload_while_pods_lack() {
        let event = |kind: &str, name: &str, at: &str, message: &str| -> Arc<Event> {
            Arc::new(
                from_value(json!({
                    "metadata": {"name": message, "namespace": NAMESPACE}, "message": message, "lastTimestamp": at,
                    "involvedObject": {"kind": kind, "name": name},
                }))
                .unwrap(),
            )
        };
        let events = [
            event("DaemonSet", "a", "2026-01-01T00:00:00Z", "older"),
            event("DaemonSet", "a", "2026-01-01T00:00:01Z", "exceeded quota"),
            event("ReplicaSet", "b-5d8c", "2026-01-01T00:00:01Z", "forbidden"),
        ];
        let progress =
            |name: &str, created| Progress { name: name.to_owned(), ready: 0, wanted: 2, created, is_done: false };
        let found = |progress: Progress| {
            find_creation_problems(&[progress], &events).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(found(progress("daemonset/a", 1)), ["daemonset/a: FailedCreate: exceeded quota"]);
        assert_eq!(found(progress("deployment/b", 0)), ["deployment/b: FailedCreate: forbidden"]);
        assert_eq!(found(progress("daemonset/a", 2)), [""; 0]);
        assert_eq!(found(progress("daemonset/c", 0)), [""; 0]);
    }
}

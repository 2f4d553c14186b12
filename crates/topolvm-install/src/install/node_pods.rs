//! Pods that do one thing on one node, and how they end.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::InstallError;
use super::apply::{create, wait_until};
use super::rollout::find_pod_problem;

/// Outcome of a pod: the exit status of its container, and its termination message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) exit_status: i32,
    pub(crate) message: String,
}

/// Creates the pod of a node and waits for its end. The inner error is the reason for which it does not run.
pub(crate) async fn run(
    api: &Api<Pod>,
    node: &str,
    pod: Value,
    what: &str,
    limit: Duration,
) -> Result<Result<Outcome, String>, InstallError> {
    let name = create(api, pod).await?.name_any();
    let has_ended = |pod: Option<&Pod>| {
        pod.is_none_or(|pod| outcome(pod).is_some() || find_pod_problem(pod).is_some_and(|problem| problem.is_stuck()))
    };
    match wait_until(api.clone(), &name, has_ended, limit, format!("{what} of node {node}")).await {
        Ok(Some(pod)) => Ok(match (outcome(&pod), find_pod_problem(&pod)) {
            (Some(outcome), _) => Ok(outcome),
            (None, Some(problem)) => Err(format!("node {node}: {problem}")),
            (None, None) => Err(format!("node {node}: the pod for {what} ended without a message")),
        }),
        Ok(None) => Ok(Err(format!("node {node}: the pod for {what} was deleted"))),
        Err(InstallError::Slow { what, seconds }) => {
            let pod = api.get_opt(&name).await.ok().flatten();
            let why = pod.as_ref().and_then(find_pod_problem).map(|problem| problem.to_string());
            let why = why.unwrap_or_else(|| "its pod has not ended".to_owned());
            Ok(Err(format!("{what} takes more than {seconds} s: {why}")))
        }
        Err(error) => Err(error),
    }
}

/// Returns the outcome of the pod's container, once it has ended.
fn outcome(pod: &Pod) -> Option<Outcome> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ended = statuses.first()?.state.as_ref()?.terminated.as_ref()?;
    Some(Outcome { exit_status: ended.exit_code, message: ended.message.clone().unwrap_or_default() })
}

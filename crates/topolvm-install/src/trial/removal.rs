//! `trial --remove`: removes volume groups, files, objects and labels, if there are no volumes.

use std::time::Duration;

use cli_runtime::connection::ClusterArgs;
use cli_runtime::objects::is_ready;
use cli_runtime::{output, request};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{TrialFlags, nodes, users};
use crate::install::loop_file::{self, LoopFile};
use crate::install::manifests::NAMESPACE;
use crate::install::object::ObjectId;
use crate::install::options::Options;
use crate::install::record::Record;
use crate::install::{self, InstallError, RunFlags, apply, node_pods, print_progress, rendering, temporary};
use crate::uninstall;
use crate::uninstall::UninstallFlags;

/// Nodes at the same time.
const CONCURRENCY: usize = 8;

/// Runs the removal.
pub(super) async fn run(
    cluster: &ClusterArgs,
    client: &Client,
    record: Option<Record>,
    flags: &TrialFlags,
) -> Result<(), InstallError> {
    let labelled: Vec<_> = request::list_all::<Node>(client).await?.into_iter().filter(nodes::has_label).collect();
    let trial = record.as_ref().and_then(|record| record.options.trial.clone());
    if trial.is_none() && labelled.is_empty() {
        return Ok(output::print("no trial is installed\n")?);
    }
    check_unused(client, record.as_ref().filter(|_| trial.is_some()), &labelled).await?;
    let is_alone = trial.as_ref().is_some_and(|trial| trial.is_alone);
    let options = record.as_ref().map_or_else(Options::default, |record| record.options.clone());
    let options = Options { image: flags.image.clone().or(options.image), ..options };
    let loop_file = trial.unwrap_or_else(|| LoopFile { size: 0, directory: flags.directory.clone(), is_alone: false });
    let limit = Duration::from_secs(flags.timeout);
    // Its pods would attach the file again
    delete_daemon_set(client, limit).await?;
    let image = rendering::render(&options)?.image().to_owned();
    clean_nodes(client, &labelled, &loop_file.removal(&image), limit).await?;
    for node in &labelled {
        nodes::unlabel(client, &node.name_any()).await?;
    }
    let Some(record) = record.filter(|record| record.options.trial.is_some()) else { return Ok(()) };
    let options = Options { trial: None, ..record.options.clone() };
    if is_alone {
        let without = Record { options, ..record.clone() };
        without.write(client, Some(&record)).await?;
        return uninstall::run(cluster, UninstallFlags::all(flags.timeout)).await;
    }
    let run_flags = RunFlags::for_trial(flags.timeout, true, true);
    Box::pin(install::change(client.clone(), options, Some(record), &run_flags)).await
}

/// Fails while volumes or claims exist, or a node of the trial cannot be cleaned.
async fn check_unused(client: &Client, record: Option<&Record>, labelled: &[Node]) -> Result<(), InstallError> {
    if let Some(Record { options, .. }) = record {
        let is_alone = options.trial.as_ref().is_some_and(|trial| trial.is_alone);
        let flavor = options.flavor();
        let users =
            if is_alone { uninstall::list_users(client, flavor).await? } else { users::list(client, flavor).await? };
        if !users.is_empty() {
            return Err(InstallError::TrialInUse(users));
        }
    }
    let down = labelled.iter().filter(|node| !is_ready(node)).map(|node| {
        let name = node.name_any();
        format!(
            "node {name} is not ready; start it, or abandon its volume group: kubectl label node {name} {}-",
            loop_file::LABEL.0
        )
    });
    let down: Vec<_> = down.collect();
    if down.is_empty() { Ok(()) } else { Err(InstallError::Unfit(down)) }
}

async fn delete_daemon_set(client: &Client, limit: Duration) -> Result<(), InstallError> {
    let id = ObjectId {
        api_version: "apps/v1".to_owned(),
        kind: "DaemonSet".to_owned(),
        namespace: Some(NAMESPACE.to_owned()),
        name: loop_file::NAME.to_owned(),
    };
    match id.get(client).await? {
        Some(found) => apply::delete(client, &id, &found, limit).await,
        None => Ok(()),
    }
}

/// Removes group, loop device and file on each node, by a pod in a temporary namespace.
async fn clean_nodes(client: &Client, nodes: &[Node], container: &Value, limit: Duration) -> Result<(), InstallError> {
    if nodes.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = nodes.iter().map(ResourceExt::name_any).collect();
    print_progress(&format!("removing the volume group, loop device and file on {}", names.join(", ")));
    let removed = temporary::within(client, "topolvm-trial-", "privileged", async |namespace: &str| {
        let api = Api::<Pod>::namespaced(client.clone(), namespace);
        let runs = names.iter().map(|node| clean_node(&api, node, container, limit));
        let problems: Vec<_> = futures::stream::iter(runs).buffered(CONCURRENCY).try_collect().await?;
        Ok(problems.into_iter().flatten().collect::<Vec<_>>())
    });
    let problems = removed.await?;
    if problems.is_empty() { Ok(()) } else { Err(InstallError::TrialStays(problems)) }
}

/// Cleans one node, and returns why it could not be.
async fn clean_node(
    api: &Api<Pod>,
    node: &str,
    container: &Value,
    limit: Duration,
) -> Result<Option<String>, InstallError> {
    let pod = json!({
        "metadata": { "generateName": "remove-" },
        "spec": {
            "nodeName": node, "hostPID": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }], "containers": [container],
        },
    });
    Ok(match node_pods::run(api, node, pod, "the removal", limit).await? {
        Ok(outcome) if outcome.exit_status == 0 => None,
        Ok(outcome) => Some(format!("node {node}: {}", outcome.message.trim())),
        Err(problem) => Some(problem),
    })
}

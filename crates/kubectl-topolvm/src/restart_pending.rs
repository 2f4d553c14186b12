//! `restart-pending`: recreates pods that wait for a scheduler extender which is not used any more.
//!
//! Such a pod got the resource `topolvm.io/capacity` in the scheduling mode `extender`, and kube-scheduler refuses it
//! because no node has that. It has never run, so that nothing is lost when it is deleted; its controller creates
//! another one, which does not get the resource.

use cli_runtime::connection::Cluster;
use cli_runtime::output::{self, Format, Row};
use cli_runtime::request::{self, RequestError, RequestResult};
use cli_runtime::table::table;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde::Serialize;
use topolvm_api::ApiFlavor;

use crate::error::Error;

/// Fate of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Fate {
    /// Its controller recreates it.
    Restarted,
    /// The same, but for the dry run.
    WouldBeRestarted,
    /// It has no controller, so that its creator must recreate it.
    Left,
    /// It was scheduled or deleted at this moment.
    Changed,
}

impl Fate {
    const fn words(self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::WouldBeRestarted => "would be restarted",
            Self::Left => "not restarted: the pod has no controller; delete it and apply its manifest again",
            Self::Changed => "not restarted: the pod has just changed",
        }
    }
}

/// A pod that waits for the extender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodRow {
    namespace: String,
    pod: String,
    /// Kind and name of its controller; empty if it has none.
    owner: String,
    fate: Fate,
}

impl Row for PodRow {
    fn name(&self) -> Option<String> {
        Some(format!("pod/{}", self.pod))
    }
}

/// Restarts the pods of one namespace, or all, and prints them.
pub(crate) async fn run(
    cluster: &Cluster,
    format: Format,
    namespace: Option<&str>,
    is_dry_run: bool,
) -> Result<(), Error> {
    let rows = restart(cluster, namespace, is_dry_run).await?;
    Ok(output::print(&output::render(format, &rows, |wide| in_table(&rows, wide))?)?)
}

async fn restart(cluster: &Cluster, namespace: Option<&str>, is_dry_run: bool) -> RequestResult<Vec<PodRow>> {
    let api = pods(&cluster.client, namespace);
    let pending = request::list(&api, &(), "status.phase=Pending").await?;
    let mut rows = Vec::new();
    for pod in pending.iter().filter(|pod| is_waiting(cluster.flavor, pod)) {
        let owner = owner(pod);
        let fate = match (&owner, is_dry_run) {
            (None, _) => Fate::Left,
            (Some(_), true) => Fate::WouldBeRestarted,
            (Some(_), false) => delete(&cluster.client, pod).await?,
        };
        let namespace = pod.namespace().unwrap_or_default();
        rows.push(PodRow { namespace, pod: pod.name_any(), owner: owner.unwrap_or_default(), fate });
    }
    Ok(rows)
}

fn pods(client: &Client, namespace: Option<&str>) -> Api<Pod> {
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

/// Returns whether kube-scheduler has refused the pod because no node has the resource.
fn is_waiting(flavor: ApiFlavor, pod: &Pod) -> bool {
    let insufficient = format!("Insufficient {}", flavor.capacity_resource());
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_refused = conditions.into_iter().flatten().any(|condition| {
        let message = condition.message.as_deref().unwrap_or_default();
        condition.type_ == "PodScheduled" && condition.status == "False" && message.contains(&insufficient)
    });
    // The controller itself deletes the pod with which it probes kube-scheduler
    let is_probe = pod.annotations().contains_key(flavor.extender_probe());
    is_refused && !is_probe && pod.metadata.deletion_timestamp.is_none()
}

fn owner(pod: &Pod) -> Option<String> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    Some(format!("{}/{}", owner.kind, owner.name))
}

/// Deletes a pod, unless it is another one by now or has been scheduled.
async fn delete(client: &Client, pod: &Pod) -> RequestResult<Fate> {
    let exactly = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
    let params = DeleteParams::default().preconditions(exactly);
    match pods(client, pod.namespace().as_deref()).delete(&pod.name_any(), &params).await {
        Ok(_) => Ok(Fate::Restarted),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Fate::Changed),
        Err(error) => Err(RequestError::new("delete", Pod::plural(&()).into_owned(), error)),
    }
}

fn in_table(rows: &[PodRow], wide: bool) -> String {
    table(
        rows,
        wide,
        &[
            ("NAMESPACE", false, &|row: &PodRow| row.namespace.clone()),
            ("POD", false, &|row| row.pod.clone()),
            ("OWNER", false, &|row| row.owner.clone()),
            ("RESULT", false, &|row| row.fate.words().to_owned()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_testkit::ApiServer;
    use topolvm_testkit::fixtures::pod;

    use super::*;

    const INSUFFICIENT: &str = "0/1 nodes are available: 1 Insufficient topolvm.io/capacity.";

    /// A pod that is pending for this reason.
    fn pending(namespace: &str, name: &str, owner: Option<&str>, message: &str) -> Value {
        let mut pod = json!(pod(name).namespace(namespace).build());
        if let Some(owner) = owner {
            let reference = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": "u"});
            pod["metadata"]["ownerReferences"] = json!([reference]);
            pod["metadata"]["ownerReferences"][0]["controller"] = json!(true);
        }
        let condition = json!({"type": "PodScheduled", "status": "False", "message": message});
        pod["status"] = json!({"phase": "Pending", "conditions": [condition]});
        pod
    }

    fn server() -> (ApiServer, Cluster) {
        let server = ApiServer::new();
        server.apply_json(pending("shop", "vault-0", Some("vault"), INSUFFICIENT));
        server.apply_json(pending("shop", "alone", None, INSUFFICIENT));
        server.apply_json(pending("shop", "small", Some("vault"), "0/1 nodes are available: 1 Insufficient memory."));
        server.apply_json(pending("bank", "vault-0", Some("vault"), INSUFFICIENT));
        let cluster = Cluster { client: server.client(), flavor: ApiFlavor::TopoLvm };
        (server, cluster)
    }

    fn left(server: &ApiServer) -> Vec<String> {
        let name = |pod: &Value| {
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
            format!("{}/{}", text("namespace"), text("name"))
        };
        server.list_json("pods").iter().map(name).collect()
    }

    #[tokio::test]
    async fn restart_pending_deletes_only_pods_with_a_controller() {
        let (server, cluster) = server();
        let rows = restart(&cluster, None, false).await.unwrap();
        let fates: Vec<_> = rows.iter().map(|row| (row.pod.as_str(), row.owner.as_str(), row.fate)).collect();
        let vault = ("vault-0", "StatefulSet/vault", Fate::Restarted);
        assert_eq!(fates, [vault, ("alone", "", Fate::Left), vault]);
        assert_eq!(left(&server), ["shop/alone", "shop/small"]);
        assert!(in_table(&rows, false).contains("delete it and apply its manifest again"));
    }

    #[tokio::test]
    async fn other_namespaces_and_dry_runs_change_nothing() {
        let (server, cluster) = server();
        let before = left(&server);
        let rows = restart(&cluster, Some("shop"), true).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.fate).collect::<Vec<_>>(), [Fate::Left, Fate::WouldBeRestarted]);
        assert_eq!(left(&server), before);
        restart(&cluster, Some("shop"), false).await.unwrap();
        assert_eq!(left(&server), ["bank/vault-0", "shop/alone", "shop/small"]);
    }

    #[tokio::test]
    async fn a_pod_that_is_scheduled_meanwhile_stays() {
        let (server, cluster) = server();
        server.before_next("delete", "pods", |server| {
            server.edit("pods", "shop", "vault-0", |pod| pod["spec"]["nodeName"] = json!("n1"));
        });
        let rows = restart(&cluster, Some("shop"), false).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.fate).collect::<Vec<_>>(), [Fate::Left, Fate::Changed]);
        assert!(left(&server).contains(&"shop/vault-0".to_owned()));
    }
}

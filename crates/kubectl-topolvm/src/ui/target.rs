//! The pod to forward to: that of the leader, which has the findings of the checks.

use cli_runtime::request;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::{Api, Client, ResourceExt as _};
use topolvm_doctor::{LEASE, Role};

use crate::error::UiError;

/// Name of the page's port in the manifests.
const PORT: &str = "ui";

/// A pod of topolvm-controller, and the port of its page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) pod: String,
    pub(super) port: u16,
}

impl Target {
    /// Finds the pod that holds the Lease or, where there is no leader election or the leader is about to end, another
    /// one that runs.
    pub(super) async fn find(client: &Client, namespace: &str) -> Result<Self, UiError> {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        let lease = request::get(&Api::<Lease>::namespaced(client.clone(), namespace), LEASE).await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        let of_leader = match holder.as_deref().map(pod_of_holder) {
            Some(name) => request::get(&pods, name).await?,
            None => None,
        };
        let pod = match of_leader.filter(stays) {
            Some(pod) => Some(pod),
            None => request::list(&pods, &(), "status.phase=Running")
                .await?
                .into_iter()
                .find(|pod| container(pod).is_some() && stays(pod)),
        };
        let pod = pod.ok_or_else(|| UiError::NoPod(namespace.to_owned()))?;
        match port(&pod) {
            Some(port) => Ok(Self { pod: pod.name_any(), port }),
            None => Err(UiError::Off(how_to_turn_on(client, &pod, namespace).await)),
        }
    }
}

/// Returns false for a pod that is being deleted, as those of before an upgrade are.
fn stays(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

/// Returns the name of the pod in the holder identity of the Lease, which ends in a random number.
fn pod_of_holder(holder: &str) -> &str {
    holder.rsplit_once('_').map_or(holder, |(pod, _)| pod)
}

fn container(pod: &Pod) -> Option<&Container> {
    pod.spec.as_ref()?.containers.iter().find(|container| container.name == Role::Controller.program())
}

fn port(pod: &Pod) -> Option<u16> {
    let mut ports = container(pod)?.ports.iter().flatten();
    u16::try_from(ports.find(|port| port.name.as_deref() == Some(PORT))?.container_port).ok()
}

/// Returns the command that turns the page on in an installation of this kind.
async fn how_to_turn_on(client: &Client, pod: &Pod, namespace: &str) -> String {
    // Only the chart gives pods this label
    if let Some(release) = pod.labels().get("app.kubernetes.io/instance") {
        return format!("helm upgrade {release} CHART -n {namespace} --reuse-values --set controller.ui.enabled=true");
    }
    if topolvm_install::is_installed(client).await {
        return "kubectl topolvm upgrade --ui".to_owned();
    }
    "add deploy/manifests/components/ui to the components of the kustomization".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_testkit::ApiServer;

    use super::*;

    const NAMESPACE: &str = "topolvm-system";

    fn pod(name: &str, ports: &Value, labels: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {"containers": [{"name": "csi-provisioner"}, {"name": "topolvm-controller", "ports": ports}]},
            "status": {"phase": "Running"},
        })
    }

    fn lease(holder: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "topolvm", "namespace": NAMESPACE}, "spec": {"holderIdentity": holder},
        })
    }

    async fn find(objects: &[Value]) -> Result<Target, String> {
        let server = ApiServer::new();
        for object in objects {
            server.apply_json(object);
        }
        Target::find(&server.client(), NAMESPACE).await.map_err(|error| error.to_string())
    }

    fn on() -> Value {
        json!([{"name": "metrics", "containerPort": 8080}, {"name": "ui", "containerPort": 8082}])
    }

    #[tokio::test]
    async fn a_leader_of_before_an_upgrade_is_not_forwarded_to() {
        let mut old = pod("a-old", &json!([]), &json!({}));
        old["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        let found = find(&[old, pod("b-new", &on(), &json!({})), lease("a-old_1")]).await.unwrap();
        assert_eq!(found, Target { pod: "b-new".to_owned(), port: 8082 });
    }

    #[tokio::test]
    async fn the_leader_is_the_pod_that_is_forwarded_to() {
        let pods = [pod("c-1", &on(), &json!({})), pod("c-2", &on(), &json!({}))];
        let target = |name: &str| Ok(Target { pod: name.to_owned(), port: 8082 });
        assert_eq!(find(&[pods.to_vec(), vec![lease("c-2_1b4e28ba")]].concat()).await, target("c-2"));
        // No leader election, or the leader has gone
        assert_eq!(find(&pods).await, target("c-1"));
        assert_eq!(find(&[pods.to_vec(), vec![lease("gone_1b4e28ba")]].concat()).await, target("c-1"));
        assert!(find(&[]).await.unwrap_err().contains("no topolvm-controller runs in the namespace topolvm-system"));
    }

    #[tokio::test]
    async fn disabled_page_is_reported_with_the_command_that_enables_it() {
        let off = |labels: Value| pod("c-1", &json!([]), &labels);
        let record = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "topolvm-installation", "namespace": NAMESPACE},
            "data": {"installation.json": r#"{"version":"1","options":{},"objects":[],"hasMadeNamespace":true}"#},
        });
        for (objects, command) in [
            (vec![off(json!({})), record], "kubectl topolvm upgrade --ui"),
            (vec![off(json!({}))], "components/ui"),
            (
                vec![off(json!({"app.kubernetes.io/instance": "storage"}))],
                "helm upgrade storage CHART -n topolvm-system",
            ),
        ] {
            let error = find(&objects).await.unwrap_err();
            assert!(error.contains(command), "{error}");
        }
    }
}

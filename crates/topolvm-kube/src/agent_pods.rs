//! The pods of topolvm-node: on which node one runs, and under which address its ports are reached.

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::Api;
use kube::api::ListParams;

/// Name of the agent's container.
const CONTAINER: &str = "topolvm-node";
/// Label of the agent's pods.
const LABEL: &str = "app.kubernetes.io/component=node";

/// The pod of an agent that is not being deleted.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentPod {
    /// Name of its node.
    pub node: String,
    /// Its address; `None` until it has one.
    ip: Option<String>,
    container: Container,
}

impl AgentPod {
    /// Returns the parameters that list agents.
    #[must_use]
    pub fn selection() -> ListParams {
        ListParams::default().labels(LABEL)
    }

    /// Lists the agent of a node.
    pub async fn of_node(pods: &Api<Pod>, node: &str) -> kube::Result<Option<Self>> {
        let listed = pods.list(&Self::selection().fields(&format!("spec.nodeName={node}"))).await?;
        Ok(listed.items.into_iter().filter_map(Self::of).find(|agent| agent.ip.is_some()))
    }

    /// Returns what is known of a pod; `None` if it is being deleted, on no node, or no agent.
    #[must_use]
    pub fn of(pod: Pod) -> Option<Self> {
        if pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let spec = pod.spec?;
        let container = spec.containers.into_iter().find(|container| container.name == CONTAINER)?;
        let ip = pod.status.and_then(|status| status.pod_ip).filter(|ip| !ip.is_empty());
        Some(Self { node: spec.node_name?, ip, container })
    }

    /// Returns whether it has an address.
    #[must_use]
    pub fn has_address(&self) -> bool {
        self.ip.is_some()
    }

    /// Returns address and number of the port with this name.
    #[must_use]
    pub fn address(&self, port: &str) -> Option<String> {
        let mut ports = self.container.ports.iter().flatten();
        let port = ports.find(|known| known.name.as_deref() == Some(port))?.container_port;
        let ip = self.ip.as_deref()?;
        Some(if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") })
    }

    /// Returns the last value that the arguments of the agent give a flag: empty where it has none.
    #[must_use]
    pub fn flag(&self, flag: &str) -> Option<&str> {
        let arguments = self.container.command.iter().flatten().chain(self.container.args.iter().flatten());
        let values = arguments.filter_map(|argument| argument.strip_prefix(flag));
        values.filter_map(|rest| if rest.is_empty() { Some("") } else { rest.strip_prefix('=') }).next_back()
    }
}

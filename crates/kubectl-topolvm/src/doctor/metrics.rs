//! Reads the metrics of agents and of lvmd through the API server.

use std::time::Duration;

use cli_runtime::request::{RequestError, RequestResult};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use topolvm_doctor::{Metrics, Sample};

use super::answer::fact;

/// Programs that report volume groups.
const PROGRAMS: [&str; 2] = ["topolvm-node", "lvmd"];
/// Requests at the same time.
const CONCURRENCY: usize = 4;
/// Timeout for the metrics of a pod, whose node may be cut off.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the metrics of the pods in `namespace` that have a port named `metrics` and are ready.
pub(super) async fn read(client: &Client, namespace: &str, pods: &[Pod]) -> Vec<Metrics> {
    let pods = pods.iter().filter(|pod| pod.namespace().as_deref() == Some(namespace) && is_ready(pod));
    let read = pods.filter_map(|pod| Some((pod, port(pod)?))).map(|(pod, port)| async move {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let samples = fact(read_pod(client, namespace, &pod.name_any(), port).await);
        Metrics { node, pod: pod.name_any(), samples }
    });
    futures::stream::iter(read).buffered(CONCURRENCY).collect().await
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the port with metrics of one of our programs.
fn port(pod: &Pod) -> Option<i32> {
    let containers = pod.spec.as_ref()?.containers.iter();
    let mut ports =
        containers.filter(|container| PROGRAMS.contains(&container.name.as_str())).filter_map(|container| {
            let port = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some("metrics"))?;
            Some(port.container_port)
        });
    ports.next()
}

async fn read_pod(client: &Client, namespace: &str, name: &str, port: i32) -> RequestResult<Vec<Sample>> {
    let failed = |error| RequestError::new("get", "pods/proxy".to_owned(), error);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError).map_err(failed)?;
    let answer = tokio::time::timeout(TIMEOUT, client.request_text(request)).await;
    let text = answer.map_err(|_| late(name))?.map_err(failed)?;
    Ok(Sample::parse_all(&text))
}

fn late(pod: &str) -> RequestError {
    let message = format!("pod {pod} does not return metrics within {} s", TIMEOUT.as_secs());
    RequestError::Failed { verb: "get", resource: "pods/proxy".to_owned(), message }
}

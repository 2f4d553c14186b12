//! Reads the Services to which our admission webhooks point.

use std::collections::BTreeSet;

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestResult};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::{Api, Client, ResourceExt as _};
use topolvm_doctor::{Backend, our_webhooks};

use super::answer::fact;

/// Returns the Services of our webhooks, each once.
pub(super) async fn backends(
    cluster: &Cluster,
    namespace: &str,
    configurations: &[MutatingWebhookConfiguration],
) -> Vec<Backend> {
    let services = our_webhooks(cluster.flavor, namespace, configurations).into_iter().filter_map(|webhook| {
        webhook.client_config.service.as_ref().map(|service| (service.namespace.clone(), service.name.clone()))
    });
    let mut backends = Vec::new();
    for (namespace, name) in services.collect::<BTreeSet<_>>() {
        let ready = fact(ready_endpoints(&cluster.client, &namespace, &name).await);
        backends.push(Backend { namespace, name, ready });
    }
    backends
}

async fn ready_endpoints(client: &Client, namespace: &str, name: &str) -> RequestResult<Option<usize>> {
    if request::get(&Api::<Service>::namespaced(client.clone(), namespace), name).await?.is_none() {
        return Ok(None);
    }
    let slices = request::list_within::<EndpointSlice>(client, Some(namespace)).await?;
    let is_of_service = |slice: &&EndpointSlice| {
        slice.labels().get("kubernetes.io/service-name").is_some_and(|service| service == name)
    };
    // An unset value means yes, according to the API
    let is_ready =
        |endpoint: &&Endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
    Ok(Some(slices.iter().filter(is_of_service).flat_map(|slice| slice.endpoints.iter()).filter(is_ready).count()))
}

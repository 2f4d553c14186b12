//! Our admission webhooks, their Services and their certificates.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::ApiFlavor;
use x509_parser::pem::Pem;

use crate::connection::Cluster;
use crate::request::{self, RequestResult};

/// HTTP paths of the webhooks of topolvm-controller.
const PATHS: [&str; 2] = ["/pod/mutate", "/pvc/mutate"];

/// A Service to which webhooks point.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Number of ready endpoints; none if the Service does not exist.
    pub(super) ready: RequestResult<Option<usize>>,
}

/// Returns our webhooks, known by their names or by their Service and path.
pub(super) fn ours<'a>(
    flavor: ApiFlavor,
    namespace: &str,
    configurations: &'a [MutatingWebhookConfiguration],
) -> Vec<&'a MutatingWebhook> {
    let names = ["pod-hook", "pvc-hook"].map(|hook| format!("{hook}.{}", flavor.group()));
    let all = configurations.iter().flat_map(|configuration| configuration.webhooks.iter().flatten());
    let is_ours = |webhook: &&MutatingWebhook| {
        names.contains(&webhook.name)
            || webhook.client_config.service.as_ref().is_some_and(|service| {
                let path = service.path.as_deref().unwrap_or_default();
                service.namespace == namespace && PATHS.contains(&path)
            })
    };
    all.filter(is_ours).collect()
}

/// Returns the Services of our webhooks, each once.
pub(super) async fn backends(
    cluster: &Cluster,
    namespace: &str,
    configurations: &[MutatingWebhookConfiguration],
) -> Vec<Backend> {
    let services = ours(cluster.flavor, namespace, configurations).into_iter().filter_map(|webhook| {
        webhook.client_config.service.as_ref().map(|service| (service.namespace.clone(), service.name.clone()))
    });
    let mut backends = Vec::new();
    for (namespace, name) in services.collect::<std::collections::BTreeSet<_>>() {
        let ready = ready_endpoints(&cluster.client, &namespace, &name).await;
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
    // No word is as good as yes, says the API
    let is_ready =
        |endpoint: &&Endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true);
    Ok(Some(slices.iter().filter(is_of_service).flat_map(|slice| slice.endpoints.iter()).filter(is_ready).count()))
}

/// Returns the latest expiry of the certificates in a caBundle; none if it has no certificate that can be read.
pub(super) fn expiry(bundle: &[u8]) -> Option<Timestamp> {
    let blocks = Pem::iter_from_buffer(bundle).filter_map(Result::ok);
    let ends = blocks.filter_map(|block| {
        let certificate = block.parse_x509().ok()?;
        Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
    });
    ends.max()
}

/// Returns true if a label selector selects objects with these labels.
pub(super) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

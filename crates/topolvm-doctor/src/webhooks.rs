//! Our admission webhooks, their Services and their certificates.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::{ResourceExt as _, Selector, SelectorExt as _};
use topolvm_api::ApiFlavor;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

use crate::read_error::ReadResult;

/// HTTP path of the webhook for pods.
const POD_PATH: &str = "/pod/mutate";
/// HTTP path of the webhook for claims.
const CLAIM_PATH: &str = "/pvc/mutate";

/// A Service to which webhooks point.
#[derive(Clone, Debug)]
pub struct Backend {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Number of ready endpoints; none if the Service does not exist.
    pub ready: ReadResult<Option<usize>>,
}

/// A webhook of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) configuration: &'a MutatingWebhookConfiguration,
    /// Place in the list of the configuration.
    pub(crate) index: usize,
    pub(crate) webhook: &'a MutatingWebhook,
}

impl Entry<'_> {
    /// Returns true for the webhook for pods.
    pub(crate) fn is_for_pods(&self) -> bool {
        self.webhook.name.starts_with("pod-hook.") || path(self.webhook) == POD_PATH
    }

    pub(crate) fn configuration_name(&self) -> String {
        self.configuration.name_any()
    }
}

/// Returns our webhooks, known by their names or by their Service and path.
pub fn our_webhooks<'a>(
    flavor: ApiFlavor,
    namespace: &str,
    configurations: &'a [MutatingWebhookConfiguration],
) -> Vec<&'a MutatingWebhook> {
    entries(flavor, namespace, configurations).into_iter().map(|entry| entry.webhook).collect()
}

/// Returns our webhooks with their places.
pub(crate) fn entries<'a>(
    flavor: ApiFlavor,
    namespace: &str,
    configurations: &'a [MutatingWebhookConfiguration],
) -> Vec<Entry<'a>> {
    let names = ["pod-hook", "pvc-hook"].map(|hook| format!("{hook}.{}", flavor.group()));
    let of_configuration = |configuration: &'a MutatingWebhookConfiguration| {
        let webhooks = configuration.webhooks.iter().flatten().enumerate();
        webhooks.map(move |(index, webhook)| Entry { configuration, index, webhook })
    };
    let is_ours = |entry: &Entry<'_>| {
        let service = entry.webhook.client_config.service.as_ref();
        let is_in_namespace = service.is_some_and(|service| service.namespace == namespace);
        names.contains(&entry.webhook.name) || is_in_namespace && [POD_PATH, CLAIM_PATH].contains(&path(entry.webhook))
    };
    configurations.iter().flat_map(of_configuration).filter(is_ours).collect()
}

fn path(webhook: &MutatingWebhook) -> &str {
    webhook.client_config.service.as_ref().and_then(|service| service.path.as_deref()).unwrap_or_default()
}

/// Time in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// Returns the validity of each certificate in a caBundle that can be read.
pub(crate) fn validities(bundle: &[u8]) -> Vec<Validity> {
    let blocks = Pem::iter_from_buffer(bundle).filter_map(Result::ok);
    let validity = |block: Pem| {
        let certificate = block.parse_x509().ok()?;
        let time = |time: ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        let validity = certificate.validity();
        Some(Validity { from: time(validity.not_before)?, until: time(validity.not_after)? })
    };
    blocks.filter_map(validity).collect()
}

/// Returns the DNS names of the certificate in a caBundle that is the server's own: the only one, and of no authority.
/// Any other bundle does not show the names of the server's certificate.
pub(crate) fn server_names(bundle: &[u8]) -> Option<Vec<String>> {
    let blocks: Vec<_> = Pem::iter_from_buffer(bundle).filter_map(Result::ok).collect();
    let [block] = blocks.as_slice() else { return None };
    let certificate = block.parse_x509().ok()?;
    if certificate.is_ca() {
        return None;
    }
    let names = certificate.subject_alternative_name().ok()??;
    let dns_name = |name: &GeneralName<'_>| {
        if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None }
    };
    Some(names.value.general_names.iter().filter_map(dns_name).collect())
}

/// Returns true if a label selector selects objects with these labels.
pub(crate) fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}

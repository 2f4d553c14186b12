//! Checks of webhook configurations.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use kube_core::ResourceExt as _;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::read_error::{ReadError, read};
use crate::webhooks::{self, Backend, expiry, selects, server_names};

/// Remaining validity below which a certificate is warned of.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(14 * 24);
/// Age up to which a refusal is news.
const RECENT: SignedDuration = SignedDuration::from_mins(10);

fn ours(facts: &Facts) -> Result<Vec<&MutatingWebhook>, ReadError> {
    Ok(webhooks::our_webhooks(facts.flavor, &facts.namespace, read(&facts.webhooks)?))
}

pub(super) fn webhooks(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let webhooks = ours(facts)?;
    if webhooks.is_empty() {
        return Ok(vec![Finding::ok("there are no webhooks of ours")]);
    }
    let of_services = facts.backends.iter().filter_map(find_service_problem);
    let of_bundles = webhooks.iter().filter_map(|webhook| find_bundle_problem(webhook, facts.now));
    let of_names = webhooks.iter().filter_map(|webhook| find_name_problem(webhook));
    let of_calls = find_failed_calls(facts, &webhooks);
    let findings = of_services.chain(of_bundles).chain(of_names).chain(of_calls).collect();
    Ok(Finding::ok_if_none(findings, "the Service of the webhooks has endpoints, and the caBundle is valid"))
}

/// Returns the reason for which a Service does not answer for webhooks.
fn find_service_problem(backend: &Backend) -> Option<Finding> {
    let service = format!("{}/{}", backend.namespace, backend.name);
    match &backend.ready {
        Err(error) => Some(Finding::unknown(error)),
        Ok(None) => Some(Finding::fail(
            format!("the webhooks point to the Service {service}, which does not exist"),
            "apply deploy/manifests/components/webhooks/service.yaml, or correct the MutatingWebhookConfiguration",
        )),
        Ok(Some(0)) => Some(Finding::fail(
            format!("the Service {service} of the webhooks has no ready endpoint"),
            "start topolvm-controller with --enable-webhooks, and see that the Service selects its pods",
        )),
        Ok(Some(_)) => None,
    }
}

/// Returns the problem of a caBundle that has expired or soon will, or has no certificate.
fn find_bundle_problem(webhook: &MutatingWebhook, now: Timestamp) -> Option<Finding> {
    let (name, config) = (&webhook.name, &webhook.client_config);
    let bundle = config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice()).unwrap_or_default();
    let remedy = "see docs/webhooks.md: topolvm-controller, or cert-manager, writes the caBundle; its log says \
        why it does not";
    match expiry(bundle) {
        None if bundle.is_empty() && config.service.is_none() => None,
        None => Some(Finding::fail(format!("{name}: the caBundle has no certificate"), remedy)),
        Some(end) if end <= now => Some(Finding::fail(format!("{name}: the caBundle has expired on {end}"), remedy)),
        Some(end) if end.duration_since(now) < EXPIRY_WARNING => {
            Some(Finding::warn(format!("{name}: the caBundle expires on {end}"), remedy))
        }
        Some(_) => None,
    }
}

/// Returns the problem of a server's own certificate in a caBundle that is for another name than that of the Service.
fn find_name_problem(webhook: &MutatingWebhook) -> Option<Finding> {
    let service = webhook.client_config.service.as_ref()?;
    let names = server_names(&webhook.client_config.ca_bundle.as_ref()?.0)?;
    let wanted = format!("{}.{}.svc", service.name, service.namespace);
    (!names.contains(&wanted)).then(|| {
        Finding::fail(
            format!(
                "{}: the certificate is for {}, and the API server asks for {wanted}",
                webhook.name,
                names.join(", ")
            ),
            format!("make the certificate anew with the DNS name {wanted}, as docs/webhooks.md says"),
        )
    })
}

/// Returns the problems of calls that have failed lately, as the controllers report them whose pods were refused.
fn find_failed_calls(facts: &Facts, webhooks: &[&MutatingWebhook]) -> Vec<Finding> {
    let mut failed: BTreeMap<&str, &str> = BTreeMap::new();
    // Who may not list Events is told less
    for event in facts.creation_events.iter().flatten() {
        let message = event.message.as_deref().unwrap_or_default();
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let time = last.or_else(|| event.event_time.as_ref().map(|time| time.0));
        let is_recent = time.is_some_and(|time| facts.now.duration_since(time) < RECENT);
        for webhook in webhooks {
            if is_recent && message.contains(&format!("failed calling webhook {:?}", webhook.name)) {
                failed.insert(&webhook.name, message);
            }
        }
    }
    let finding = |(name, message): (&str, &str)| {
        Finding::fail(
            format!("the API server could not call {name}: {message}"),
            "mend what the message says: an x509 error is about the certificate or the caBundle, a timeout about the \
                network between the API server and the pods of topolvm-controller (docs/webhooks.md)",
        )
    };
    failed.into_iter().map(finding).collect()
}

pub(super) fn exemptions(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let webhooks = ours(facts)?;
    if webhooks.is_empty() {
        return Ok(vec![Finding::ok("there are no webhooks of ours")]);
    }
    let namespaces = read(&facts.namespaces)?;
    let label = facts.flavor.webhook_label();
    let mut findings = Vec::new();
    for name in ["kube-system", facts.namespace.as_str()] {
        let Some(namespace) = namespaces.iter().find(|namespace| namespace.name_any() == name) else { continue };
        for webhook in &webhooks {
            // None takes all
            let takes =
                webhook.namespace_selector.as_ref().is_none_or(|selector| selects(selector, namespace.labels()));
            if takes {
                let found = format!("{} takes part in the namespace {name}", webhook.name);
                let remedy = format!(
                    "have its namespaceSelector leave out {label}=ignore as our manifests do, and kubectl label \
                        namespace {name} {label}=ignore"
                );
                // With Ignore it only costs time
                let is_required = webhook.failure_policy.as_deref() != Some("Ignore");
                findings.push(if is_required { Finding::fail(found, remedy) } else { Finding::warn(found, remedy) });
            }
        }
    }
    Ok(Finding::ok_if_none(findings, format!("the webhooks leave out kube-system and {}", facts.namespace)))
}

//! Checks of webhook configurations.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use kube_core::ResourceExt as _;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::manifests;
use crate::read_error::{ReadError, read};
use crate::shell::{self, quote};
use crate::webhooks::{self, Backend, selects, server_names, validities};
use crate::workloads::{Role, Workload};

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
        return Ok(vec![Finding::ok("TopoLVM webhooks are not installed")]);
    }
    if serves_no_webhooks(facts) {
        return Ok(find_unserved(facts));
    }
    let of_services = facts.backends.iter().filter_map(|backend| find_service_problem(facts, backend));
    let of_bundles = webhooks.iter().filter_map(|webhook| find_bundle_problem(webhook, facts.now));
    let of_names = webhooks.iter().filter_map(|webhook| find_name_problem(webhook));
    let of_calls = find_failed_calls(facts, &webhooks);
    let findings = of_services.chain(of_bundles).chain(of_names).chain(of_calls).collect();
    Ok(Finding::ok_if_none(findings, "the Service of the webhooks has endpoints, and the caBundle is valid"))
}

/// Returns true if the webhooks are what an older installation has left: with --scheduling-mode=capacity nothing needs
/// them, and the controllers serve none.
fn serves_no_webhooks(facts: &Facts) -> bool {
    let controllers = facts.workloads_of(Role::Controller).unwrap_or_default();
    let serves = |controller: &&Workload| {
        let is_on = |value: &str| value.is_empty() || value == "true";
        match controller.flag("--enable-webhooks") {
            Some(value) => is_on(value),
            None => controller.flag("--cert-dir").is_some(),
        }
    };
    // A Service of the installation may have the controllers behind it, which do not listen
    let is_unanswered = facts
        .backends
        .iter()
        .all(|backend| backend.namespace == facts.namespace || matches!(backend.ready, Ok(None | Some(0))));
    let is_configured = controllers.iter().any(|controller| controller.flag("--scheduling-mode") == Some("capacity"));
    is_configured && is_unanswered && !controllers.iter().any(serves)
}

/// Returns a finding for each configuration with webhooks of ours that no controller serves.
fn find_unserved(facts: &Facts) -> Vec<Finding> {
    let configurations = facts.webhooks.as_deref().unwrap_or_default();
    let entries = webhooks::entries(facts.flavor, &facts.namespace, configurations);
    let finding = |configuration: &MutatingWebhookConfiguration| {
        let name = configuration.name_any();
        let ours: Vec<_> = entries.iter().filter(|entry| entry.configuration_name() == name).collect();
        let hooks: Vec<_> = ours.iter().map(|entry| entry.webhook.name.as_str()).collect();
        if hooks.is_empty() {
            return None;
        }
        let is_required = ours.iter().any(|entry| entry.webhook.failure_policy.as_deref() != Some("Ignore"));
        let effect = if is_required { ": the API server refuses all pods and claims that they select" } else { "" };
        let found = format!(
            "the MutatingWebhookConfiguration {name} has {}, which no controller serves{effect}",
            hooks.join(" and ")
        );
        let command = if configuration.webhooks.iter().flatten().count() == ours.len() {
            format!("kubectl delete mutatingwebhookconfiguration {}", quote(&name))
        } else {
            // From the last one, so that the places of the others stay
            let removals = ours.iter().rev().flat_map(|entry| {
                let path = format!("/webhooks/{}", entry.index);
                [
                    json!({"op": "test", "path": format!("{path}/name"), "value": entry.webhook.name}),
                    json!({"op": "remove", "path": path}),
                ]
            });
            shell::patch(None, "mutatingwebhookconfiguration", &name, &Value::Array(removals.collect()))
        };
        let remedy = "delete it: --scheduling-mode=capacity needs no webhooks, and an older installation has left it \
            behind";
        let finding = if is_required { Finding::fail(found, remedy) } else { Finding::warn(found, remedy) };
        Some(finding.with_commands([command]))
    };
    configurations.iter().filter_map(finding).collect()
}

/// Returns the reason for which a Service does not answer for webhooks.
fn find_service_problem(facts: &Facts, backend: &Backend) -> Option<Finding> {
    let service = format!("{}/{}", backend.namespace, backend.name);
    match &backend.ready {
        Err(error) => Some(Finding::unknown(error)),
        Ok(None) => Some(Finding::fail(
            format!("the webhooks point to the Service {service}, which does not exist"),
            format!(
                "apply {}, or correct the MutatingWebhookConfiguration",
                match facts.flavor {
                    ApiFlavor::TopoLvm => "deploy/manifests/components/webhooks/service.yaml",
                    ApiFlavor::Legacy => manifests::webhooks(facts.flavor),
                }
            ),
        )),
        Ok(Some(0)) => Some(Finding::fail(
            format!("the Service {service} of the webhooks has no ready endpoint"),
            "start topolvm-controller with --enable-webhooks, and check that the Service selects its pods",
        )),
        Ok(Some(_)) => None,
    }
}

/// Returns the problem of a caBundle that has expired or soon will, or has no certificate.
fn find_bundle_problem(webhook: &MutatingWebhook, now: Timestamp) -> Option<Finding> {
    let (name, config) = (&webhook.name, &webhook.client_config);
    let bundle = config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice()).unwrap_or_default();
    let remedy = "see docs/webhooks.md: topolvm-controller or cert-manager writes the caBundle; its log shows why it \
        does not";
    let valid = validities(bundle);
    let until = valid.iter().filter(|one| one.from <= now).map(|one| one.until).max();
    match (until, valid.iter().map(|one| one.from).min()) {
        (None, None) if bundle.is_empty() && config.service.is_none() => None,
        (None, None) => Some(Finding::fail(format!("{name}: the caBundle has no certificate"), remedy)),
        (None, Some(from)) => Some(Finding::fail(
            format!("{name}: the caBundle is not valid before {from}, but the API server has {now}"),
            "the clock of the node that created the certificate was ahead: correct it (NTP). topolvm-controller renews \
                its own certificate; recreate any other certificate (docs/webhooks.md)",
        )),
        (Some(end), _) if end <= now => {
            Some(Finding::fail(format!("{name}: the caBundle has expired on {end}"), remedy))
        }
        (Some(end), _) if end.duration_since(now) < EXPIRY_WARNING => {
            Some(Finding::warn(format!("{name}: the caBundle expires on {end}"), remedy))
        }
        (Some(_), _) => None,
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
                "{}: the certificate is for {}, but the API server requests {wanted}",
                webhook.name,
                names.join(", ")
            ),
            format!("recreate the certificate with the DNS name {wanted}; see docs/webhooks.md"),
        )
    })
}

/// Returns the problems of calls that have failed lately, as the controllers report them whose pods were refused.
fn find_failed_calls(facts: &Facts, webhooks: &[&MutatingWebhook]) -> Vec<Finding> {
    let mut failed: BTreeMap<&str, &str> = BTreeMap::new();
    // A user who may not list Events gets a shorter report
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
            "follow the message: an x509 error indicates the certificate or the caBundle, a timeout the network \
                between the API server and the pods of topolvm-controller (docs/webhooks.md)",
        )
    };
    failed.into_iter().map(finding).collect()
}

pub(super) fn exemptions(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let webhooks = ours(facts)?;
    if webhooks.is_empty() {
        return Ok(vec![Finding::ok("TopoLVM webhooks are not installed")]);
    }
    if serves_no_webhooks(facts) {
        return Ok(vec![Finding::ok("the webhooks must be removed")]);
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
                let found = format!("{} applies to the namespace {name}", webhook.name);
                let remedy = format!(
                    "exclude {label}=ignore in its namespaceSelector as in the manifests, and run kubectl label \
                        namespace {name} {label}=ignore"
                );
                // With Ignore it only costs time
                let is_required = webhook.failure_policy.as_deref() != Some("Ignore");
                findings.push(if is_required { Finding::fail(found, remedy) } else { Finding::warn(found, remedy) });
            }
        }
    }
    Ok(Finding::ok_if_none(findings, format!("the webhooks exclude kube-system and {}", facts.namespace)))
}

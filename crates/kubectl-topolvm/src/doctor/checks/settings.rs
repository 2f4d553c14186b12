//! Checks of webhook configurations and StorageClasses.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use topolvm_api::{ApiFlavor, FILESYSTEMS, MkfsOptions};

use crate::doctor::Finding;
use crate::doctor::facts::Facts;
use crate::doctor::webhooks::{self, Backend, expiry, selects};
use crate::request::RequestError;
use crate::status;

/// Remaining validity below which a certificate is warned of.
const EXPIRY_WARNING: SignedDuration = SignedDuration::from_hours(14 * 24);
/// StorageClass parameters of csi-provisioner for the type of the filesystem; the second is the old name.
const FSTYPE: [&str; 2] = ["csi.storage.k8s.io/fstype", "fstype"];
/// Prefix of StorageClass parameters that csi-provisioner reads itself.
const RESERVED: &str = "csi.storage.k8s.io/";

fn ours(facts: &Facts) -> Result<Vec<&MutatingWebhook>, RequestError> {
    let configurations = facts.webhooks.as_ref().map_err(Clone::clone)?;
    Ok(webhooks::ours(facts.flavor, &facts.namespace, configurations))
}

pub(super) fn webhooks(facts: &Facts) -> Result<Vec<Finding>, RequestError> {
    let webhooks = ours(facts)?;
    if webhooks.is_empty() {
        return Ok(vec![Finding::ok("there are no webhooks of ours")]);
    }
    let of_services = facts.backends.iter().filter_map(find_service_problem);
    let of_bundles = webhooks.iter().filter_map(|webhook| find_bundle_problem(webhook, facts.now));
    let findings = of_services.chain(of_bundles).collect();
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

pub(super) fn exemptions(facts: &Facts) -> Result<Vec<Finding>, RequestError> {
    let webhooks = ours(facts)?;
    if webhooks.is_empty() {
        return Ok(vec![Finding::ok("there are no webhooks of ours")]);
    }
    let namespaces = facts.namespaces.as_ref().map_err(Clone::clone)?;
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

pub(super) fn classes(facts: &Facts) -> Result<Vec<Finding>, RequestError> {
    let all = facts.classes.as_ref().map_err(Clone::clone)?;
    let nodes = facts.nodes.as_ref().map_err(Clone::clone)?;
    let ours: Vec<_> = all.iter().filter(|class| class.provisioner == facts.flavor.driver_name()).collect();
    if ours.is_empty() {
        let found = format!("no StorageClass has the provisioner {}", facts.flavor.driver_name());
        let remedy = "apply one such as deploy/manifests/base/storageclass.yaml";
        return Ok(vec![Finding::warn(found, remedy)]);
    }
    let on_nodes: BTreeSet<_> = nodes.iter().flat_map(|node| status::classes(facts.flavor, node).into_keys()).collect();
    let findings = ours.iter().flat_map(|class| find_class_problems(facts.flavor, class, &on_nodes)).collect();
    let names: Vec<_> = ours.iter().map(|class| class.name_any()).collect();
    Ok(Finding::ok_if_none(findings, format!("parameters of {} are valid", names.join(", "))))
}

/// Returns the problems of a StorageClass; `on_nodes` are the device classes that nodes have.
fn find_class_problems(flavor: ApiFlavor, class: &StorageClass, on_nodes: &BTreeSet<String>) -> Vec<Finding> {
    let name = class.name_any();
    let correct = format!("make the StorageClass {name} anew without it; its parameters cannot be changed");
    let mut findings = Vec::new();
    if let Some(found) = find_refused_parameter(flavor, class) {
        findings.push(Finding::fail(format!("StorageClass {name}: {found}"), correct.clone()));
    }
    for key in unknown_parameters(flavor, class) {
        let found = format!("StorageClass {name}: the parameter {key:?} is not known, and has no effect");
        findings.push(Finding::warn(found, correct.clone()));
    }
    let parameter = class.parameters.as_ref().and_then(|all| all.get(flavor.device_class_parameter()));
    let device_class = parameter.map(String::as_str).unwrap_or_default();
    // Without any agent nothing can be said; that there is none is told elsewhere
    if !on_nodes.is_empty() && !on_nodes.contains(device_class) {
        let known: Vec<_> = on_nodes.iter().filter(|class| !class.is_empty()).map(String::as_str).collect();
        let known = known.join(", ");
        findings.push(Finding::fail(
            format!("StorageClass {name}: no node has the device class {device_class:?}"),
            format!("add it to lvmd.yaml of a node, or make the StorageClass anew with one of {known}"),
        ));
    }
    if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
        findings.push(Finding::warn(
            format!("StorageClass {name}: volumes are bound before it is known where their pods can run"),
            "make it anew with volumeBindingMode: WaitForFirstConsumer",
        ));
    }
    findings
}

/// Returns why the controller would refuse the parameters of a StorageClass.
fn find_refused_parameter(flavor: ApiFlavor, class: &StorageClass) -> Option<String> {
    let parameters = class.parameters.as_ref()?;
    let filesystem = FSTYPE.iter().find_map(|key| parameters.get(*key)).map(String::as_str).unwrap_or_default();
    if !filesystem.is_empty() && !FILESYSTEMS.contains(&filesystem) {
        return Some(format!("the filesystem {filesystem:?} cannot be made; possible are {}", FILESYSTEMS.join(", ")));
    }
    let options = parameters.get(flavor.mkfs_options_parameter())?;
    MkfsOptions::parse(filesystem, options).err().map(|error| error.to_string())
}

/// Returns the parameters that neither the controller nor csi-provisioner reads.
fn unknown_parameters(flavor: ApiFlavor, class: &StorageClass) -> impl Iterator<Item = &str> {
    let known =
        [flavor.device_class_parameter(), flavor.lvcreate_option_class_parameter(), flavor.mkfs_options_parameter()];
    let keys = class.parameters.iter().flatten().map(|(key, _)| key.as_str());
    keys.filter(move |key| !known.contains(key) && !FSTYPE.contains(key) && !key.starts_with(RESERVED))
}

//! Checks of the CSIDriver object and of its owner.

use jiff::SignedDuration;
use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec};
use kube_core::ResourceExt as _;
use serde_json::json;
use topolvm_api::ApiFlavor;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::manifests;
use crate::mode::Mode;
use crate::mode_detection::{mode, pod_webhook};
use crate::read_error::{ReadError, read};
use crate::shell;

/// Annotation with the namespace of the Helm release that owns an object.
const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// Age of the last renewal after which a Lease has no living holder, even if the clocks differ.
const ABANDONED_AFTER: SignedDuration = SignedDuration::from_mins(5);

fn find(facts: &Facts) -> Result<Option<&CSIDriver>, ReadError> {
    Ok(read(&facts.drivers)?.iter().find(|driver| driver.name_any() == facts.flavor.driver_name()))
}

pub(super) fn object(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let name = facts.flavor.driver_name();
    let Some(driver) = find(facts)? else {
        let remedy = format!("apply {}", manifests::csi_driver(facts.flavor));
        return Ok(vec![Finding::fail(format!("CSIDriver {name} does not exist"), remedy)]);
    };
    let mut findings = find_setting_problems(facts.flavor, &driver.spec);
    findings.extend(find_capacity_problem(facts, &driver.spec));
    Ok(Finding::ok_if_none(findings, format!("CSIDriver {name} matches the manifests")))
}

/// Returns the settings with which kubelet does not do what our programs expect.
fn find_setting_problems(flavor: ApiFlavor, spec: &CSIDriverSpec) -> Vec<Finding> {
    // The first two cannot be changed in place
    let (name, manifest) = (flavor.driver_name(), manifests::csi_driver(flavor));
    let again = format!("kubectl delete csidriver {name}, and apply {manifest}");
    let mut findings = Vec::new();
    // If it is unset, the kubelet waits for an attachment that no component performs
    if spec.attach_required != Some(false) {
        let found = "attachRequired is not false: pods wait for an attachment that no component performs";
        findings.push(Finding::fail(found, again.clone()));
    }
    let modes: Vec<_> = spec.volume_lifecycle_modes.iter().flatten().map(String::as_str).collect();
    // None means Persistent, according to the API
    if !modes.is_empty() && modes != ["Persistent"] {
        let found = format!("volumeLifecycleModes are {}, but the driver supports only Persistent", modes.join(", "));
        findings.push(Finding::fail(found, again));
    }
    if spec.pod_info_on_mount != Some(true) {
        let remedy = format!("apply {manifest}");
        findings.push(Finding::warn("podInfoOnMount is not true, as in the manifests", remedy));
    }
    findings
}

/// Returns the problem when kube-scheduler learns of free space in no way, or in two: the extender takes the place of
/// storage capacity, and needs the webhook for pods.
fn find_capacity_problem(facts: &Facts, spec: &CSIDriverSpec) -> Option<Finding> {
    match (spec.storage_capacity.unwrap_or_default(), mode(facts), pod_webhook(facts)) {
        (false, Mode::Capacity, _) => Some(
            Finding::fail(
                "storageCapacity is not true, and the webhook for the scheduler extender does not exist: \
                    kube-scheduler does not consider free space",
                "enable storage capacity tracking: kubectl patch csidriver",
            )
            .with_commands([enable_storage_capacity(facts)]),
        ),
        (false, Mode::Extender, None) => Some(Finding::fail(
            "topolvm-controller runs with --scheduling-mode=extender, but the webhook for pods does not exist: \
                kube-scheduler does not consider free space",
            format!(
                "apply {}, or set --scheduling-mode=capacity for topolvm-controller and storageCapacity: true in the \
                    CSIDriver",
                manifests::webhooks(facts.flavor)
            ),
        )),
        (true, Mode::Extender, _) => Some(Finding::warn(
            "storageCapacity is true, and the webhook for the scheduler extender exists too",
            "choose one of them; see docs/webhooks.md",
        )),
        (false, Mode::Extender, Some(_)) | (true, Mode::Capacity, _) => None,
    }
}

/// Returns the command that makes kube-scheduler use CSIStorageCapacity objects of our driver.
pub(super) fn enable_storage_capacity(facts: &Facts) -> String {
    // `add` also changes an existing member
    let patch = json!([{"op": "add", "path": "/spec/storageCapacity", "value": true}]);
    shell::patch(None, "csidriver", facts.flavor.driver_name(), &patch)
}

pub(super) fn owner(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let (name, namespace) = (facts.flavor.driver_name(), facts.namespace.as_str());
    let mut findings = Vec::new();
    let remove = |who: &str| format!("remove {who}, or set its namespace with -n if you meant that installation");
    let release = find(facts)?.and_then(|driver| driver.annotations().get(RELEASE_NAMESPACE));
    if let Some(release) = release.filter(|release| *release != namespace) {
        findings.push(Finding::fail(
            format!("the CSIDriver {name} belongs to a Helm release in the namespace {release}"),
            remove("that release"),
        ));
    }
    let workloads = read(&facts.workloads)?;
    for other in workloads.iter().filter(|other| other.namespace != namespace) {
        findings.push(Finding::fail(
            format!("{} in the namespace {} also runs {}", other.name, other.namespace, other.role.program()),
            remove("it"),
        ));
    }
    let leases = read(&facts.provisioner_leases)?;
    for lease in leases {
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
        let lives = renewed.is_some_and(|renewed| facts.now.duration_since(renewed.0) < ABANDONED_AFTER);
        let other = lease.namespace().unwrap_or_default();
        if other != namespace && lives && !holder.is_empty() {
            let found =
                format!("a csi-provisioner in the namespace {other} ({holder}) also provisions volumes of {name}");
            findings.push(Finding::fail(found, remove("it")));
        }
    }
    Ok(Finding::ok_if_none(findings, format!("no program outside of {namespace} runs {name}")))
}

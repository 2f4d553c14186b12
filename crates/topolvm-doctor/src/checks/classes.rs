//! Checks of StorageClasses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube_core::ResourceExt as _;
use topolvm_api::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY, FILESYSTEMS, MkfsOptions, claim_names};

use super::recreation;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::{self, class_of, describe_pods, device_class, list_names, unscheduled};
use crate::read_error::{ReadError, read};

/// StorageClass parameters of csi-provisioner for the type of the filesystem; the second is the old name.
pub(super) const FSTYPE: [&str; 2] = ["csi.storage.k8s.io/fstype", "fstype"];
/// Prefix of StorageClass parameters that csi-provisioner reads itself.
const RESERVED: &str = "csi.storage.k8s.io/";

/// Device classes of each node that has any; the default class under the empty name.
type Offers = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let ours = facts.our_classes()?;
    let nodes = read(&facts.nodes)?;
    if ours.is_empty() {
        let found = format!("no StorageClass has the provisioner {}", facts.flavor.driver_name());
        let remedy = "apply one such as deploy/manifests/base/storageclass.yaml";
        return Ok(vec![Finding::warn(found, remedy)]);
    }
    let of_node = |node: &Node| {
        let classes = objects::device_classes(facts.flavor, node).into_iter().map(|(class, _)| class);
        (node.name_any(), classes.collect::<BTreeSet<_>>())
    };
    let offers: Offers = nodes.iter().map(of_node).filter(|(_, classes)| !classes.is_empty()).collect();
    let findings = ours.iter().flat_map(|class| {
        let mut findings = find_parameter_problems(facts.flavor, class);
        findings.extend(find_device_class_problem(facts, class, &offers));
        findings.extend(find_binding_problem(class));
        findings
    });
    let findings = findings.collect();
    let names: Vec<_> = ours.iter().map(|class| class.name_any()).collect();
    Ok(Finding::ok_if_none(findings, format!("parameters of {} are valid", names.join(", "))))
}

fn find_parameter_problems(flavor: ApiFlavor, class: &StorageClass) -> Vec<Finding> {
    let name = class.name_any();
    let correct = format!("make the StorageClass {name} anew without it; its parameters cannot be changed");
    let mut findings = Vec::new();
    if let Some(found) = find_refused_parameter(flavor, class) {
        findings.push(Finding::fail(format!("StorageClass {name}: {found}"), correct.clone()));
    }
    for key in unknown_parameters(flavor, class) {
        let found = format!("StorageClass {name}: the parameter {key:?} is not known, and has no effect");
        findings.push(Finding::warn(found, correct.clone()).with_commands([recreation::without_parameter(class, key)]));
    }
    findings
}

/// Returns the problem of a StorageClass whose device class no node has, or not each one has as its default.
fn find_device_class_problem(facts: &Facts, class: &StorageClass, offers: &Offers) -> Option<Finding> {
    let (name, wanted) = (class.name_any(), device_class(facts.flavor, class));
    let lacking: Vec<_> =
        offers.iter().filter(|(_, classes)| !classes.contains(wanted)).map(|(node, _)| node).collect();
    // Without any agent nothing can be said; that there is none is told elsewhere
    if lacking.is_empty() {
        return None;
    }
    let known: BTreeSet<_> = offers.values().flatten().map(String::as_str).filter(|class| !class.is_empty()).collect();
    let known: Vec<_> = known.into_iter().collect();
    let anew = known.first().map(|first| recreation::with_device_class(facts.flavor, class, first));
    let remedy =
        format!("add it to lvmd.yaml of a node, or make the StorageClass anew with one of {}", known.join(", "));
    let waiting = describe_waiting(facts, &name);
    if lacking.len() < offers.len() {
        // That a named class is on some nodes is what names are for
        return wanted.is_empty().then(|| {
            let found = format!(
                "StorageClass {name} names no device class, and {} have no default class: it makes no volume there",
                list_names(lacking)
            );
            Finding::warn(found, remedy.replace("add it to", "mark a class as default in")).with_commands(anew)
        });
    }
    let found = if wanted.is_empty() {
        format!(
            "StorageClass {name} names no device class, and no node has a default class: its pods ask for \
                {DEFAULT_DEVICE_CLASS_KEY}, and nodes have {} alone{waiting}",
            known.join(", ")
        )
    } else {
        format!("StorageClass {name}: no node has the device class {wanted:?}{waiting}")
    };
    let remedy = if wanted.is_empty() { remedy.replace("add it to", "mark a class as default in") } else { remedy };
    Some(Finding::fail(found, remedy).with_commands(anew))
}

/// Returns the pods without a node that have claims of a StorageClass, to follow on a sentence.
fn describe_waiting(facts: &Facts, class: &str) -> String {
    let (Ok(pods), Ok(claims)) = (&facts.pods, &facts.claims) else { return String::new() };
    let classes: Vec<_> = facts.classes.iter().flatten().filter(|one| one.name_any() == class).collect();
    let of_class: BTreeSet<_> = claims
        .iter()
        .filter(|claim| class_of(claim, &classes).is_some())
        .map(|claim| (claim.namespace(), claim.name_any()))
        .collect();
    let waits = |pod: &&Pod| {
        unscheduled(pod).is_some()
            && claim_names(pod).into_iter().any(|claim| of_class.contains(&(pod.namespace(), claim)))
    };
    let waiting: Vec<_> = pods.iter().filter(waits).collect();
    if waiting.is_empty() { String::new() } else { format!("; waiting: {}", describe_pods(&waiting)) }
}

fn find_binding_problem(class: &StorageClass) -> Option<Finding> {
    (!objects::waits_for_pods(class)).then(|| {
        Finding::warn(
            format!("StorageClass {}: volumes are bound before it is known where their pods can run", class.name_any()),
            "make it anew with volumeBindingMode: WaitForFirstConsumer",
        )
        .with_commands([recreation::waiting_for_pods(class)])
    })
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
    let known = [
        flavor.device_class_parameter(),
        flavor.lvcreate_option_class_parameter(),
        flavor.mkfs_options_parameter(),
        flavor.rebuild(),
        flavor.rebuild_keep(),
    ];
    let keys = class.parameters.iter().flatten().map(|(key, _)| key.as_str());
    keys.filter(move |key| !known.contains(key) && !FSTYPE.contains(key) && !key.starts_with(RESERVED))
}

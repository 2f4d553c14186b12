//! Checks of StorageClasses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube_core::ResourceExt as _;
use topolvm_api::{ApiFlavor, DEFAULT_DEVICE_CLASS_KEY, FILESYSTEMS, MkfsOptions, claim_names};

use super::recreation::{self, Change};
use super::switch::provisions_itself;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::{self, class_of, describe_pods, device_class, list_names, unscheduled};
use crate::read_error::{ReadError, read};

/// StorageClass parameter of csi-provisioner for the type of the filesystem.
const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// Its old name, which csi-provisioner takes in upper and lower case.
const OLD_FSTYPE: &str = "fstype";
/// Prefix of StorageClass parameters that csi-provisioner reads itself.
const RESERVED: &str = "csi.storage.k8s.io/";

/// Device classes of each node that has any; the default class under the empty name.
type Offers = BTreeMap<String, BTreeSet<String>>;

/// A finding about a StorageClass, and the change of the class that fixes it, if one change is enough.
struct Fault {
    finding: Finding,
    change: Option<Change>,
}

impl From<Finding> for Fault {
    fn from(finding: Finding) -> Self {
        Self { finding, change: None }
    }
}

/// Returns true for the parameters with the type of the filesystem.
fn is_fstype(key: &str) -> bool {
    key == FSTYPE || key.eq_ignore_ascii_case(OLD_FSTYPE)
}

/// Returns the values of these parameters.
fn fstypes(class: &StorageClass) -> impl Iterator<Item = &str> {
    let parameters = class.parameters.iter().flatten();
    parameters.filter(|(key, _)| is_fstype(key)).map(|(_, value)| value.as_str())
}

/// Returns true if a StorageClass names this filesystem.
pub(super) fn makes(class: &StorageClass, filesystem: &str) -> bool {
    fstypes(class).any(|value| value == filesystem)
}

pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let ours = facts.our_classes()?;
    let nodes = read(&facts.nodes)?;
    if ours.is_empty() {
        let found = format!("no StorageClass has the provisioner {}", facts.flavor.driver_name());
        let remedy = match facts.flavor {
            ApiFlavor::TopoLvm => "apply a StorageClass such as deploy/manifests/base/storageclass.yaml",
            ApiFlavor::Legacy => "apply a StorageClass such as deploy/manifests/components/legacy/storageclass.yaml",
        };
        return Ok(vec![Finding::warn(found, remedy)]);
    }
    let of_node = |node: &Node| {
        let classes = objects::device_classes(facts.flavor, node).into_iter().map(|(class, _)| class);
        (node.name_any(), classes.collect::<BTreeSet<_>>())
    };
    let offers: Offers = nodes.iter().map(of_node).filter(|(_, classes)| !classes.is_empty()).collect();
    let findings = ours.iter().flat_map(|class| {
        let mut faults = find_parameter_problems(facts.flavor, class);
        faults.extend(find_device_class_problem(facts, class, &offers));
        faults.extend(find_binding_problem(class));
        faults.extend(find_topology_problem(facts.flavor, class).filter(|_| !provisions_itself(facts)));
        with_one_command(facts.flavor, class, faults)
    });
    let findings = findings.collect();
    let names: Vec<_> = ours.iter().map(|class| class.name_any()).collect();
    Ok(Finding::ok_if_none(findings, format!("parameters of {} are valid", names.join(", "))))
}

/// Adds to the findings about a StorageClass the command that fixes all of them that a command can fix.
fn with_one_command(flavor: ApiFlavor, class: &StorageClass, faults: Vec<Fault>) -> Vec<Finding> {
    let changes: Vec<_> = faults.iter().filter_map(|fault| fault.change.clone()).collect();
    let command = recreation::recreate(flavor, class, &changes);
    let finish = |fault: Fault| match fault.change {
        Some(_) => fault.finding.with_commands([command.clone()]),
        None => fault.finding,
    };
    faults.into_iter().map(finish).collect()
}

fn find_parameter_problems(flavor: ApiFlavor, class: &StorageClass) -> Vec<Fault> {
    let name = class.name_any();
    let correct = format!("recreate the StorageClass {name} without it; parameters cannot be changed");
    let mut faults: Vec<Fault> = Vec::new();
    if let Some(found) = find_refused_parameter(flavor, class) {
        faults.push(Finding::fail(format!("StorageClass {name}: {found}"), correct.clone()).into());
    }
    for key in unknown_parameters(flavor, class) {
        let found = format!("StorageClass {name}: the parameter {key:?} is unknown and has no effect");
        let finding = Finding::warn(found, correct.clone());
        faults.push(Fault { finding, change: Some(Change::Without(key.to_owned())) });
    }
    faults
}

/// Returns the problem of a StorageClass whose device class no node has, or not each one has as its default.
fn find_device_class_problem(facts: &Facts, class: &StorageClass, offers: &Offers) -> Option<Fault> {
    let (name, wanted) = (class.name_any(), device_class(facts.flavor, class));
    let lacking: Vec<_> =
        offers.iter().filter(|(_, classes)| !classes.contains(wanted)).map(|(node, _)| node).collect();
    // Without any agent nothing is known; another check reports that there is none
    if lacking.is_empty() {
        return None;
    }
    let is_nowhere = lacking.len() == offers.len();
    let known: BTreeSet<_> = offers.values().flatten().map(String::as_str).filter(|class| !class.is_empty()).collect();
    let known: Vec<_> = known.into_iter().collect();
    let list = known.join(", ");
    if !wanted.is_empty() {
        // That a named class is on some nodes is what names are for
        return is_nowhere.then(|| find_unoffered_class(&name, wanted, &list, &describe_waiting(facts, &name)).into());
    }
    // Only the administrator can choose among several classes
    let change = if let [only] = known.as_slice() { Some(Change::DeviceClass((*only).to_owned())) } else { None };
    let remedy = format!(
        "set default: true for a class in lvmd.yaml of a node, or recreate the StorageClass with one of {list}"
    );
    let finding = if is_nowhere {
        let waiting = describe_waiting(facts, &name);
        let found = format!(
            "StorageClass {name} names no device class, and no node has a default class: its pods request \
                {DEFAULT_DEVICE_CLASS_KEY}, and nodes have only {list}{waiting}"
        );
        Finding::fail(found, remedy)
    } else {
        let found = format!(
            "StorageClass {name} names no device class, and {} have no default class: its volumes cannot be created \
             there",
            list_names(lacking)
        );
        Finding::warn(found, remedy)
    };
    Some(Fault { finding, change })
}

/// Returns the finding about a device class that no node offers. Until a pod waits for it that is no failure: an
/// optional class is offered once there is a volume group for it.
fn find_unoffered_class(name: &str, wanted: &str, known: &str, waiting: &str) -> Finding {
    let found = format!("StorageClass {name}: no node has the device class {wanted:?}{waiting}");
    let remedy = format!(
        "check lvmd.yaml of the nodes: an optional class is offered as soon as its volume group exists (vgcreate); \
            otherwise add the class, or recreate the StorageClass with one of {known}"
    );
    if waiting.is_empty() { Finding::warn(found, remedy) } else { Finding::fail(found, remedy) }
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

fn find_binding_problem(class: &StorageClass) -> Option<Fault> {
    (!objects::waits_for_pods(class)).then(|| {
        let finding = Finding::warn(
            format!(
                "StorageClass {}: volumes are bound before kube-scheduler selects nodes for their pods",
                class.name_any()
            ),
            "recreate it with volumeBindingMode: WaitForFirstConsumer",
        );
        Fault { finding, change: Some(Change::WaitForPods) }
    })
}

/// Returns the problem of a StorageClass that allows its volumes by labels of Nodes which kubelet does not know to be a
/// topology of the driver: kube-scheduler selects a node by any label, and csi-provisioner then refuses it, unlike the
/// provisioner of topolvm-controller.
fn find_topology_problem(flavor: ApiFlavor, class: &StorageClass) -> Option<Fault> {
    let terms = class.allowed_topologies.iter().flatten();
    let keys = terms.flat_map(|term| term.match_label_expressions.iter().flatten()).map(|one| one.key.as_str());
    let others: BTreeSet<_> = keys.filter(|key| *key != flavor.topology_key()).collect();
    if others.is_empty() {
        return None;
    }
    let (name, key) = (class.name_any(), flavor.topology_key());
    let found = format!(
        "StorageClass {name}: allowedTopologies has {}, for which csi-provisioner creates no volumes",
        list_names(others)
    );
    let remedy = format!(
        "recreate it with node names under the key {key}, or select nodes in the pods (nodeSelector, affinity)"
    );
    Some(Finding::fail(found, remedy).into())
}

/// Returns why the controller would refuse the parameters of a StorageClass.
fn find_refused_parameter(flavor: ApiFlavor, class: &StorageClass) -> Option<String> {
    let parameters = class.parameters.as_ref()?;
    if fstypes(class).count() > 1 {
        return Some(format!("csi-provisioner rejects {FSTYPE} together with {OLD_FSTYPE}"));
    }
    let filesystem = fstypes(class).next().unwrap_or_default();
    if !filesystem.is_empty() && !FILESYSTEMS.contains(&filesystem) {
        return Some(format!("the filesystem {filesystem:?} is not supported; supported: {}", FILESYSTEMS.join(", ")));
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
    keys.filter(move |key| !known.contains(key) && !is_fstype(key) && !key.starts_with(RESERVED))
}

//! Checks of lvmd, volume groups, volumes and thin pools as nodes report them: in metrics, and where these cannot be
//! read in their NodeStorage.

use std::collections::BTreeSet;

use topolvm_api::NodeStorage;

use super::disks::{find_blocked, find_failed};
use crate::facts::Facts;
use crate::finding::Finding;
use crate::metrics::{Metrics, Sample};
use crate::objects::list_names;
use crate::read_error::ReadError;

/// Percentage from which a thin pool is warned of.
const NEARLY_FULL: f64 = 80.0;
/// Percentage from which volumes in a thin pool are degraded, as also reported to CSI.
const FULL: f64 = 95.0;
/// Remedy for an lvmd that the agent does not reach.
const START_LVMD: &str = "check that lvmd runs on the node, its log, that both use the same socket, and that lvmd.yaml \
    is valid; otherwise lvmd does not start (lvmd check-config FILE)";
/// Remedy for a disk that exists and that LVM does not scan: lvmdevices(8), and `global_filter` of lvm.conf(5).
pub(super) const HIDDEN_DISK: &str = "a disk that lsblk lists and pvs does not is hidden from LVM by the devices file \
    (add it with lvmdevices --adddev DEVICE), or by filter or global_filter of lvm.conf (lvmconfig \
    devices/global_filter)";

#[expect(clippy::unnecessary_wraps, reason = "as a check function is")]
pub(super) fn check(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let mut findings = Vec::new();
    for metrics in &facts.metrics {
        match &metrics.samples {
            Ok(samples) => {
                findings.extend(samples.iter().filter_map(|sample| find_problem(metrics, sample)));
                findings.extend(find_missing_groups(metrics, samples));
            }
            Err(error) => findings.push(Finding::unknown(error)),
        }
    }
    let objects = facts.node_storage.as_deref().unwrap_or_default();
    findings.extend(objects.iter().filter(|object| !is_measured(facts, object)).flat_map(find_reported_problems));
    findings.extend(objects.iter().filter(|object| is_measured(facts, object)).flat_map(find_blocked));
    let operations = facts.disk_operations.as_deref().unwrap_or_default();
    findings.extend(operations.iter().filter_map(|operation| find_failed(operation, facts.now)));
    // The known facts are reported all the same
    match facts.registered_nodes() {
        Ok(nodes) => findings.extend(find_silent_nodes(facts, &nodes)),
        Err(error) => findings.push(Finding::unknown(&error)),
    }
    let ok = match (facts.metrics.len(), objects.len()) {
        (0, 0) => "no node has the driver".to_owned(),
        (0, nodes) => format!("{nodes} nodes report healthy volume groups and thin pools"),
        (pods, _) => format!("volume groups and thin pools of {pods} pods are healthy"),
    };
    Ok(Finding::ok_if_none(findings, ok))
}

/// Returns whether all metrics of the node could be read, which contain the same as its object and more.
fn is_measured(facts: &Facts, object: &NodeStorage) -> bool {
    let mut of_node = facts.metrics.iter().filter(|metrics| metrics.node == object.name()).peekable();
    of_node.peek().is_some() && of_node.all(|metrics| metrics.samples.is_ok())
}

/// Returns the problems that a node itself reports of its volume groups, disks and thin pools.
fn find_reported_problems(object: &NodeStorage) -> Vec<Finding> {
    let Some(status) = &object.status else { return Vec::new() };
    let node = object.name();
    // All else is lvmd's last report
    let is_unknown =
        status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "Unknown");
    let silent = is_unknown.then(|| Finding::fail(format!("node {node}: topolvm-node cannot reach lvmd"), START_LVMD));
    let remedy = format!("kubectl get nodestorages {node} -o yaml shows its volume groups, disks and thin pools");
    let reported =
        status.problems.iter().map(|problem| Finding::fail(format!("node {node}: {problem}"), remedy.clone()));
    let pools = status.thin_pools.iter().flat_map(|pool| {
        let name = format!("{}/{}", pool.volume_group, pool.name);
        let parts = [("data", pool.data_percent), ("metadata", pool.metadata_percent)];
        parts.into_iter().filter_map(move |(what, percent)| {
            let percent = f64::from(percent?);
            rate_pool(format!("node {node}: thin pool {name}: {percent} % of {what} used"), percent)
        })
    });
    silent.into_iter().chain(reported).chain(pools).collect()
}

/// Returns the finding about a thin pool with this fill; none while it has enough free space.
fn rate_pool(found: String, percent: f64) -> Option<Finding> {
    let remedy = "extend the pool (lvextend, with --poolmetadatasize for metadata), or delete volumes and snapshots";
    if percent < NEARLY_FULL {
        return None;
    }
    Some(if percent >= FULL { Finding::fail(found, remedy) } else { Finding::warn(found, remedy) })
}

/// Returns the finding about nodes with the driver of which no pod has metrics, because the programs are no pods there
/// or do not run.
fn find_silent_nodes(facts: &Facts, registered: &BTreeSet<String>) -> Option<Finding> {
    let objects = facts.node_storage.as_deref().unwrap_or_default().iter().map(NodeStorage::name);
    let reported: BTreeSet<_> = facts.metrics.iter().map(|metrics| metrics.node.as_str()).chain(objects).collect();
    let silent: Vec<_> = registered.iter().filter(|node| !reported.contains(node.as_str())).collect();
    (!silent.is_empty()).then(|| {
        Finding::undetermined(
            format!("no metrics of pods report the volume groups and thin pools of node {}", list_names(silent)),
            "if topolvm-node does not run as a pod there, read its metrics and those of lvmd on the node \
             (docs/monitoring.md), or run vgs and lvs; otherwise check why its pod is not ready",
        )
    })
}

/// Returns the device classes whose volume group has no size: LVM does not see it. The size of the group of a thin pool
/// may be unknown.
fn find_missing_groups(metrics: &Metrics, samples: &[Sample]) -> Vec<Finding> {
    let pools = samples.iter().filter(|sample| sample.name == "topolvm_thinpool_size_bytes" && sample.value > 0.0);
    let pools: BTreeSet<_> = pools.filter_map(|pool| pool.label("device_class")).collect();
    let sizes = samples.iter().filter(|sample| sample.name == "topolvm_volumegroup_size_bytes" && sample.value <= 0.0);
    let missing = sizes.filter_map(|sample| sample.label("device_class")).filter(|class| !pools.contains(class));
    let finding = |class: &str| {
        Finding::fail(
            format!("node {}: the volume group of device class {class} does not exist", metrics.node),
            format!(
                "run vgs on the node: it was removed or renamed, or LVM lacks its disk; {HIDDEN_DISK}; or set another \
                 volume group in lvmd.yaml"
            ),
        )
    };
    missing.map(finding).collect()
}

fn find_problem(metrics: &Metrics, sample: &Sample) -> Option<Finding> {
    let node = &metrics.node;
    find_pool_problem(node, sample)
        .or_else(|| find_lvmd_problem(node, sample))
        .or_else(|| find_group_problem(node, sample))
        .or_else(|| find_volume_problem(node, sample))
        .or_else(|| find_mount_problem(node, sample))
}

fn find_pool_problem(node: &str, sample: &Sample) -> Option<Finding> {
    let class = sample.label("device_class").unwrap_or_default();
    match sample.name.as_str() {
        "topolvm_thinpool_data_percent" | "topolvm_thinpool_metadata_percent" => {
            let what = if sample.name.contains("metadata") { "metadata" } else { "data" };
            let found = format!("node {node}: thin pool of device class {class}: {} % of {what} used", sample.value);
            rate_pool(found, sample.value)
        }
        _ => None,
    }
}

fn find_lvmd_problem(node: &str, sample: &Sample) -> Option<Finding> {
    let class = sample.label("device_class").unwrap_or_default();
    let is_set = sample.value > 0.0;
    let finding = match sample.name.as_str() {
        "topolvm_lvmd_connected" if !is_set => {
            Finding::fail(format!("node {node}: topolvm-node cannot reach lvmd"), START_LVMD)
        }
        "topolvm_lvmd_device_class_used_spare_bytes" if is_set => Finding::warn(
            format!("node {node}: {} bytes of the spare of device class {class} are in use", sample.value),
            "no volume can be created in the class: remove foreign LVs from its volume group (lvs), extend it \
             (vgextend), or set another spare-gb in lvmd.yaml",
        ),
        "topolvm_lvmd_device_class_refused" if is_set => Finding::warn(
            format!("node {node}: LVM creates no volumes in device class {class}, whatever is free"),
            format!(
                "kubectl get nodestorages {node} -o yaml shows the reason (refusal), and so does the log of lvmd. \
                 Volumes are created on other nodes meanwhile; lvmd uses the class again when the reason is gone"
            ),
        ),
        "topolvm_lvmd_config_last_reload_successful" if !is_set => Finding::warn(
            format!("node {node}: lvmd.yaml was changed, but lvmd rejects it"),
            "lvmd logs the mistakes, and lvmd check-config FILE lists them: a syntax error, or device classes that \
             count space twice because they name the same volume group or thin pool. lvmd keeps using the previous \
             configuration",
        ),
        _ => return None,
    };
    Some(finding)
}

fn find_group_problem(node: &str, sample: &Sample) -> Option<Finding> {
    let group = sample.label("volume_group").unwrap_or_default();
    let is_set = sample.value > 0.0;
    let finding = match sample.name.as_str() {
        "topolvm_lvmd_volume_group_stale" if is_set => Finding::fail(
            format!("node {node}: LVM cannot report the volume group {group}"),
            format!(
                "lvmd logs the message of LVM; vgs -o +vg_uuid,pv_name on the node lists the groups. If two on disks \
                 of the node have the same name, rename the one that lvmd does not use (vgrename UUID NAME). Do \
                 not change a group on a loop device, an LV or a disk of another machine: it is in a pod's \
                 volume, or in use there; {HIDDEN_DISK}"
            ),
        ),
        "topolvm_lvmd_volume_group_missing_physical_volumes" if is_set => Finding::fail(
            format!("node {node}: {} physical volumes of the volume group {group} are missing", sample.value),
            format!("reattach the disk; docs/lvmd.md explains what works without it; {HIDDEN_DISK}"),
        ),
        "topolvm_lvmd_volume_group_pools_ignoring_discards" if is_set => Finding::warn(
            format!("node {node}: {} thin pools of the volume group {group} ignore discards", sample.value),
            "space of files that are deleted in their volumes is not released in the pool, even with fstrim: run \
             lvchange --discards passdown VG/POOL while pool and volumes are not active; thin_pool_discards of \
             lvm.conf applies to new pools",
        ),
        _ => return None,
    };
    Some(finding)
}

fn find_mount_problem(node: &str, sample: &Sample) -> Option<Finding> {
    let count = sample.value;
    (sample.name == "topolvm_stacked_mounts" && count > 0.0).then(|| {
        Finding::warn(
            format!("node {node}: {count} mounts are stacked on the directory of topolvm-node's socket"),
            "earlier versions added mounts with each start; topolvm-node unmounts at its start those that show that \
             very directory, and logs why it could not, or that other mounts are among them. On the node: run findmnt \
             -l | grep plugins/topolvm, umount them until none remains, and restart the pod",
        )
    })
}

fn find_volume_problem(node: &str, sample: &Sample) -> Option<Finding> {
    let count = sample.value;
    match sample.name.as_str() {
        "topolvm_inactive_volumes" if count > 0.0 => Some(Finding::warn(
            format!("node {node}: {count} LVs of ready LogicalVolumes are not active"),
            "topolvm-node logs their names, and activates each when a pod uses it. Configure LVM to activate volumes \
             at boot (auto_activation_volume_list of lvm.conf), or activate them: lvchange -ay -K VG/LV",
        )),
        _ => None,
    }
}

//! `disk list`: a row for each disk, from the NodeStorage of its node.

use cli_runtime::connection::Cluster;
use cli_runtime::output::{self, Format, Row};
use cli_runtime::request;
use cli_runtime::size::human;
use cli_runtime::table::table;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use serde::Serialize;
use topolvm_api::{
    DiskOperation, DiskStatus, DiskVolumeStatus, NodeStorage, NodeStorageStatus, Phase, PhysicalVolumeStatus,
    VolumeGroupStatus, parse_bytes,
};

use crate::error::Error;

/// A disk of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DiskRow {
    pub(super) node: String,
    /// Path of its device; empty of a missing one that lvmd has never seen.
    pub(super) path: String,
    /// Path in /dev/disk/by-id; empty if it has none, or if lvmd has no disk groups.
    pub(super) stable_name: String,
    /// LVM's UUID; empty if it is in no volume group.
    pub(super) uuid: String,
    /// The volume group that it is in; empty for none.
    pub(super) volume_group: String,
    /// The disk group that it is in, or that selects it.
    pub(super) disk_group: String,
    pub(super) model: String,
    pub(super) size_bytes: Option<u64>,
    pub(super) free_bytes: Option<u64>,
    /// In a volume group `member`, `not-allocatable`, `missing`, `moving`, `blocked` or `empty`, and else the state
    /// of lvmd.
    pub(super) state: String,
    /// Bytes that are still to be moved.
    pub(super) remaining_bytes: Option<u64>,
    /// It leaves its volume group when it is empty.
    pub(super) leaves: bool,
    /// The type of its last disk operation, unless that has succeeded; empty if there is none.
    pub(super) operation: String,
    /// The phase of the operation.
    pub(super) operation_phase: String,
    pub(super) message: String,
    /// Volumes with a part on it, while it is missing or is to be emptied, with their states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<DiskVolumeStatus>,
    /// Number of further ones.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) omitted_volumes: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Row for DiskRow {
    fn name(&self) -> Option<String> {
        Some(format!("{} {}", self.node, self.identity()))
    }
}

impl DiskRow {
    /// Returns its unambiguous name: its UUID, or else its stable name or path.
    pub(super) fn identity(&self) -> &str {
        if self.uuid.is_empty() { self.name_to_add() } else { &self.uuid }
    }

    /// Returns the name by which a blank disk is added.
    pub(super) fn name_to_add(&self) -> &str {
        let name = self.short_name();
        if name.is_empty() { &self.path } else { name }
    }

    /// Returns its name in /dev/disk/by-id; empty if it has none.
    pub(super) fn short_name(&self) -> &str {
        self.stable_name.rsplit('/').next().unwrap_or_default()
    }

    /// Returns true if LVM has an evacuation of the disk on record.
    pub(super) fn is_evacuated(&self) -> bool {
        matches!(self.state.as_str(), "moving" | "blocked" | "empty")
    }

    /// Returns the disk for people.
    pub(super) fn label(&self) -> String {
        let path = if self.path.is_empty() { "a missing disk" } else { &self.path };
        let names = [self.short_name(), &self.uuid].into_iter().filter(|name| !name.is_empty());
        let names = names.collect::<Vec<_>>().join(", ");
        if names.is_empty() { path.to_owned() } else { format!("{path} ({names})") }
    }
}

/// Prints the disks of a node, or of all nodes.
pub(super) async fn list(cluster: &Cluster, node: Option<&str>, format: Format) -> Result<(), Error> {
    let storage = if let Some(node) = node {
        vec![super::get(cluster, node).await?]
    } else {
        let api: Api<NodeStorage> = Api::all_with(cluster.client.clone(), &cluster.flavor);
        request::list(&api, &cluster.flavor, "").await?
    };
    let operations = super::request::list(cluster, node).await?;
    let rows: Vec<_> = storage.iter().flat_map(|storage| rows_of(storage, &operations)).collect();
    Ok(output::print(&output::render(format, &rows, |wide| in_table(&rows, wide))?)?)
}

/// Returns a row for each disk of a node: those of volume groups first.
pub(super) fn rows_of(storage: &NodeStorage, operations: &[DiskOperation]) -> Vec<DiskRow> {
    let Some(status) = &storage.status else { return Vec::new() };
    let members = status.physical_volumes().map(|(group, pv)| member(storage, status, group, pv));
    let others = status.disks.iter().filter(|disk| !disk.is_member()).map(|disk| other(storage, disk));
    members.chain(others).map(|row| row.with_operation(operations)).collect()
}

fn member(
    storage: &NodeStorage,
    status: &NodeStorageStatus,
    group: &VolumeGroupStatus,
    pv: &PhysicalVolumeStatus,
) -> DiskRow {
    // The path of a missing one may be another's by now
    let disk = status.disks.iter().find(|disk| !pv.missing && disk.path == pv.path).cloned().unwrap_or_default();
    let evacuation = pv.evacuation.clone().unwrap_or_default();
    let state = match (pv.missing, &pv.evacuation, pv.allocatable) {
        (true, ..) => "missing",
        (false, Some(evacuation), _) => evacuation.state.as_str(),
        (false, None, true) => "member",
        (false, None, false) => "not-allocatable",
    };
    DiskRow {
        node: storage.name().to_owned(),
        path: pv.path.clone(),
        stable_name: disk.stable_name,
        uuid: pv.uuid.clone(),
        volume_group: group.name.clone(),
        disk_group: disk.disk_group,
        model: disk.model,
        size_bytes: bytes(pv.size.as_ref()),
        free_bytes: bytes(pv.free.as_ref()),
        state: state.to_owned(),
        remaining_bytes: bytes(evacuation.remaining.as_ref()),
        leaves: evacuation.remove,
        message: evacuation.message,
        volumes: pv.volumes.clone(),
        omitted_volumes: pv.omitted_volumes,
        ..DiskRow::default()
    }
}

fn other(storage: &NodeStorage, disk: &DiskStatus) -> DiskRow {
    DiskRow {
        node: storage.name().to_owned(),
        path: disk.path.clone(),
        stable_name: disk.stable_name.clone(),
        disk_group: disk.disk_group.clone(),
        model: disk.model.clone(),
        size_bytes: bytes(disk.size.as_ref()),
        state: disk.state.clone(),
        message: disk.message.clone(),
        ..DiskRow::default()
    }
}

impl DiskRow {
    /// Adds its last operation, unless that has succeeded. A failure is the first thing to know about a disk.
    fn with_operation(mut self, operations: &[DiskOperation]) -> Self {
        let last = operations.iter().filter(|operation| self.is_disk_of(operation));
        let last =
            last.max_by_key(|operation| (!operation.phase().is_final(), operation.metadata.creation_timestamp.clone()));
        let Some(last) = last.filter(|last| last.phase() != Phase::Succeeded) else { return self };
        let type_ = last.spec.type_.as_str();
        type_.clone_into(&mut self.operation);
        last.phase().as_str().clone_into(&mut self.operation_phase);
        let message = last.status.as_ref().map(|status| status.operation.message.as_str()).unwrap_or_default();
        match last.phase() {
            Phase::Failed => self.message = format!("{type_} has failed: {message}"),
            Phase::Pending if !message.is_empty() => self.message = format!("{type_} waits: {message}"),
            Phase::Pending | Phase::Running | Phase::Succeeded | Phase::Canceled => {}
        }
        self
    }

    /// Returns true if an operation is about this disk.
    fn is_disk_of(&self, operation: &DiskOperation) -> bool {
        let names = [self.uuid.as_str(), &self.stable_name, self.short_name(), &self.path];
        let is_named = |name: &str| !name.is_empty() && names.contains(&name);
        let is_it = match operation.disk_uuid() {
            Some(uuid) => uuid == self.uuid,
            None => is_named(&operation.spec.disk),
        };
        is_it && operation.spec.node_name == self.node
    }
}

fn bytes(size: Option<&Quantity>) -> Option<u64> {
    size.and_then(|size| parse_bytes(size).ok())
}

pub(super) fn in_table(rows: &[DiskRow], wide: bool) -> String {
    let size = |bytes: Option<u64>| bytes.map(human).unwrap_or_default();
    table(
        rows,
        wide,
        &[
            ("NODE", false, &|row| row.node.clone()),
            ("DISK", false, &|row| row.path.clone()),
            ("NAME", false, &|row| row.short_name().to_owned()),
            ("SIZE", false, &|row| size(row.size_bytes)),
            ("FREE", false, &|row| size(row.free_bytes)),
            ("GROUP", false, &|row| {
                if row.volume_group.is_empty() { row.disk_group.clone() } else { row.volume_group.clone() }
            }),
            ("UUID", true, &|row| row.uuid.clone()),
            ("MODEL", true, &|row| row.model.clone()),
            ("STATE", false, &format_state),
            ("VOLUMES", true, &format_volumes),
            ("OPERATION", true, &|row| format!("{} {}", row.operation, row.operation_phase).trim_end().to_owned()),
            ("REASON", false, &|row| row.message.clone()),
        ],
    )
}

/// Formats the volumes as `a lost, b degraded, 3 more`.
fn format_volumes(row: &DiskRow) -> String {
    let named = row.volumes.iter().map(|volume| format!("{} {}", volume.name, volume.state));
    let more = (row.omitted_volumes > 0).then(|| format!("{} more", row.omitted_volumes));
    named.chain(more).collect::<Vec<_>>().join(", ")
}

/// Formats the state as `moving, 12Gi left, then it leaves`.
fn format_state(row: &DiskRow) -> String {
    let left = row.remaining_bytes.filter(|left| *left > 0).map(|left| format!("{} left", human(left)));
    let leaves = row.leaves.then(|| "then it leaves".to_owned());
    [Some(row.state.clone()), left, leaves].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

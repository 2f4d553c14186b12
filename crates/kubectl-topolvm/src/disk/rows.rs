//! `disk list`: a row for each disk, from the NodeStorage of its node.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use serde::Serialize;
use topolvm_api::{
    ApiFlavor, DiskStatus, DiskVolumeStatus, DiskWishStatus, NodeStorage, NodeStorageStatus, PhysicalVolumeStatus,
    VolumeGroupStatus, parse_bytes,
};

use crate::connection::Cluster;
use crate::error::Error;
use crate::output::{self, Format, Row};
use crate::request;
use crate::size::human;
use crate::table::table;

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
    /// In a volume group `member`, `not-allocatable`, `missing`, `moving`, `blocked` or `empty`, and else the verdict
    /// of lvmd.
    pub(super) state: String,
    /// Bytes that are still to be moved.
    pub(super) remaining_bytes: Option<u64>,
    /// It leaves its volume group when it is empty.
    pub(super) leaves: bool,
    /// The wish about it; empty if there is none.
    pub(super) wish: String,
    /// The state of the wish: `accepted`, `refused` or `waiting`.
    pub(super) wish_state: String,
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
    /// Returns what tells it from others for certain: its UUID, or else its stable name or path.
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
    let rows: Vec<_> = storage.iter().flat_map(|storage| rows_of(cluster.flavor, storage)).collect();
    output::print(&output::render(format, &rows, |wide| in_table(&rows, wide))?)
}

/// Returns a row for each disk of a node: those of volume groups first.
pub(super) fn rows_of(flavor: ApiFlavor, storage: &NodeStorage) -> Vec<DiskRow> {
    let Some(status) = &storage.status else { return Vec::new() };
    let members = status.physical_volumes().map(|(group, pv)| member(flavor, storage, status, group, pv));
    let others = status.disks.iter().filter(|disk| !disk.is_member()).map(|disk| other(flavor, storage, status, disk));
    members.chain(others).collect()
}

fn member(
    flavor: ApiFlavor,
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
    let wish = storage.disk_wishes(flavor).find(|(uuid, _)| *uuid == pv.uuid).map(|(_, text)| text);
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
    .wishing(wish, find_wish(status, |told| told.disk == pv.uuid && Some(told.wish.as_str()) == wish))
}

fn other(flavor: ApiFlavor, storage: &NodeStorage, status: &NodeStorageStatus, disk: &DiskStatus) -> DiskRow {
    let stands = storage.disks_to_add(flavor).into_iter().any(|name| disk.is_named(name));
    let told = find_wish(status, |told| told.wish == "add" && disk.is_named(&told.disk));
    DiskRow {
        node: storage.name().to_owned(),
        path: disk.path.clone(),
        stable_name: disk.stable_name.clone(),
        disk_group: disk.disk_group.clone(),
        model: disk.model.clone(),
        size_bytes: bytes(disk.size.as_ref()),
        state: disk.verdict.clone(),
        message: disk.message.clone(),
        ..DiskRow::default()
    }
    .wishing((stands || told.is_some()).then_some("add"), told)
}

impl DiskRow {
    /// Adds what is wished of it, and what has become of that. A refusal is what people have to know first.
    fn wishing(mut self, wish: Option<&str>, told: Option<&DiskWishStatus>) -> Self {
        let Some(wish) = wish else { return self };
        wish.clone_into(&mut self.wish);
        told.map_or("waiting", |told| &told.state).clone_into(&mut self.wish_state);
        match told {
            Some(told) if told.is_refused() => self.message = format!("{wish} is refused: {}", told.message),
            Some(told) if !told.is_accepted() && !told.message.is_empty() => {
                self.message = format!("{wish} waits: {}", told.message);
            }
            Some(_) | None => {}
        }
        self
    }
}

fn find_wish(status: &NodeStorageStatus, is_it: impl Fn(&DiskWishStatus) -> bool) -> Option<&DiskWishStatus> {
    status.disk_wishes.iter().find(|told| is_it(told))
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
            ("WISH", true, &|row| row.wish.clone()),
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

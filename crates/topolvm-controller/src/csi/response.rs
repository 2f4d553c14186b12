//! Builds CSI's response messages from volumes and snapshots.

use std::collections::HashMap;

use topolvm_api::ApiFlavor;
use topolvm_proto::csi as pb;
use topolvm_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use topolvm_proto::csi::volume_health::VolumeHealthEntry;

use super::topology;
use crate::node_informer::NodeInformer;
use crate::volumes::{ContentSource, Volume};

/// Builds CSI's message about a volume. `volume_context` is what the node needs to mount it.
pub(crate) fn volume(flavor: ApiFlavor, volume: Volume, volume_context: HashMap<String, String>) -> pb::Volume {
    pb::Volume {
        capacity_bytes: signed_bytes(volume.bytes),
        volume_id: volume.id,
        volume_context,
        content_source: volume.source.map(content_source),
        // Of the volume, not of the request: a repeated request may prefer another node by now
        accessible_topology: vec![topology::node_topology(flavor, volume.node)],
    }
}

/// Builds CSI's message about a snapshot, which can be used as soon as its LV exists.
pub(crate) fn snapshot(flavor: ApiFlavor, snapshot: Volume) -> pb::Snapshot {
    pb::Snapshot {
        // external-provisioner refuses a claim for less than this: not the real size, which LVM rounded up
        size_bytes: signed_bytes(snapshot.requested_bytes),
        snapshot_id: snapshot.id,
        source_volume_id: snapshot.source.map(|source| source.id().to_owned()).unwrap_or_default(),
        creation_time: snapshot
            .created
            .map(|time| prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }),
        ready_to_use: true,
        // CSI allows no deletion of a member alone
        group_snapshot_id: snapshot.group.map(|group| group.id).unwrap_or_default(),
        accessible_topology: vec![topology::node_topology(flavor, snapshot.node)],
    }
}

/// Builds CSI's message about a group of snapshots.
pub(crate) fn snapshot_group(flavor: ApiFlavor, id: String, members: Vec<Volume>) -> pb::VolumeGroupSnapshot {
    let snapshots: Vec<_> = members.into_iter().map(|member| snapshot(flavor, member)).collect();
    pb::VolumeGroupSnapshot {
        group_snapshot_id: id,
        creation_time: snapshots.first().and_then(|first| first.creation_time),
        ready_to_use: true,
        snapshots,
    }
}

/// Builds CSI's message about the health of a volume, as far as the controller knows it: that its Node is gone, or what
/// the node agent has written about its LV. The node reports the state of the LV itself.
pub(crate) fn volume_health(nodes: &NodeInformer, volume: Volume) -> pb::VolumeHealth {
    let node_gone = (!nodes.exists(&volume.node)).then(|| VolumeHealthEntry {
        status: pb::VolumeHealthErrorType::Inaccessible.into(),
        reason: "NodeGone".to_owned(),
        message: format!("the volume is on node {}, which no longer exists in this cluster", volume.node),
    });
    // The same as in NodeGetVolumeHealth
    let lost = volume.lost.map(|message| VolumeHealthEntry {
        status: pb::VolumeHealthErrorType::DataLoss.into(),
        reason: "LogicalVolumeMissing".to_owned(),
        message,
    });
    let health_statuses = node_gone.into_iter().chain(lost).collect();
    pb::VolumeHealth { volume_id: volume.id, health_statuses }
}

/// Converts a number of bytes to CSI's signed type.
pub(crate) fn signed_bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn content_source(source: ContentSource) -> pb::VolumeContentSource {
    let kind = match source {
        ContentSource::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
        ContentSource::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
    };
    pb::VolumeContentSource { r#type: Some(kind) }
}

//! Answers: from what there is to CSI's messages.

use std::collections::HashMap;

use topolvm_api::ApiFlavor;
use topolvm_proto::csi as pb;
use topolvm_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use topolvm_proto::csi::volume_health::VolumeHealthEntry;

use super::topology;
use crate::node_informer::Nodes;
use crate::volumes::{SourceId, Volume};

/// A volume, with what its mounts have to know.
pub(crate) fn volume(flavor: ApiFlavor, volume: Volume, volume_context: HashMap<String, String>) -> pb::Volume {
    pb::Volume {
        capacity_bytes: signed(volume.bytes),
        volume_id: volume.id,
        volume_context,
        content_source: volume.source.map(content_source),
        // Of the volume, not of the request: a repeated request may prefer another node by now
        accessible_topology: vec![topology::of_node(flavor, volume.node)],
    }
}

/// A snapshot. It can be used as soon as its LV exists.
pub(crate) fn snapshot(flavor: ApiFlavor, snapshot: Volume) -> pb::Snapshot {
    pb::Snapshot {
        size_bytes: signed(snapshot.bytes),
        snapshot_id: snapshot.id,
        source_volume_id: snapshot.source.map(|source| source.id().to_owned()).unwrap_or_default(),
        creation_time: snapshot
            .created
            .map(|time| prost_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }),
        ready_to_use: true,
        accessible_topology: vec![topology::of_node(flavor, snapshot.node)],
        ..pb::Snapshot::default()
    }
}

/// What the controller can tell about the health of a volume: that its Node is gone, or what the node agent has written of its LV. The state of
/// the LV itself is the node's to tell.
pub(crate) fn health(nodes: &Nodes, volume: Volume) -> pb::VolumeHealth {
    let node_gone = (!nodes.exists(&volume.node)).then(|| VolumeHealthEntry {
        status: pb::VolumeHealthErrorType::Inaccessible.into(),
        reason: "NodeGone".to_owned(),
        message: format!("the volume is on node {}, which is no Node of this cluster any more", volume.node),
    });
    // In the words of NodeGetVolumeHealth
    let lost = volume.lost.map(|message| VolumeHealthEntry {
        status: pb::VolumeHealthErrorType::DataLoss.into(),
        reason: "LogicalVolumeMissing".to_owned(),
        message,
    });
    let health_statuses = node_gone.into_iter().chain(lost).collect();
    pb::VolumeHealth { volume_id: volume.id, health_statuses }
}

/// CSI counts bytes in a signed number.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn content_source(source: SourceId) -> pb::VolumeContentSource {
    let kind = match source {
        SourceId::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
        SourceId::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
    };
    pb::VolumeContentSource { r#type: Some(kind) }
}

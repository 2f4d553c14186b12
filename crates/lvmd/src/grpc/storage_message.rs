//! Turns the storage report into messages.

use lvmd_engine::{ClassEntry, DiskVolume, EvacuationEntry, GroupEntry, PhysicalVolumeEntry, PoolEntry, StorageReport};
use topolvm_proto::lvmd as proto;

use super::disk_message;

pub(super) fn watch_response(report: &StorageReport) -> proto::WatchStorageResponse {
    proto::WatchStorageResponse {
        volume_groups: report.groups.iter().map(volume_group).collect(),
        device_classes: report.classes.iter().map(device_class).collect(),
        thin_pools: report.pools.iter().map(thin_pool).collect(),
        problems: report.problems.clone(),
        disk_report: report.disks.as_deref().map(disk_message::disk_report),
    }
}

fn volume_group(group: &GroupEntry) -> proto::VolumeGroupItem {
    let item = proto::VolumeGroupItem {
        name: group.name.to_string(),
        stale_reason: group.stale_reason.clone().unwrap_or_default(),
        ..proto::VolumeGroupItem::default()
    };
    let Some(report) = &group.report else { return item };
    proto::VolumeGroupItem {
        found: true,
        uuid: report.uuid.clone(),
        size_bytes: report.size,
        free_bytes: report.free,
        extent_size_bytes: report.extent_size,
        physical_volumes: report.pvs.iter().map(physical_volume).collect(),
        logical_volumes: report.volumes,
        snapshots: report.snapshots,
        ..item
    }
}

fn physical_volume(pv: &PhysicalVolumeEntry) -> proto::PhysicalVolumeItem {
    proto::PhysicalVolumeItem {
        path: pv.path.clone().unwrap_or_default(),
        uuid: pv.uuid.clone(),
        size_bytes: pv.size,
        free_bytes: pv.free,
        dev_major: pv.device.map_or(0, |device| device.major),
        dev_minor: pv.device.map_or(0, |device| device.minor),
        missing: pv.device.is_none(),
        allocatable: pv.allocatable,
        evacuation: pv.evacuation.as_ref().map(evacuation),
        volumes: pv.volumes.volumes.iter().map(disk_volume).collect(),
        omitted_volumes: pv.volumes.omitted,
    }
}

fn disk_volume(volume: &DiskVolume) -> proto::DiskVolume {
    proto::DiskVolume { name: volume.name.clone(), state: volume.state.keyword().to_owned() }
}

fn evacuation(entry: &EvacuationEntry) -> proto::Evacuation {
    proto::Evacuation {
        state: entry.state.keyword().to_owned(),
        message: entry.message.clone(),
        remaining_bytes: entry.remaining,
        remove: entry.remove,
    }
}

fn device_class(class: &ClassEntry) -> proto::DeviceClassItem {
    proto::DeviceClassItem {
        name: class.name.clone(),
        default: class.default,
        volume_group: class.volume_group.to_string(),
        thin_pool: class.thin_pool.clone().unwrap_or_default(),
        size_bytes: class.size,
        free_bytes: class.free,
        refusal: class.refusal.clone().unwrap_or_default(),
    }
}

fn thin_pool(pool: &PoolEntry) -> proto::ThinPoolStatus {
    proto::ThinPoolStatus {
        name: pool.name.clone(),
        volume_group: pool.volume_group.to_string(),
        size_bytes: pool.size,
        data_percent: pool.data_percent.map(u32::from),
        metadata_percent: pool.metadata_percent.map(u32::from),
        problem: pool.problem.map(|problem| problem.to_string()).unwrap_or_default(),
    }
}

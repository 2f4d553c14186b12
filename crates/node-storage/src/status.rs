//! Converts lvmd's report of the storage into the status of a `NodeStorage`, without its conditions.

use topolvm_api::{
    DeviceClassStatus, DiskVolumeStatus, EvacuationStatus, NodeStorageStatus, PhysicalVolumeStatus, ThinPoolStatus,
    VolumeGroupStatus, format_bytes,
};
use topolvm_proto::lvmd::{
    DeviceClassItem, DiskVolume, Evacuation, PhysicalVolumeItem, ThinPoolStatus as ThinPoolItem, VolumeGroupItem,
    WatchStorageResponse,
};

use crate::disks::{cut, with_disks};

const MIB: u64 = 1 << 20;

/// Returns the status.
pub(crate) fn status_of(response: WatchStorageResponse) -> NodeStorageStatus {
    let WatchStorageResponse { volume_groups, device_classes, thin_pools, problems, disk_report } = response;
    let sum = |bytes: fn(&VolumeGroupItem) -> u64| volume_groups.iter().map(bytes).fold(0, u64::saturating_add);
    let status = NodeStorageStatus {
        size: Some(format_bytes(sum(|group| group.size_bytes))),
        free: Some(format_bytes(sum(|group| group.free_bytes))),
        volume_groups: volume_groups.into_iter().map(volume_group).collect(),
        device_classes: device_classes.into_iter().map(device_class).collect(),
        thin_pools: thin_pools.into_iter().map(thin_pool).collect(),
        problems,
        ..NodeStorageStatus::default()
    };
    with_disks(status, disk_report.unwrap_or_default())
}

fn volume_group(group: VolumeGroupItem) -> VolumeGroupStatus {
    let status = VolumeGroupStatus { name: group.name, stale_reason: group.stale_reason, ..Default::default() };
    if !group.found {
        return status;
    }
    let missing = group.physical_volumes.iter().filter(|pv| pv.missing).count();
    VolumeGroupStatus {
        uuid: group.uuid,
        size: Some(format_bytes(group.size_bytes)),
        free: Some(format_bytes(group.free_bytes)),
        extent_size: Some(format_bytes(group.extent_size_bytes)),
        missing_physical_volumes: u32::try_from(missing).unwrap_or(u32::MAX),
        physical_volumes: group.physical_volumes.into_iter().map(physical_volume).collect(),
        ..status
    }
}

fn physical_volume(pv: PhysicalVolumeItem) -> PhysicalVolumeStatus {
    let size = pv.size_bytes;
    PhysicalVolumeStatus {
        path: pv.path,
        uuid: pv.uuid,
        size: Some(format_bytes(pv.size_bytes)),
        free: Some(format_bytes(pv.free_bytes)),
        device: if pv.missing { String::new() } else { format!("{}:{}", pv.dev_major, pv.dev_minor) },
        missing: pv.missing,
        allocatable: pv.allocatable,
        evacuation: pv.evacuation.map(|evacuation| evacuation_status(evacuation, size)),
        volumes: pv.volumes.into_iter().map(disk_volume).collect(),
        omitted_volumes: pv.omitted_volumes,
    }
}

fn disk_volume(volume: DiskVolume) -> DiskVolumeStatus {
    DiskVolumeStatus { name: volume.name, state: volume.state }
}

/// Returns the progress of an evacuation. The remaining part is rounded up to whole percent of the disk: each percent
/// is one write, and none reports that nothing is left too early.
fn evacuation_status(evacuation: Evacuation, disk_size: u64) -> EvacuationStatus {
    let Evacuation { state, message, remaining_bytes, remove } = evacuation;
    let percent = (disk_size / 100).next_multiple_of(MIB).max(MIB);
    let remaining = remaining_bytes.div_ceil(percent).saturating_mul(percent).min(disk_size.max(remaining_bytes));
    EvacuationStatus { state, message: cut(message), remaining: Some(format_bytes(remaining)), remove }
}

fn device_class(class: DeviceClassItem) -> DeviceClassStatus {
    DeviceClassStatus {
        name: class.name,
        default: class.default,
        type_: if class.thin_pool.is_empty() { "thick" } else { "thin" }.to_owned(),
        volume_group: class.volume_group,
        thin_pool: class.thin_pool,
        size: Some(format_bytes(class.size_bytes)),
        free: Some(format_bytes(class.free_bytes)),
        refusal: cut(class.refusal),
    }
}

fn thin_pool(pool: ThinPoolItem) -> ThinPoolStatus {
    ThinPoolStatus {
        volume_group: pool.volume_group,
        name: pool.name,
        size: Some(format_bytes(pool.size_bytes)),
        data_percent: pool.data_percent,
        metadata_percent: pool.metadata_percent,
        problem: pool.problem,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn node_storage_status_has_everything_that_lvmd_reports() {
        let pv = PhysicalVolumeItem {
            path: "/dev/sdb".to_owned(),
            uuid: "p1".to_owned(),
            size_bytes: 8 << 30,
            free_bytes: 3 << 30,
            dev_major: 8,
            dev_minor: 16,
            missing: false,
            allocatable: true,
            evacuation: None,
            volumes: Vec::new(),
            omitted_volumes: 0,
        };
        let missing = PhysicalVolumeItem {
            path: String::new(),
            uuid: "p2".to_owned(),
            dev_major: 0,
            dev_minor: 0,
            missing: true,
            allocatable: false,
            evacuation: Some(Evacuation {
                state: "blocked".to_owned(),
                message: "it is missing".to_owned(),
                remaining_bytes: 5 << 30,
                remove: true,
            }),
            volumes: vec![DiskVolume { name: "v".to_owned(), state: "lost".to_owned() }],
            omitted_volumes: 3,
            ..pv
        };
        let group = VolumeGroupItem {
            name: "vg".to_owned(),
            found: true,
            uuid: "g".to_owned(),
            size_bytes: 16 << 30,
            free_bytes: 6 << 30,
            extent_size_bytes: 4 << 20,
            physical_volumes: vec![pv, missing],
            stale_reason: "LVM hangs".to_owned(),
            ..VolumeGroupItem::default()
        };
        let gone = VolumeGroupItem { name: "gone".to_owned(), ..VolumeGroupItem::default() };
        let class = DeviceClassItem {
            refusal: "LVM refuses".to_owned(),
            name: "thin".to_owned(),
            default: true,
            volume_group: "vg".to_owned(),
            thin_pool: "pool".to_owned(),
            size_bytes: 4 << 30,
            free_bytes: 40 << 30,
        };
        let pool = ThinPoolItem {
            name: "pool".to_owned(),
            volume_group: "vg".to_owned(),
            size_bytes: 4 << 30,
            data_percent: Some(0),
            metadata_percent: None,
            problem: "broken".to_owned(),
        };
        let status = status_of(WatchStorageResponse {
            volume_groups: vec![gone, group],
            device_classes: vec![class],
            thin_pools: vec![pool],
            problems: vec!["a disk is missing".to_owned()],
            disk_report: None,
        });
        let expected = json!({
            "size": "16Gi", "free": "6Gi",
            "volumeGroups": [
                {"name": "gone"},
                {
                    "name": "vg", "uuid": "g", "size": "16Gi", "free": "6Gi", "extentSize": "4Mi",
                    "missingPhysicalVolumes": 1, "staleReason": "LVM hangs",
                    "physicalVolumes": [
                        {
                            "path": "/dev/sdb", "uuid": "p1", "size": "8Gi", "free": "3Gi", "device": "8:16",
                            "allocatable": true,
                        },
                        {
                            "uuid": "p2", "size": "8Gi", "free": "3Gi", "missing": true, "allocatable": false,
                            "evacuation": {
                                "state": "blocked", "message": "it is missing", "remaining": "5166Mi", "remove": true,
                            },
                            "volumes": [{"name": "v", "state": "lost"}], "omittedVolumes": 3,
                        },
                    ],
                },
            ],
            "deviceClasses": [{
                "name": "thin", "default": true, "type": "thin", "volumeGroup": "vg", "thinPool": "pool", "size": "4Gi",
                "free": "40Gi", "refusal": "LVM refuses",
            }],
            "thinPools": [{"volumeGroup": "vg", "name": "pool", "size": "4Gi", "dataPercent": 0, "problem": "broken"}],
            "problems": ["a disk is missing"],
        });
        assert_eq!(serde_json::to_value(status).unwrap(), expected);
    }

    #[test]
    fn evacuation_remaining_is_rounded_up_to_a_percent() {
        let remaining = |remaining_bytes| {
            let evacuation = Evacuation { remaining_bytes, ..Evacuation::default() };
            evacuation_status(evacuation, 100 << 30).remaining.unwrap().0
        };
        assert_eq!([0, 1, 1 << 30, (1 << 30) + 1].map(remaining), ["0", "1Gi", "1Gi", "2Gi"]);
        assert_eq!(remaining((100 << 30) - 1), "100Gi");
    }
}

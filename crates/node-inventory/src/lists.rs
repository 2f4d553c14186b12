//! The entries of the lists, in the names and types of Carina's HTTP API. Values that lvmd does not report are empty or
//! 0.

use serde::Serialize;
use topolvm_proto::lvmd::{LogicalVolume, PhysicalVolumeItem, VolumeGroupItem, WatchStorageResponse};

/// Format of all physical volumes: LVM2 knows no other any more.
const FORMAT: &str = "lvm2";

/// A volume group.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceGroup {
    vg_name: String,
    /// The first of its physical volumes.
    pv_name: String,
    pv_count: usize,
    lv_count: u64,
    snap_count: u64,
    /// lvmd does not report it.
    vg_attr: &'static str,
    vg_size: u64,
    vg_free: u64,
    pvs: Vec<PhysicalVolume>,
}

/// A physical volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PhysicalVolume {
    pv_name: String,
    vg_name: String,
    pv_fmt: &'static str,
    pv_attr: &'static str,
    pv_size: u64,
    pv_free: u64,
}

/// A logical volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    lv_name: String,
    vg_name: String,
    lv_path: String,
    lv_size: u64,
    lv_kernel_major: u32,
    lv_kernel_minor: u32,
    origin: String,
    origin_size: u64,
    pool_lv: String,
    /// A figure of thin pools, of which none is a volume.
    thin_count: u64,
    lv_tags: String,
    /// A text, as in Carina; empty of volumes that are not thin.
    data_percent: String,
    lv_attr: String,
    lv_active: &'static str,
}

/// Returns the volume groups that LVM finds.
pub(crate) fn device_groups(storage: WatchStorageResponse) -> Vec<DeviceGroup> {
    storage.volume_groups.into_iter().filter(|group| group.found).map(DeviceGroup::from).collect()
}

impl From<VolumeGroupItem> for DeviceGroup {
    fn from(group: VolumeGroupItem) -> Self {
        let physical_volume = |pv: PhysicalVolumeItem| PhysicalVolume {
            pv_name: pv.path,
            vg_name: group.name.clone(),
            pv_fmt: FORMAT,
            pv_attr: match (pv.missing, pv.allocatable) {
                // Whether it was allocatable is not known any more
                (true, _) => "a-m",
                (false, true) => "a--",
                (false, false) => "u--",
            },
            pv_size: pv.size_bytes,
            pv_free: pv.free_bytes,
        };
        let pvs: Vec<_> = group.physical_volumes.into_iter().map(physical_volume).collect();
        Self {
            pv_name: pvs.first().map(|pv| pv.pv_name.clone()).unwrap_or_default(),
            pv_count: pvs.len(),
            lv_count: group.logical_volumes,
            snap_count: group.snapshots,
            vg_attr: "",
            vg_size: group.size_bytes,
            vg_free: group.free_bytes,
            vg_name: group.name,
            pvs,
        }
    }
}

impl From<LogicalVolume> for Volume {
    fn from(lv: LogicalVolume) -> Self {
        let lv_size = u64::try_from(lv.size_bytes).unwrap_or_default();
        Self {
            // No name has a slash in it: /dev/GROUP/VOLUME
            vg_name: lv.path.rsplit('/').nth(1).unwrap_or_default().to_owned(),
            lv_name: lv.name,
            lv_path: lv.path,
            lv_size,
            lv_kernel_major: lv.dev_major,
            lv_kernel_minor: lv.dev_minor,
            origin: lv.origin,
            origin_size: lv.origin_size_bytes,
            pool_lv: lv.thin_pool,
            thin_count: 0,
            lv_tags: lv.tags.join(","),
            data_percent: lv.thin_used_bytes.map(|used| percent(used, lv_size)).unwrap_or_default(),
            lv_attr: lv.attr,
            // No device has major number 0
            lv_active: if lv.dev_major == 0 { "" } else { "active" },
        }
    }
}

/// Writes a part of a whole in percent with two decimals, as LVM does.
fn percent(part: u64, whole: u64) -> String {
    let hundredths = u128::from(part).saturating_mul(10_000).checked_div(u128::from(whole)).unwrap_or_default();
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn a_volume_group_has_the_names_and_types_of_carina() {
        let pv = |path: &str, missing, allocatable| PhysicalVolumeItem {
            path: path.to_owned(),
            size_bytes: 8 << 30,
            free_bytes: 3 << 30,
            missing,
            allocatable,
            ..PhysicalVolumeItem::default()
        };
        let group = VolumeGroupItem {
            name: "vg".to_owned(),
            found: true,
            size_bytes: 24 << 30,
            free_bytes: 9 << 30,
            physical_volumes: vec![pv("/dev/sdb", false, true), pv("/dev/sdc", false, false), pv("", true, false)],
            logical_volumes: 5,
            snapshots: 1,
            ..VolumeGroupItem::default()
        };
        let gone = VolumeGroupItem { name: "gone".to_owned(), ..VolumeGroupItem::default() };
        let storage = WatchStorageResponse { volume_groups: vec![gone, group], ..WatchStorageResponse::default() };
        let pv = |name: &str, attr: &str| {
            json!({
                "pvName": name, "vgName": "vg", "pvFmt": "lvm2", "pvAttr": attr, "pvSize": 8_589_934_592_u64,
                "pvFree": 3_221_225_472_u64,
            })
        };
        let expected = json!([{
            "vgName": "vg", "pvName": "/dev/sdb", "pvCount": 3, "lvCount": 5, "snapCount": 1, "vgAttr": "",
            "vgSize": 25_769_803_776_u64, "vgFree": 9_663_676_416_u64,
            "pvs": [pv("/dev/sdb", "a--"), pv("/dev/sdc", "u--"), pv("", "a-m")],
        }]);
        assert_eq!(to_value(device_groups(storage)).unwrap(), expected);
    }

    #[test]
    fn a_volume_has_the_names_and_types_of_carina() {
        let thin = LogicalVolume {
            name: "uid".to_owned(),
            dev_major: 253,
            dev_minor: 4,
            tags: vec!["a".to_owned(), "b=c".to_owned()],
            size_bytes: 1 << 30,
            path: "/dev/my-vg/uid".to_owned(),
            attr: "Vwi-aotz--".to_owned(),
            thin_used_bytes: Some(1 << 28),
            origin: "source".to_owned(),
            origin_size_bytes: 1 << 29,
            thin_pool: "pool".to_owned(),
        };
        let expected = json!({
            "lvName": "uid", "vgName": "my-vg", "lvPath": "/dev/my-vg/uid", "lvSize": 1_073_741_824_u64,
            "lvKernelMajor": 253, "lvKernelMinor": 4, "origin": "source", "originSize": 536_870_912_u64,
            "poolLv": "pool", "thinCount": 0, "lvTags": "a,b=c", "dataPercent": "25.00", "lvAttr": "Vwi-aotz--",
            "lvActive": "active",
        });
        assert_eq!(to_value(Volume::from(thin.clone())).unwrap(), expected);

        let inactive = LogicalVolume { dev_major: 0, dev_minor: 0, thin_used_bytes: None, ..thin };
        let inactive = to_value(Volume::from(inactive)).unwrap();
        assert_eq!(
            (&inactive["lvActive"], &inactive["dataPercent"], &inactive["lvKernelMajor"]),
            (&json!(""), &json!(""), &json!(0))
        );
    }

    #[rstest]
    #[case(0, 100, "0.00")]
    #[case(1, 3, "33.33")]
    #[case(7, 100, "7.00")]
    #[case(u64::MAX, u64::MAX, "100.00")]
    #[case(1, 0, "0.00")]
    fn percents_are_written_as_lvm_writes_them(#[case] part: u64, #[case] whole: u64, #[case] expected: &str) {
        assert_eq!(percent(part, whole), expected);
    }
}

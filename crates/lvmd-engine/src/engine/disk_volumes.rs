//! The volumes on physical volumes that are missing or are to be emptied, and what the disk is to each of them.

use std::collections::{BTreeMap, BTreeSet};

use lvm::{Host, PhysicalVolume, UsedRange, VolumeGroup};
use lvmd_config::tags::EvacuationRequest;
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Shared;
use crate::storage_report::{DiskVolume, DiskVolumes, VolumeState};

/// Most volumes that are named of a disk.
const MOST: usize = 16;

/// Finds out which volumes are on the disks of a group that are missing or are to be emptied, if the group or what is
/// known of the disks has changed. Other groups cost nothing.
pub(super) async fn update_disk_volumes<R: Host>(shared: &Shared<R>, group: &Group) {
    let Some(known) = group.cached() else { return };
    let wanted: Vec<_> = known.pvs.iter().filter(|pv| is_missing(pv) || EvacuationRequest::of(pv).is_some()).collect();
    let failing = |pv: &PhysicalVolume| group.evacuation.failing_volumes(&pv.uuid);
    let facts = wanted.iter().map(|pv| (pv.uuid.clone(), is_missing(pv), failing(pv))).collect::<Vec<_>>();
    let version = (!wanted.is_empty()).then_some((known.seqno, facts));
    if !group.evacuation.begin_volumes(version) {
        return;
    }
    let mut found = BTreeMap::new();
    if !wanted.is_empty() {
        match shared.reader().used_ranges(&known.name).await {
            Ok(ranges) => found
                .extend(wanted.iter().map(|pv| (pv.uuid.clone(), volumes_on(&known, &ranges, &pv.uuid, &failing(pv))))),
            Err(error) => {
                let error = error_chain(&error);
                return tracing::debug!(vg = %known.name, error, "cannot see which volumes are on its disks");
            }
        }
    }
    if group.evacuation.set_volumes(found) {
        shared.publish();
    }
}

fn is_missing(pv: &PhysicalVolume) -> bool {
    pv.device.is_none()
}

/// Returns the volumes of which a part is on this physical volume, those in danger first.
fn volumes_on(known: &VolumeGroup, ranges: &[UsedRange], uuid: &str, failing: &BTreeSet<String>) -> DiskVolumes {
    let is_gone = |pv: &str| known.pv_of_uuid(pv).is_none_or(is_missing);
    let mut states = BTreeMap::<&str, VolumeState>::new();
    for range in ranges.iter().filter(|range| range.pv == uuid) {
        let Some(owner) = owner(range) else { continue };
        let state = match (is_gone(uuid), failing.contains(&range.volume)) {
            (true, _) if has_enough_images(known, ranges, range, is_gone) => VolumeState::Degraded,
            (true, _) => VolumeState::Lost,
            (false, true) => VolumeState::Failing,
            (false, false) => VolumeState::Whole,
        };
        let known = states.entry(owner).or_insert(state);
        *known = state.min(*known);
    }
    let mut volumes: Vec<_> =
        states.into_iter().map(|(name, state)| DiskVolume { name: name.to_owned(), state }).collect();
    volumes.sort_by_key(|volume| volume.state);
    let omitted = volumes.len().saturating_sub(MOST);
    volumes.truncate(MOST);
    DiskVolumes { volumes, omitted: u32::try_from(omitted).unwrap_or(u32::MAX) }
}

/// Returns the volume, or the thin pool, that a range is of; `None` for what holds no data, as the spare of pools.
pub(super) fn owner(range: &UsedRange) -> Option<&str> {
    if range.moved_from.is_some() || range.volume.starts_with("pvmove") || range.volume.ends_with("_pmspare") {
        return None;
    }
    let name = range.parent.as_deref().unwrap_or(&range.volume);
    Some(["_tdata", "_tmeta"].iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name))
}

/// Returns whether the RAID that a range is an image of can do without the images on missing disks.
fn has_enough_images(
    known: &VolumeGroup,
    ranges: &[UsedRange],
    range: &UsedRange,
    is_gone: impl Fn(&str) -> bool,
) -> bool {
    let Some(raid) = range.raid_volume() else { return false };
    let images = ranges.iter().filter(|other| other.raid_volume() == Some(raid));
    let number = |range: &UsedRange| range.volume.rsplit('_').next().unwrap_or_default().to_owned();
    let (mut all, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for image in images {
        all.insert(number(image));
        if is_gone(&image.pv) {
            gone.insert(number(image));
        }
    }
    let segment = known.volume(raid).and_then(|volume| volume.segment.as_ref());
    let spare = match segment.map(|segment| &*segment.segment_type) {
        Some("raid1") => all.len().saturating_sub(1),
        Some(kind) if kind.starts_with("raid6") => 2,
        Some(kind) if kind.starts_with("raid0") => 0,
        // Of a hidden one, such as the data of a pool, the kind is not known, and two of raid10 may be a pair
        _ => 1,
    };
    gone.len() <= spare
}

#[cfg(test)]
mod tests {
    use lvm::{Device, LogicalVolume, Segment};

    use super::*;

    fn pv(uuid: &str, is_there: bool) -> PhysicalVolume {
        PhysicalVolume {
            path: String::new(),
            uuid: uuid.to_owned(),
            device: is_there.then_some(Device { major: 8, minor: 0 }),
            size: 0,
            free: 0,
            free_areas: Vec::new(),
            allocatable: true,
            tags: Box::default(),
        }
    }

    fn volume(name: &str, segment_type: &str) -> LogicalVolume {
        LogicalVolume {
            name: name.into(),
            uuid: name.into(),
            path: "".into(),
            size: 0,
            device: None,
            origin: None,
            origin_size: None,
            pool: None,
            tags: Box::default(),
            attr: "rwi-a-r---".parse().unwrap(),
            data_percent: None,
            metadata_percent: None,
            metadata_size: None,
            segment: Some(Box::new(Segment { segment_type: segment_type.into(), images: 2 })),
        }
    }

    fn group(pvs: Vec<PhysicalVolume>) -> VolumeGroup {
        VolumeGroup {
            name: "vg".parse().unwrap(),
            uuid: "g".to_owned(),
            seqno: 1,
            size: 0,
            free: 0,
            extent_size: 4 << 20,
            missing_pvs: 0,
            tags: Box::default(),
            max_volumes: 0,
            is_writable: true,
            system_id: None,
            exported: false,
            pvs,
            volumes: vec![volume("m", "raid1"), volume("r", "raid5_ls")],
        }
    }

    fn range(pv: &str, volume: &str, parent: Option<&str>) -> UsedRange {
        UsedRange {
            pv: pv.to_owned(),
            start: 0,
            length: 1,
            volume: volume.to_owned(),
            parent: parent.map(str::to_owned),
            attr: "-wi-a-----".parse().unwrap(),
            segment_type: "linear".to_owned(),
            moved_from: None,
            disk_start: 0,
        }
    }

    fn ranges() -> Vec<UsedRange> {
        vec![
            range("a", "plain", None),
            range("b", "elsewhere", None),
            range("a", "m_rimage_0", Some("m")),
            range("a", "m_rmeta_0", Some("m")),
            range("b", "m_rimage_1", Some("m")),
            range("a", "r_rimage_0", Some("r")),
            range("b", "r_rimage_1", Some("r")),
            range("c", "r_rimage_2", Some("r")),
            range("a", "pool_tdata", Some("pool")),
            range("c", "lvol0_pmspare", None),
            range("c", "pvmove0", None),
        ]
    }

    fn reported(pvs: Vec<PhysicalVolume>, uuid: &str, failing: &[&str]) -> Vec<(String, &'static str)> {
        let failing = failing.iter().map(|name| (*name).to_owned()).collect();
        let reported = volumes_on(&group(pvs), &ranges(), uuid, &failing);
        reported.volumes.into_iter().map(|volume| (volume.name, volume.state.keyword())).collect()
    }

    fn expected(volumes: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        volumes.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect()
    }

    #[test]
    fn missing_disk_loses_volumes_and_degrades_mirrors() {
        let pvs = vec![pv("a", false), pv("b", true), pv("c", true)];
        let all = [("plain", "lost"), ("pool", "lost"), ("m", "degraded"), ("r", "degraded")];
        assert_eq!(reported(pvs, "a", &[]), expected(&all));
    }

    #[test]
    fn two_missing_disks_break_mirrors_and_parity() {
        let pvs = vec![pv("a", false), pv("b", false), pv("c", true)];
        assert_eq!(reported(pvs, "b", &[]), expected(&[("elsewhere", "lost"), ("m", "lost"), ("r", "lost")]));
    }

    #[test]
    fn volumes_of_present_disk_are_whole_or_failing() {
        let pvs = || vec![pv("a", true), pv("b", true), pv("c", true)];
        let all = [("plain", "failing"), ("m", "whole"), ("pool", "whole"), ("r", "whole")];
        assert_eq!(reported(pvs(), "a", &["plain"]), expected(&all));
        assert_eq!(reported(pvs(), "c", &[]), expected(&[("r", "whole")]));
    }

    #[test]
    fn long_list_names_the_first_volumes() {
        let ranges: Vec<_> = (0..20).map(|number| range("a", &format!("v{number:02}"), None)).collect();
        let reported = volumes_on(&group(vec![pv("a", true)]), &ranges, "a", &["v19".to_owned()].into());
        assert_eq!((reported.volumes.len(), reported.omitted, reported.volumes[0].name.as_str()), (16, 4, "v19"));
    }
}

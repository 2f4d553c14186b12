//! Volume groups that are renamed, lack a disk, or exist twice.

use anyhow::Result;

use super::bed::Bed;

pub(super) const ALERTS: [&str; 4] =
    ["TopolvmVolumeGroupMissing", "TopolvmPhysicalVolumeMissing", "TopolvmVolumeGroupStale", "TopolvmLvmFailing"];

/// The second group of a name is created where LVM does not see the first.
const INJECT: &str = "
vgrename -qq renamed elsewhere
truncate -s 64M /run/copy
copy=$(losetup -f --show /run/copy)
vgcreate -qqy --devices $copy twice $copy
losetup -d $(losetup -nO NAME -j /run/pulled)";

const REPAIR: &str = "
losetup -d $(losetup -nO NAME -j /run/copy)
losetup -f /run/pulled
vgrename -qq elsewhere renamed";

pub(super) fn take_groups_away(bed: &Bed<'_>) -> Result<()> {
    bed.script(INJECT)?;
    // csi-provisioner retries
    bed.apply_claim("twice", "twice")?;
    let findings = [
        ("the volume group of device class renamed does not exist", "run vgs on the node"),
        ("physical volumes of the volume group pulled are missing", "reattach the disk"),
        ("LVM cannot report the volume group twice", "vgrename UUID NAME"),
    ];
    let fired = bed.wait_for_alerts(&ALERTS).and_then(|()| bed.wait_for_storage_findings(&findings));
    bed.script(REPAIR)?;
    fired?;
    bed.wait_bound("twice")?;
    bed.delete(&["pvc/twice"])?;
    // Failures of the last quarter of an hour count
    let [gauges @ .., _] = &ALERTS;
    bed.wait_for_end(gauges)
}

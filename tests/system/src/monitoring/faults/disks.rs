//! Volume groups that are renamed, lack a disk, or exist twice.

use anyhow::Result;

use super::setup::Setup;

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

pub(super) fn take_groups_away(setup: &Setup<'_>) -> Result<()> {
    setup.script(INJECT)?;
    // csi-provisioner retries
    setup.apply_claim("twice", "twice")?;
    let findings = [
        ("the volume group of device class renamed does not exist", "run vgs on the node"),
        ("physical volumes of the volume group pulled are missing", "reattach the disk"),
        ("LVM cannot report the volume group twice", "vgrename UUID NAME"),
    ];
    let fired = setup.wait_for_alerts(&ALERTS).and_then(|()| setup.wait_for_storage_findings(&findings));
    setup.script(REPAIR)?;
    fired?;
    setup.wait_bound("twice")?;
    setup.delete(&["pvc/twice"])?;
    // Failures of the last quarter of an hour count
    let [gauges @ .., _] = &ALERTS;
    setup.wait_for_end(gauges)
}

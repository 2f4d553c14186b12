//! A volume group in which another program creates LVs: first the available space shrinks, then the spare is used.

use anyhow::Result;

use super::bed::Bed;

pub(super) const ALERTS: [&str; 2] = [FULL_SOON, SPARE_USED];
const FULL_SOON: &str = "TopolvmDeviceClassFullSoon";
const SPARE_USED: &str = "TopolvmSpareUsed";

pub(super) fn fill_class(bed: &Bed<'_>) -> Result<()> {
    // Of 2 GiB one is spare
    bed.script("lvcreate -qqy -Wn -Zn -n theirs -L 700m tight")?;
    bed.wait_for_alerts(&[FULL_SOON])?;
    bed.script("lvextend -qqy -l +100%FREE tight/theirs")?;
    bed.wait_for_alerts(&[SPARE_USED])?;
    let finding = ("bytes of the spare of device class tight are in use", "remove foreign LVs");
    bed.wait_for_storage_findings(&[finding])?;
    bed.script("lvremove -qqfy tight/theirs")?;
    bed.wait_for_end(&ALERTS)
}

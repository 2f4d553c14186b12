//! A volume group in which another program creates LVs: first the available space shrinks, then the spare is used.

use anyhow::Result;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 2] = [FULL_SOON, SPARE_USED];
const FULL_SOON: &str = "TopolvmDeviceClassFullSoon";
const SPARE_USED: &str = "TopolvmSpareUsed";

pub(super) fn fill_class(setup: &Setup<'_>) -> Result<()> {
    // Of 2 GiB one is spare
    setup.script("lvcreate -qqy -Wn -Zn -n theirs -L 700m tight")?;
    setup.wait_for_alerts(&[FULL_SOON])?;
    setup.script("lvextend -qqy -l +100%FREE tight/theirs")?;
    setup.wait_for_alerts(&[SPARE_USED])?;
    let finding = ("bytes of the spare of device class tight are in use", "remove foreign LVs");
    setup.wait_for_storage_findings(&[finding])?;
    setup.script("lvremove -qqfy tight/theirs")?;
    setup.wait_for_end(&ALERTS)
}

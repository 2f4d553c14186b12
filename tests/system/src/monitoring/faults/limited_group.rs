//! A volume group that has reached its limit of logical volumes, so that LVM creates no more.

use anyhow::Result;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 1] = ["TopolvmDeviceClassRefused"];

const INJECT: &str = "
lvcreate -qqy -Wn -Zn -l 1 -n only tight
vgchange -qq -l 1 tight";

const REPAIR: &str = "
vgchange -qq -l 0 tight
lvremove -qqfy tight/only";

pub(super) fn limit_volumes(setup: &Setup<'_>) -> Result<()> {
    setup.script(INJECT)?;
    let finding = ("LVM creates no volumes in device class tight", "kubectl get nodestorages");
    let fired = setup.wait_for_alerts(&ALERTS).and_then(|()| setup.wait_for_storage_findings(&[finding]));
    setup.script(REPAIR)?;
    fired?;
    setup.wait_for_end(&ALERTS)
}

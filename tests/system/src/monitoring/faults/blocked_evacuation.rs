//! A disk that is to be emptied, with a volume that lvmd does not move.

use anyhow::Result;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 1] = ["TopolvmEvacuationBlocked"];

/// Tags the disk as lvmd does for an evacuation, without lvmd: it would refuse to evacuate this one.
const INJECT: &str = "
vgchange -qq --addtag topolvm.io/disk-group=pulled pulled
lvcreate -qqy -l 4 -n origin pulled /dev/ubdh
lvcreate -qqy -s -l 2 -n cow pulled/origin
pvchange -qq -x n --addtag topolvm.io/evacuate=keep:0 /dev/ubdh";

const REPAIR: &str = "
pvchange -qq -x y --deltag topolvm.io/evacuate=keep:0 /dev/ubdh
lvremove -qqfy pulled/origin
vgchange -qq --deltag topolvm.io/disk-group=pulled pulled";

pub(super) fn block_evacuation(setup: &Setup<'_>) -> Result<()> {
    setup.script(INJECT)?;
    let findings = [("the disk /dev/ubdh of volume group pulled cannot be emptied", "do what it says")];
    let fired = setup.wait_for_alerts(&ALERTS).and_then(|()| setup.wait_for_storage_findings(&findings));
    setup.script(REPAIR)?;
    fired?;
    setup.wait_for_end(&ALERTS)
}

//! A disk that has errors where a removed volume is to be wiped.

use anyhow::Result;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 1] = ["TopolvmWipeFailing"];

/// Lets all blocks fail except LVM's metadata.
const INJECT: &str = "
end=$(blockdev --getsz /dev/mapper/weak)
printf '0 2048 linear /dev/ubdf 2048\\n2048 %d error\\n' $((end - 2048)) >/run/weak.table
dmsetup suspend --noudevsync --noflush weak
dmsetup load weak /run/weak.table
dmsetup resume --noudevsync weak";

const REPAIR: &str = "
end=$(blockdev --getsz /dev/mapper/weak)
dmsetup suspend --noudevsync --noflush weak
dmsetup load weak --table \"0 $end linear /dev/ubdf 2048\"
dmsetup resume --noudevsync weak";

pub(super) fn fail_to_wipe(setup: &Setup<'_>) -> Result<()> {
    setup.apply_claim("wiped", "wiped")?;
    setup.wait_bound("wiped")?;
    setup.script(INJECT)?;
    setup.delete(&["pvc/wiped"])?;
    let fired = setup.wait_for_alerts(&ALERTS);
    setup.script(REPAIR)?;
    fired?;
    setup.wait_for_end(&ALERTS)
}

//! A process holds the lock of a volume group: LVM waits for it, and the calls of csi-provisioner time out.

use anyhow::Result;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 3] = ["TopolvmLvmSlow", "TopolvmProvisioningSlow", "TopolvmProvisioningFailing"];

const CLAIMS: [&str; 3] = ["slow-1", "slow-2", "slow-3"];
/// Time in seconds for which the lock is held: as long as three calls of csi-provisioner.
const HELD: u8 = 30;

pub(super) fn hold_lock(setup: &Setup<'_>) -> Result<()> {
    setup.script(&format!("setsid flock /run/lock/lvm/V_myvg1 sleep {HELD} </dev/null >/dev/null 2>&1 &"))?;
    CLAIMS.iter().try_for_each(|claim| setup.apply_claim(claim, "ssd"))?;
    setup.wait_for_alerts(&ALERTS)?;
    CLAIMS.iter().try_for_each(|claim| setup.wait_bound(claim))?;
    setup.delete(&CLAIMS.map(|claim| format!("pvc/{claim}")).each_ref().map(String::as_str))
}

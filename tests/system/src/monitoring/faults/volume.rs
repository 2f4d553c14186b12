//! A pod that fills its filesystem.

use anyhow::Result;

use super::bed::{Bed, USED};

pub(super) const ALERTS: [&str; 1] = ["TopolvmVolumeFullSoon"];

pub(super) fn fill_filesystem(bed: &Bed<'_>) -> Result<()> {
    let run = |script: &str| bed.kubectl(&["exec", USED, "--", "sh", "-c", script]);
    // About a fifth of it is left
    run("dd if=/dev/zero of=/data/filler bs=1M count=85 2>/dev/null && sync")?;
    bed.wait_for_alerts(&ALERTS)?;
    run("rm /data/filler && sync")?;
    bed.wait_for_end(&ALERTS)
}

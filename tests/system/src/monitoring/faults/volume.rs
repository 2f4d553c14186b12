//! A pod that fills its filesystem.

use anyhow::Result;

use super::setup::{Setup, USED};

pub(super) const ALERTS: [&str; 1] = ["TopolvmVolumeFullSoon"];

pub(super) fn fill_filesystem(setup: &Setup<'_>) -> Result<()> {
    let run = |script: &str| setup.kubectl(&["exec", USED, "--", "sh", "-c", script]);
    // About a fifth of it is left
    run("dd if=/dev/zero of=/data/filler bs=1M count=85 2>/dev/null && sync")?;
    setup.wait_for_alerts(&ALERTS)?;
    run("rm /data/filler && sync")?;
    setup.wait_for_end(&ALERTS)
}

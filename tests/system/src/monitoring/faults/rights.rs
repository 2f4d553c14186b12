//! topolvm-controller without its rights: webhooks cannot read claims, and the extender cannot be probed.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::setup::{Setup, USED};
use crate::manifests::{VolumeMode, pod};

pub(super) const ALERTS: [&str; 2] = ["TopolvmReconcileErrors", "TopolvmWebhookFailing"];

pub(super) fn take_rights_away(setup: &Setup<'_>) -> Result<()> {
    let bindings = ["topolvm-system:topolvm-controller", "topolvm-system:controller-webhooks"];
    setup.kubectl(&[&["delete", "clusterrolebinding"][..], &bindings].concat())?;
    setup.kubectl_there(&["delete", "rolebinding", "topolvm-controller-extender-probe"])?;
    let file = setup.cluster.directory().join("refused.json");
    fs::write(&file, pod("refused", USED, VolumeMode::Filesystem).to_string()).context("write a pod")?;
    let file = file.to_string_lossy();
    setup.prometheus.wait_for_alerts(&ALERTS, || {
        let created = setup.kubectl(&["create", "--dry-run=server", "-f", &file]);
        ensure!(created.is_err(), "the webhook has answered without rights");
        Ok(())
    })?;
    setup.restore_product()
}

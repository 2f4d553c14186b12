//! topolvm-controller without its rights: webhooks cannot read claims, and the extender cannot be probed.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::bed::{Bed, USED};
use crate::manifests::{VolumeMode, pod};

pub(super) const ALERTS: [&str; 2] = ["TopolvmReconcileErrors", "TopolvmWebhookFailing"];

pub(super) fn take_rights_away(bed: &Bed<'_>) -> Result<()> {
    let bindings = ["topolvm-system:topolvm-controller", "topolvm-system:controller-webhooks"];
    bed.kubectl(&[&["delete", "clusterrolebinding"][..], &bindings].concat())?;
    bed.kubectl_there(&["delete", "rolebinding", "topolvm-controller-extender-probe"])?;
    let file = bed.cluster.directory().join("refused.json");
    fs::write(&file, pod("refused", USED, VolumeMode::Filesystem).to_string()).context("write a pod")?;
    let file = file.to_string_lossy();
    bed.prometheus.wait_for_alerts(&ALERTS, || {
        let created = bed.kubectl(&["create", "--dry-run=server", "-f", &file]);
        ensure!(created.is_err(), "the webhook has answered without rights");
        Ok(())
    })?;
    bed.restore_product()
}

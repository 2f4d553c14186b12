//! Deletion of volumes whose node does not exist any more.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::Body;
use crate::fixture::{Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] =
    &[("stale_volumes_of_vanished_nodes_go_and_all_others_stay", delete_stale_volumes)];

fn delete_stale_volumes(fixture: &Fixture) -> Result<()> {
    fixture.with_controller(&["--stale-period=1s", "--cleanup-interval=1s"], || {
        fixture.create_node("alive")?;
        for (name, node) in
            [("forgotten", "vanished"), ("referred", "vanished"), ("alive", "alive"), ("kept", "vanished")]
        {
            fixture.create_volume(name, node)?;
        }
        let uid = fixture.value(LV, "referred", ".metadata.uid")?;
        let made = json!({"status": {"volumeID": uid}}).to_string();
        fixture.kubectl(&["patch", LV, "referred", "--subresource=status", "--type=merge", "-p", &made])?;
        fixture.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "referrer"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "none",
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": "topolvm.io", "volumeHandle": uid},
            },
        }))?;
        fixture.kubectl(&["delete", LV, "forgotten", "referred", "alive", "--wait=false"])?;
        fixture.wait("--for=delete", LV, "forgotten")?;
        fixture.wait_event("LogicalVolume", "forgotten", "Normal StaleVolumeForgotten", "vanished")?;
        // Both have been checked when they have Events
        for (name, why) in [("referred", "referrer"), ("alive", "alive")] {
            fixture.wait_event("LogicalVolume", name, "Warning StaleVolume", why)?;
            ensure!(fixture.exists(LV, name)?, "{name} has gone");
        }
        ensure!(fixture.exists(LV, "kept")?, "a volume was deleted without a request");
        fixture.check_rights()?;
        // Nothing refers to it any more
        fixture.kubectl(&["delete", "pv", "referrer", "--timeout=180s"])?;
        fixture.wait("--for=delete", LV, "referred")?;
        // Its Node is deleted, which ends it at once
        fixture.kubectl(&["delete", "node", "alive", "--timeout=180s"])?;
        fixture.wait("--for=delete", LV, "alive")?;
        fixture.kubectl(&["delete", LV, "kept", "--timeout=180s"]).map(drop)
    })
}

//! Output of the kubectl plugin about real volumes.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::commands::Commands;
use system_tests::manifests::VolumeMode;
use system_tests::plugin;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn tests() -> Vec<(String, Body)> {
    vec![("plugin_status_and_volumes_match_lvm_and_show_failures".to_owned(), check_output)]
}

fn check_output(fixture: &Fixture) -> Result<()> {
    fixture.check_volumes(0)?;
    let free_in_lvm = || -> Result<u64> {
        let free = fixture.node.script(&format!("vgs --noheadings --units b --nosuffix -o vg_free {VG}"))?;
        free.trim().parse().context("vgs prints no number")
    };
    let free = free_in_lvm()?;
    // The space of other tests' volumes is published a moment later
    let empty = fixture.cluster.ready("apiserver", || {
        let empty = class(fixture, "ssd")?;
        ensure!(empty["volumes"] == 0 && empty["freeBytes"] == free, "an empty class is {empty}, and vgs has {free}");
        Ok(empty)
    })?;
    ensure!(empty["sizeBytes"] == free, "an empty class is {empty}");
    fixture.apply_claim("plugin", "waiting", "128Mi")?;
    fixture.start_pod("plugin", VolumeMode::Filesystem)?;
    let uid = fixture.value("logicalvolumes.topolvm.io", &fixture.volume_name("plugin")?, ".metadata.uid")?;
    // Free space is published a moment after the volume was created
    fixture.cluster.ready("apiserver", || {
        let class = class(fixture, "ssd")?;
        ensure!(class["sizeBytes"] == empty["sizeBytes"], "the class has another size: {class}, and was {empty}");
        ensure!(class["reservedBytes"] == 128 << 20 && class["volumes"] == 1, "{class}");
        Ok(())
    })?;
    let free = free_in_lvm()?;
    ensure!(class(fixture, "ssd")?["freeBytes"] == free, "vgs has {free}");

    let row = claim(fixture, "plugin")?;
    let lvs = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    ensure!(row["lv"] == uid.as_str() && lvs.trim() == uid, "{row}, and lvs {lvs}");
    ensure!(row["state"] == "Bound" && row["node"] == fixture.node.name() && row["sizeBytes"] == 128 << 20, "{row}");
    ensure!(row.get("problem").is_none(), "{row}");
    let printed = Commands::of("kubectl-topolvm.md", "Output for programs")?.with("-n shop", "-n default")?;
    let printed = printed.run(&fixture.cluster)?;
    ensure!(printed.contains(&format!("uid: {uid}")), "not the object of the volume: {printed}");

    // One that no node can have
    fixture.apply(&json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "plugin-large"},
        "spec": {"name": "plugin-large", "nodeName": fixture.node.name(), "size": "1Ti"},
    }))?;
    fixture.wait_value("logicalvolumes.topolvm.io", "plugin-large", ".status.conditions[0].reason", "CreateFailed")?;
    let rows = items(fixture, &["volumes", "-A"])?;
    let large = rows.iter().find(|row| row["logicalVolume"] == "plugin-large").context("the volume is not shown")?;
    ensure!(large["state"] == "CreateFailed", "{large}");
    let remedy = large["problem"]["remedy"].as_str().unwrap_or_default();
    ensure!(remedy.contains("free space in the device class default of node"), "{large}");
    fixture.cluster.ready("apiserver", || {
        let events = items(fixture, &["events", "-A"])?;
        let is_listed = |object: &str, reason: &str| {
            events.iter().any(|event| event["object"] == object && event["reason"] == reason)
        };
        ensure!(is_listed("logicalvolume/plugin-large", "CreateFailed"), "{events:#?}");
        ensure!(is_listed("persistentvolumeclaim/plugin", "ProvisioningSucceeded"), "{events:#?}");
        Ok(())
    })?;
    fixture.kubectl(&["delete", "logicalvolumes.topolvm.io", "plugin-large", "--timeout=180s"])?;
    fixture.delete_pod_and_claim("plugin")?;
    fixture.check_volumes(0)
}

fn items(fixture: &Fixture, arguments: &[&str]) -> Result<Vec<Value>> {
    let printed = plugin::json(&fixture.cluster, arguments)?;
    printed["items"].as_array().cloned().context("no items")
}

/// Returns the row of a device class, which the node has once.
fn class(fixture: &Fixture, name: &str) -> Result<Value> {
    let rows = items(fixture, &["status"])?;
    let row =
        rows.iter().find(|row| row["deviceClass"] == name).with_context(|| format!("no class {name}: {rows:?}"))?;
    ensure!(row["isDefault"] == true && row["nodeReady"] == true, "{row}");
    Ok(row.clone())
}

fn claim(fixture: &Fixture, name: &str) -> Result<Value> {
    let rows = items(fixture, &["volumes"])?;
    rows.into_iter().find(|row| row["claim"] == name).with_context(|| format!("the claim {name} is not shown"))
}

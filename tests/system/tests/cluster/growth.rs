//! Claims that are expanded automatically when a pod fills its volume.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, storage_class};
use topolvm_api::{ApiFlavor, GROWTH_ENABLED, GROWTH_LIMIT, GROWTH_THRESHOLD};

use crate::Body;
use crate::fixture::{Fixture, logical_volume_resource};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "pvc_growth_follows_usage_up_to_quota_and_limit";
    vec![(name.to_owned(), grow_to_the_limit)]
}

/// The claim begins with 1 GiB and may have 3 GiB; the quota of its namespace is 2 GiB at first.
fn grow_to_the_limit(fixture: &Fixture) -> Result<()> {
    let mut class = storage_class(ApiFlavor::TopoLvm, "growing", None, false);
    class["metadata"]["annotations"] = json!({GROWTH_ENABLED: "true"});
    fixture.apply(&class)?;
    let mut filled = claim("filled", "growing", "1Gi", VolumeMode::Filesystem);
    filled["metadata"]["annotations"] = json!({GROWTH_LIMIT: "3Gi", GROWTH_THRESHOLD: "20%"});
    fixture.apply(&filled)?;
    fixture.start_pod("filled", VolumeMode::Filesystem)?;
    fixture.write_word("filled", "kept")?;
    set_quota(fixture, "2Gi")?;

    fill(fixture, "first", 800)?;
    fixture.wait_value("pvc", "filled", ".status.capacity.storage", "2Gi")?;
    let event = fixture.wait_event("filled", "Growing")?;
    ensure!(event.contains("requested 2Gi instead of 1Gi; the limit is 3Gi"), "the event says: {event}");
    let grown = fixture.filesystem_mebibytes("filled")?;
    ensure!(grown > 1800, "the filesystem has {grown} MiB");
    // The expansion is complete, so its object no longer has the annotation that it is too small
    let volume = fixture.volume_name("filled")?;
    let group = logical_volume_resource(ApiFlavor::TopoLvm);
    fixture.wait_value(&group, &volume, r".metadata.annotations.topolvm\.io/too-small-at", "")?;

    fill(fixture, "second", 900)?;
    let event = fixture.wait_event("filled", "GrowthRefused")?;
    ensure!(event.contains("3Gi") && event.contains("exceeded quota"), "the event says: {event}");
    ensure!(fixture.value("pvc", "filled", ".spec.resources.requests.storage")? == "2Gi", "the quota was exceeded");
    set_quota(fixture, "10Gi")?;
    fixture.wait_value("pvc", "filled", ".status.capacity.storage", "3Gi")?;

    fill(fixture, "third", 900)?;
    let event = fixture.wait_event("filled", "GrowthAtLimit")?;
    ensure!(event.contains("has reached its limit, 3Gi"), "the event says: {event}");
    ensure!(fixture.value("pvc", "filled", ".spec.resources.requests.storage")? == "3Gi", "the limit was exceeded");
    ensure!(fixture.read_word("filled")? == "kept", "the file did not survive");

    fixture.kubectl(&["delete", "resourcequota", "storage"])?;
    fixture.delete_pod_and_claim("filled")?;
    fixture.kubectl(&["delete", "storageclass", "growing"])?;
    fixture.check_volumes(0)
}

/// Has the pod take so many MiB of its volume. Blocks are allocated and not written.
fn fill(fixture: &Fixture, file: &str, mebibytes: u32) -> Result<()> {
    fixture.exec_in_pod("filled", &format!("fallocate -l {mebibytes}M /data/{file}")).map(drop)
}

/// Sets the storage quota of the namespace, and waits until it is enforced.
fn set_quota(fixture: &Fixture, size: &str) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "storage"},
        "spec": {"hard": {"requests.storage": size}},
    }))?;
    fixture.wait_value("resourcequota", "storage", r".status.hard.requests\.storage", size)
}

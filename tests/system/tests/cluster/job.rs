//! The main use cases: pods with filesystem, block and ephemeral volumes that grow and survive restarts.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::scenario::{Reporter, Scenario};
use testbed::topolvm::TopolvmSpec;
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 5] = [
        ("a_pod_writes_to_a_volume_that_survives_it_and_grows", run_scenario),
        ("raw_block_volume_keeps_data_grows_and_can_be_read_only", use_block_volume),
        ("ephemeral_volume_is_created_and_deleted_with_its_pod", use_ephemeral_volume),
        ("read_only_pod_mounts_on_first_try_and_cannot_write", use_read_only_pod),
        ("claims_at_once_become_one_volume_each", create_many_claims),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Tests in which the agent is killed or gets other flags.
pub(crate) fn tests_with_processes() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("volumes_survive_kubelet_agent_and_container_restarts", restart_kubelet_and_agent),
        ("pvc_resize_offline_and_across_agent_restart_grows_filesystem", expand_without_pod),
        ("staged_volume_is_shared_and_unmounted_after_staging_is_off", share_staged_volume),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// A reporter that prints nothing.
pub(crate) struct SilentReporter;

impl Reporter for SilentReporter {
    fn step(&mut self, _title: &str, _seconds: f64, _lines: &str) {}
}

fn run_scenario(fixture: &Fixture) -> Result<()> {
    Scenario { cluster: &fixture.cluster, node: &fixture.node, flavor: ApiFlavor::TopoLvm }.run(&mut SilentReporter)
}

fn use_block_volume(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("block", "waiting", "128Mi", VolumeMode::Block))?;
    fixture.apply(&pod("block", "block", VolumeMode::Block))?;
    fixture.wait_ready("block")?;
    fixture.exec_in_pod("block", "test -b /data && echo kept | dd of=/data bs=512 seek=9 conv=fsync 2>/dev/null")?;
    fixture.expand("block", "256Mi")?;
    fixture.kubectl(&["delete", "pod", "block"])?;
    fixture.apply(&pod("block", "block", VolumeMode::Block))?;
    fixture.wait_ready("block")?;
    let text = fixture.exec_in_pod("block", "dd if=/data bs=512 skip=9 count=1 2>/dev/null | head -n 1")?;
    ensure!(text == "kept\n", "read {text:?}");
    let bytes = fixture.exec_in_pod("block", "blockdev --getsize64 /data")?;
    ensure!(bytes.trim() == (256 << 20).to_string(), "the device has {bytes} bytes");
    fixture.delete_pod("block")?;
    read_block_volume(fixture)?;
    fixture.delete_claim("block")?;
    fixture.check_volumes(0)
}

fn read_block_volume(fixture: &Fixture) -> Result<()> {
    let mut reader = pod("reader", "block", VolumeMode::Block);
    reader["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    fixture.apply(&reader)?;
    fixture.wait_ready("reader")?;
    let read = || fixture.exec_in_pod("reader", "dd if=/data bs=512 skip=9 count=1 2>/dev/null | head -n 1");
    ensure!(read()? == "kept\n", "read {:?}", read()?);
    // A read-only mount does not prevent writes to a device; the device permission that kubelet gives the container
    // does
    let written =
        fixture.exec_in_pod("reader", "echo new | dd of=/data bs=512 seek=9 conv=fsync,notrunc 2>&1 || true")?;
    ensure!(written.contains("Operation not permitted"), "the reader writes: {written}");
    ensure!(read()? == "kept\n", "now it says {:?}", read()?);
    fixture.delete_pod("reader")
}

/// Restarts kubelet and the agent under volumes of both modes, each for several pods of the node and for one pod alone.
fn restart_kubelet_and_agent(fixture: &Fixture) -> Result<()> {
    let volumes = [
        ("files", VolumeMode::Filesystem, "ReadWriteOnce"),
        ("device", VolumeMode::Block, "ReadWriteOnce"),
        ("own-files", VolumeMode::Filesystem, "ReadWriteOncePod"),
        ("own-device", VolumeMode::Block, "ReadWriteOncePod"),
    ];
    for (name, mode, access) in volumes {
        let mut claim = claim(name, "waiting", "64Mi", mode);
        claim["spec"]["accessModes"] = json!([access]);
        fixture.apply(&claim)?;
        fixture.apply(&pod(name, name, mode))?;
    }
    for (name, ..) in volumes {
        fixture.wait_ready(name)?;
    }
    let mounts = mounts_of_volume(fixture)?;
    // kubelet publishes every volume again when it starts
    fixture.node.kill_kept("topolvm-node")?;
    fixture.node.kill_kept("kubelet")?;
    fixture.wait_node_ready_again(volumes.len())?;
    // kubelet starts a container only when the volumes of its pod are published
    for (name, ..) in volumes {
        fixture.exec_in_pod(name, "{ sleep 0.2; kill 1; } >/dev/null 2>&1 &")?;
    }
    for (name, mode, _) in volumes {
        fixture.wait_value("pod", name, ".status.containerStatuses[0].restartCount", "1")?;
        fixture.wait_ready(name)?;
        let is_there = if mode == VolumeMode::Block { "test -b /data" } else { "grep ' /data ' /proc/mounts" };
        fixture.exec_in_pod(name, is_there)?;
    }
    let after = mounts_of_volume(fixture)?;
    ensure!(mounts == after, "mounts before the restart:\n{mounts}\nafter it:\n{after}");
    for (name, ..) in volumes {
        fixture.delete_pod_and_claim(name)?;
    }
    let left = mounts_of_volume(fixture)?;
    ensure!(left.is_empty(), "left mounted:\n{left}");
    fixture.check_volumes(0)
}

fn use_ephemeral_volume(fixture: &Fixture) -> Result<()> {
    let mut pod = pod("own", "none", VolumeMode::Filesystem);
    let template = json!({"spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": "waiting", "resources": {"requests": {"storage": "64Mi"}},
    }});
    pod["spec"]["volumes"] = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
    fixture.apply(&pod)?;
    fixture.wait_ready("own")?;
    fixture.write_word("own", "mine")?;
    fixture.check_volumes(1)?;
    fixture.delete_pod("own")?;
    fixture.wait_no_volumes()?;
    fixture.check_volumes(0)
}

fn use_read_only_pod(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("read", "waiting", "64Mi")?;
    fixture.start_pod("read", VolumeMode::Filesystem)?;
    fixture.write_word("read", "kept")?;
    fixture.delete_pod("read")?;
    let mut reader = pod("reader", "read", VolumeMode::Filesystem);
    reader["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = json!(true);
    fixture.apply(&reader)?;
    fixture.wait_ready("reader")?;
    ensure!(fixture.read_word("reader")? == "kept", "the reader reads something else");
    ensure!(fixture.write_word("reader", "new").is_err(), "the reader can write");
    let options = fixture.node.script("grep kubernetes.io.csi /proc/self/mountinfo | awk '{print $6}'")?;
    ensure!(options.starts_with("ro,"), "mounted with {options}");
    let selector = "--field-selector=reason=FailedMount,involvedObject.name=reader";
    let failures = fixture.kubectl(&["get", "events", selector, "-o", "jsonpath={.items[*].message}"])?;
    ensure!(failures.is_empty(), "not at the first try: {failures}");
    fixture.delete_pod("reader")?;
    fixture.delete_claim("read")?;
    fixture.check_volumes(0)
}

fn expand_without_pod(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("grows", "waiting", "64Mi")?;
    fixture.start_pod("grows", VolumeMode::Filesystem)?;
    fixture.write_word("grows", "kept")?;
    fixture.delete_pod("grows")?;
    fixture.expand("grows", "128Mi")?;
    fixture.start_pod("grows", VolumeMode::Filesystem)?;
    fixture.wait_value("pvc", "grows", ".status.capacity.storage", "128Mi")?;
    let offline = fixture.filesystem_mebibytes("grows")?;
    ensure!(offline > 100, "after growing without a pod the filesystem has {offline} MiB");
    fixture.node.kill_kept("topolvm-node")?;
    fixture.request_size("grows", "256Mi")?;
    fixture.wait_value("pvc", "grows", ".status.capacity.storage", "256Mi")?;
    let online = fixture.filesystem_mebibytes("grows")?;
    ensure!(online > 200, "after growing across a restart the filesystem has {online} MiB");
    ensure!(fixture.read_word("grows")? == "kept", "the file did not survive");
    fixture.delete_pod_and_claim("grows")?;
    fixture.check_volumes(0)
}

fn share_staged_volume(fixture: &Fixture) -> Result<()> {
    let staging = TopolvmSpec { node_arguments: vec!["--stage-volumes".to_owned()], ..fixture.spec.clone() };
    let shared = || {
        for name in ["staged", "late"] {
            fixture.apply_claim(name, "waiting", "64Mi")?;
            fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
        }
        fixture.apply(&pod("second", "staged", VolumeMode::Filesystem))?;
        for name in ["staged", "second", "late"] {
            fixture.wait_ready(name)?;
        }
        fixture.write_word("staged", "shared")?;
        ensure!(fixture.read_word("second")? == "shared", "the second pod reads something else");
        let mounts = mounts_of_volume(fixture)?;
        let number = (mounts.matches("/globalmount").count(), mounts.lines().count());
        ensure!(number == (2, 5), "two volumes for three pods are mounted so:\n{mounts}");
        fixture.kubectl(&["delete", "pod", "staged", "second", "--timeout=180s"])?;
        fixture.delete_claim("staged")?;
        let mounts = mounts_of_volume(fixture)?;
        ensure!(mounts.lines().count() == 2, "the volume of the pod that stays is mounted so:\n{mounts}");
        Ok(())
    };
    fixture.run_with_spec(&staging, || Ok(()), shared)?;
    // kubelet does not unstage it any more
    fixture.delete_pod_and_claim("late")?;
    let mounts = mounts_of_volume(fixture)?;
    ensure!(mounts.is_empty(), "left mounted:\n{mounts}");
    fixture.check_volumes(0)
}

/// Lists the mount points of volumes with their sources.
fn mounts_of_volume(fixture: &Fixture) -> Result<String> {
    fixture.node.script("awk '$5 ~ /kubernetes.io.csi/ {print $4, $5}' /proc/self/mountinfo | sort")
}

fn create_many_claims(fixture: &Fixture) -> Result<()> {
    let names: Vec<String> = (1..=10).map(|number| format!("burst{number}")).collect();
    for name in &names {
        fixture.apply_claim(name, "immediate", "32Mi")?;
    }
    for name in &names {
        fixture.wait_bound(name)?;
    }
    fixture.check_volumes(names.len())?;
    let delete = ["delete", "persistentvolumeclaim", "--timeout=180s"].into_iter();
    fixture.kubectl(&delete.chain(names.iter().map(String::as_str)).collect::<Vec<_>>())?;
    fixture.wait_no_volumes()?;
    fixture.check_volumes(0)?;
    let free = fixture.node.script(&format!("vgs --noheadings --units b --nosuffix -o vg_size,vg_free {VG}"))?;
    let mut numbers = free.split_whitespace();
    ensure!(numbers.next() == numbers.next(), "not everything is free again: {free}");
    Ok(())
}

//! I/O limits: the rates at which pods read and write, by the kernel's counters, under each kind of limit.

mod device;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::assets;
use topolvm_api::{ApiFlavor, IoLimit};

use crate::Body;
use crate::fixture::Fixture;
use device::Device;

/// Time in which a change is to be in force.
const IN_FORCE: Duration = Duration::from_secs(5);
const MIB: u64 = 1 << 20;
/// Bytes that the slower of two pods may write in a second.
const MOST_OF_SLOW: f64 = 1_048_576.0;
const WRITE_BYTES: &str = "topolvm.io/write-bytes-per-second";
const READ_BYTES: &str = "topolvm.io/read-bytes-per-second";
const CARINA_WRITES: &str = "carina.storage.io/blkio.throttle.write_iops_device";
const CARINA_READS: &str = "kubernetes.customized/blkio.throttle.read_iops_device";
/// Writes and reads files of 16 MiB past the page cache, 16 KiB at a time, for as long as the pod runs: a program is
/// started every four seconds at most.
const WRITE: &str = "while :; do dd if=/dev/zero of=/data/written bs=16k count=1024 oflag=direct conv=notrunc; done";
const READ: &str = "while :; do dd if=/data/read of=/dev/null bs=16k iflag=direct; done";
/// Writes a file through the page cache.
const WRITE_BUFFERED: &str = "while :; do dd if=/dev/zero of=/data/written bs=16k count=1024 conv=notrunc,fsync; done";

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 4] = [
        ("io_limits_are_enforced_and_change_while_the_pod_runs", change_limits),
        ("io_limits_of_pods_on_one_disk_are_their_rates", share_disk),
        ("io_limits_are_enforced_after_a_reboot", reboot),
        ("io_limits_that_are_invalid_are_rejected_or_reported", refuse_nonsense),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

pub(crate) fn tests_with_processes() -> Vec<(String, Body)> {
    let name = "io_limits_survive_restarts_of_container_agent_and_kubelet";
    vec![(name.to_owned(), restart_programs)]
}

/// Returns a pod that runs these commands side by side, and is ready when the file that they read exists.
fn worker(name: &str, annotations: &Value, commands: &[&str]) -> Value {
    let mut worker = pod(name, name, VolumeMode::Filesystem);
    let commands = commands.iter().map(|command| format!("({command}) 2>/dev/null &")).collect::<Vec<_>>().join(" ");
    let make = "dd if=/dev/zero of=/data/read bs=16k count=1024 conv=fsync 2>/dev/null; ";
    let make = if commands.contains(READ) { make } else { "" };
    let script = format!("trap 'exit 0' TERM; {make}touch /tmp/made; {commands} wait");
    let container = &mut worker["spec"]["containers"][0];
    container["command"] = json!(["sh", "-c", script]);
    container["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/tmp/made"]}, "periodSeconds": 1});
    worker["metadata"]["annotations"] = annotations.clone();
    worker
}

/// Starts a worker on a claim of its name.
fn start_worker<'a>(
    fixture: &'a Fixture,
    name: &str,
    class: &str,
    annotations: &Value,
    commands: &[&str],
) -> Result<Device<'a>> {
    fixture.apply(&claim(name, class, "64Mi", VolumeMode::Filesystem))?;
    fixture.apply(&worker(name, annotations, commands))?;
    fixture.wait_ready(name)?;
    Device::find(fixture, name)
}

/// Annotates a pod; a value of `null` takes the annotation away.
fn annotate(fixture: &Fixture, pod: &str, annotations: &Value) -> Result<()> {
    let patch = json!({"metadata": {"annotations": annotations}}).to_string();
    fixture.kubectl(&["patch", "pod", pod, "--type=merge", "-p", &patch]).map(drop)
}

/// Creates a VolumeAttributesClass and sets it in a claim.
fn set_attributes(fixture: &Fixture, claim: &str, class: &str, parameters: &Value) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": class},
        "driverName": ApiFlavor::TopoLvm.driver_name(), "parameters": parameters,
    }))?;
    let patch = json!({"spec": {"volumeAttributesClassName": class}}).to_string();
    fixture.kubectl(&["patch", "persistentvolumeclaim", claim, "-p", &patch]).map(drop)
}

/// Waits until the condition of the volume has this reason, and returns its message.
fn wait_io_condition(fixture: &Fixture, claim: &str, reason: &str) -> Result<String> {
    let volume = format!("logicalvolumes.topolvm.io/{}", fixture.volume_name(claim)?);
    let path = "{.status.conditions[?(@.type==\"IOLimited\")].reason}";
    fixture.kubectl(&["wait", &format!("--for=jsonpath={path}={reason}"), &volume, "--timeout=180s"])?;
    let message = "jsonpath={.status.conditions[?(@.type==\"IOLimited\")].message}";
    fixture.kubectl(&["get", &volume, "-o", message])
}

/// Limits of a StorageClass, then lower ones of the pod, then others of a VolumeAttributesClass, then none.
fn change_limits(fixture: &Fixture) -> Result<()> {
    let mut class = storage_class(ApiFlavor::TopoLvm, "limited", None, false);
    // Low enough for a busy machine to reach
    class["parameters"][WRITE_BYTES] = json!("1Mi");
    class["parameters"][READ_BYTES] = json!("2Mi");
    fixture.apply(&class)?;
    let device = start_worker(fixture, "limited", "limited", &json!({}), &[WRITE, READ])?;
    let message = wait_io_condition(fixture, "limited", "LimitsInForce")?;
    ensure!(message == "pod default/limited: bytes read 2Mi/s, bytes written 1Mi/s", "{message}");
    device.check_rate(IoLimit::WriteBytes, MIB)?;
    device.check_rate(IoLimit::ReadBytes, 2 * MIB)?;

    annotate(fixture, "limited", &json!({CARINA_WRITES: "50", CARINA_READS: "100", WRITE_BYTES: "3Mi"}))?;
    device.wait_line("rbps=2097152 wbps=1048576 riops=100 wiops=50")?;
    device.check_rate(IoLimit::WriteOperations, 50)?;
    device.check_rate(IoLimit::ReadOperations, 100)?;
    annotate(fixture, "limited", &json!({CARINA_WRITES: null, CARINA_READS: null, WRITE_BYTES: null}))?;
    device.wait_line("rbps=2097152 wbps=1048576 riops=max wiops=max")?;

    if has_attributes_classes() {
        change_limits_by_class(fixture, &device)?;
    }
    fixture.delete_pod_and_claim("limited")?;
    if has_attributes_classes() {
        fixture.kubectl(&["delete", "volumeattributesclass", "busy", "free"])?;
    }
    fixture.kubectl(&["delete", "storageclass", "limited"])?;
    fixture.check_volumes(0)
}

/// Gives a claim other classes, and creates one that has a class from the beginning.
fn change_limits_by_class(fixture: &Fixture, device: &Device<'_>) -> Result<()> {
    let parameters = json!({"topolvm.io/write-operations-per-second": "80", WRITE_BYTES: "8Mi"});
    set_attributes(fixture, "limited", "busy", &parameters)?;
    wait_modified(fixture, "limited", "busy")?;
    device.wait_line("rbps=max wbps=8388608 riops=max wiops=80")?;
    device.check_rate(IoLimit::WriteOperations, 80)?;
    set_attributes(fixture, "limited", "free", &json!({WRITE_BYTES: ""}))?;
    wait_modified(fixture, "limited", "free")?;
    device.wait_line("")?;
    device.check_faster_than(IoLimit::WriteOperations, 160)?;
    let conditions =
        fixture.value("logicalvolumes.topolvm.io", &fixture.volume_name("limited")?, ".status.conditions")?;
    ensure!(!conditions.contains("IOLimited"), "{conditions}");

    let mut classed = claim("classed", "immediate", "64Mi", VolumeMode::Filesystem);
    classed["spec"]["volumeAttributesClassName"] = json!("busy");
    fixture.apply(&classed)?;
    fixture.wait_bound("classed")?;
    wait_modified(fixture, "classed", "busy")?;
    let volume = fixture.volume_name("classed")?;
    let annotations = fixture.value("logicalvolumes.topolvm.io", &volume, ".metadata.annotations")?;
    ensure!(annotations.contains(&format!("\"{WRITE_BYTES}\":\"8Mi\"")), "{annotations}");
    fixture.delete_claim("classed")
}

/// Returns whether the API server has VolumeAttributesClasses in a stable version.
fn has_attributes_classes() -> bool {
    !assets::is_oldest_kubernetes()
}

/// Waits until csi-resizer has given a volume its class.
fn wait_modified(fixture: &Fixture, claim: &str, class: &str) -> Result<()> {
    fixture
        .wait_value("pvc", claim, ".status.currentVolumeAttributesClassName", class)
        .with_context(|| fixture.kubectl(&["describe", "pvc", claim]).unwrap_or_default())
}

/// Two pods that write to volumes of one disk as fast as they can, with limits of one to four: past the page cache, and
/// through it.
fn share_disk(fixture: &Fixture) -> Result<()> {
    for command in [WRITE, WRITE_BUFFERED] {
        let slow = start_worker(fixture, "slow", "waiting", &json!({WRITE_BYTES: "1Mi"}), &[command])?;
        let fast = start_worker(fixture, "fast", "waiting", &json!({WRITE_BYTES: "4Mi"}), &[command])?;
        let (slow, fast) = Device::rates_together(&slow, &fast, IoLimit::WriteBytes, MIB)?;
        eprintln!("{command}: {slow:.0} and {fast:.0} bytes/s, 1 to {:.2}", fast / slow);
        // A busy machine may write less than it may, and never more
        let are_limited = slow <= 1.1 * MOST_OF_SLOW && fast <= 4.4 * MOST_OF_SLOW;
        ensure!(
            are_limited && fast > 2.0 * slow,
            "{slow} and {fast} bytes/s are not within 1 and 4 MiB/s with {command}"
        );
        fixture.delete_pod_and_claim("slow")?;
        fixture.delete_pod_and_claim("fast")?;
    }
    fixture.check_volumes(0)
}

fn restart_programs(fixture: &Fixture) -> Result<()> {
    let device = start_worker(fixture, "limited", "waiting", &json!({WRITE_BYTES: "1Mi"}), &[WRITE])?;
    device.check_rate(IoLimit::WriteBytes, MIB)?;
    fixture.exec_in_pod("limited", "{ sleep 0.2; kill 1; } >/dev/null 2>&1 &")?;
    fixture.wait_value("pod", "limited", ".status.containerStatuses[0].restartCount", "1")?;
    fixture.wait_ready("limited")?;
    device.check_rate(IoLimit::WriteBytes, MIB).context("after a restart of the container")?;

    fixture.node.kill_kept("topolvm-node")?;
    annotate(fixture, "limited", &json!({WRITE_BYTES: "2Mi"}))?;
    // The time in which a change is to be in force is that of an agent that runs
    let has_line = || device.check_line("rbps=max wbps=2097152 riops=max wiops=max");
    fixture.cluster.ready("apiserver", has_line).context("after a restart of the agent")?;
    device.check_rate(IoLimit::WriteBytes, 2 * MIB)?;

    fixture.node.kill_kept("kubelet")?;
    fixture.wait_node_ready_again(1)?;
    device.wait_line("rbps=max wbps=2097152 riops=max wiops=max").context("after a restart of kubelet")?;
    annotate(fixture, "limited", &json!({WRITE_BYTES: "1Mi"}))?;
    device.wait_line("rbps=max wbps=1048576 riops=max wiops=max")?;

    fixture.delete_pod_and_claim("limited")?;
    fixture.check_volumes(0)
}

/// Reboots the node under a pod with a limit. kubelet publishes its volume again, perhaps with another device number.
fn reboot(fixture: &Fixture) -> Result<()> {
    start_worker(fixture, "limited", "waiting", &json!({WRITE_BYTES: "1Mi"}), &[WRITE])?;
    fixture.node.restart(false)?;
    // The product's own pods come first
    let started = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1";
    fixture.kubectl(&["wait", started, "pod/limited", "--timeout=180s"])?;
    fixture.wait_ready("limited")?;
    Device::find(fixture, "limited")?.check_rate(IoLimit::WriteBytes, MIB)?;
    fixture.delete_pod_and_claim("limited")?;
    fixture.check_volumes(0)
}

fn refuse_nonsense(fixture: &Fixture) -> Result<()> {
    for (name, value) in [("zero", "0"), ("negative", "-1"), ("huge", "18446744073709551616")] {
        let mut class = storage_class(ApiFlavor::TopoLvm, name, None, true);
        class["parameters"][WRITE_BYTES] = json!(value);
        fixture.apply(&class)?;
        fixture.apply_claim(name, name, "64Mi")?;
        let message = fixture.wait_event_with(name, "ProvisioningFailed", WRITE_BYTES)?;
        ensure!(message.contains(value), "{message}");
        fixture.delete_claim(name)?;
        fixture.kubectl(&["delete", "storageclass", name])?;
    }
    let conflict = json!({CARINA_WRITES: "20", "topolvm.io/write-operations-per-second": "30", READ_BYTES: "1Mi"});
    let device = start_worker(fixture, "conflict", "waiting", &conflict, &[WRITE])?;
    let message = fixture.wait_event("conflict", "InvalidIOLimits")?;
    ensure!(message.contains(CARINA_WRITES) && message.contains("differ"), "{message}");
    let message = wait_io_condition(fixture, "conflict", "InvalidIOLimits")?;
    ensure!(message.contains("in force: nothing"), "{message}");
    device.wait_line("")?;
    if has_attributes_classes() {
        set_attributes(fixture, "conflict", "nonsense", &json!({WRITE_BYTES: "0"}))?;
        let message = fixture.wait_event_with("conflict", "VolumeModifyFailed", WRITE_BYTES)?;
        ensure!(message.contains("would block all I/O"), "{message}");
        device.wait_line("")?;
    }
    fixture.delete_pod_and_claim("conflict")?;
    if has_attributes_classes() {
        fixture.kubectl(&["delete", "volumeattributesclass", "nonsense"])?;
    }
    fixture.check_volumes(0)
}

/// Waits until `probe` succeeds, in the time in which a change is to be in force.
fn wait_in_force(mut probe: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + IN_FORCE;
    loop {
        match probe() {
            Err(error) if Instant::now() >= end => return Err(error.context("not in force within 5 seconds")),
            Err(_) => {}
            Ok(()) => return Ok(()),
        }
    }
}

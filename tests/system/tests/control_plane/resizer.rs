//! The resizer inside topolvm-controller, and its hand-over to csi-resizer and back.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{VolumeMode, claim, storage_class};
use testbed::sidecars::{NAMESPACE, Sidecar};
use testbed::topolvm::controller_socket;
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_testkit::lvm::FakeLvm;

use crate::Body;
use crate::fixture::{Fixture, GRACE, LV, spec};

pub(crate) const ALL: &[(&str, Body)] = &[("embedded_resizer_and_csi_resizer_take_turns", take_turns)];

const NODE: &str = "resizing";
const CLASS: &str = "resizable";
const GIB: u64 = 1 << 30;
const LVMD_CONFIG: &str = "device-classes:\n- {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}\n";
const RESIZER: Sidecar = Sidecar::Resizer;
/// Volumes are created inside the controller too.
const EMBEDDED: [&str; 2] = ["--controllers=provisioner", "--controllers=resizer"];
const DEVICE: &str = "device";
const FILESYSTEM: &str = "filesystem";

fn take_turns(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let nodes = FakeNodes::new(cluster, &spec(&[])?)?;
    nodes.add(NODE, &FakeLvm::new().with_group("myvg1", 100 * GIB), LVMD_CONFIG)?;
    fixture.apply(&storage_class(TopoLvm, CLASS, None, true))?;
    let done = fixture.with_controller(&EMBEDDED, || {
        for (name, mode) in [(DEVICE, VolumeMode::Block), (FILESYSTEM, VolumeMode::Filesystem)] {
            fixture.apply(&claim(name, CLASS, "1Gi", mode))?;
            fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", name)?;
        }
        check_device(fixture)?;
        check_filesystem(fixture)?;
        check_infeasible(fixture)?;
        check_class(fixture)
    });
    let done = done.and_then(|()| {
        // The embedded one has released the Lease
        start_csi_resizer(fixture)?;
        check_size(fixture, "5Gi", "csi-resizer")
    });
    let done = done.and_then(|()| {
        fixture.with_controller(&EMBEDDED, || {
            // csi-resizer ends with the socket, as a container that is restarted, and still has the Lease: the embedded
            // one waits
            cluster.stop(RESIZER.name(), Duration::ZERO)?;
            start_csi_resizer(fixture)?;
            check_size(fixture, "6Gi", "csi-resizer")?;
            cluster.stop(RESIZER.name(), GRACE)?;
            check_size(fixture, "7Gi", "topolvm-controller")?;
            fixture.kubectl(&["delete", "pvc", DEVICE, FILESYSTEM, "--timeout=180s"])?;
            fixture.kubectl(&["wait", "--for=delete", LV, "--all", "--timeout=180s"]).map(drop)
        })
    });
    cluster.stop(RESIZER.name(), Duration::ZERO)?;
    fixture.kubectl(&["delete", "storageclass", CLASS])?;
    nodes.remove(NODE)?;
    nodes.stop()?;
    done?;
    fixture.check_rights()
}

fn start_csi_resizer(fixture: &Fixture) -> Result<()> {
    let mut command = RESIZER.command(&fixture.cluster, &controller_socket(&fixture.cluster));
    command.args(["--leader-election", &format!("--leader-election-namespace={NAMESPACE}")]);
    fixture.cluster.spawn(RESIZER.name(), &command)
}

fn request(fixture: &Fixture, name: &str, size: &str) -> Result<()> {
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
    fixture.kubectl(&["patch", "pvc", name, "-p", &patch]).map(drop)
}

/// Waits until a field of a claim has this value.
fn wait_for(fixture: &Fixture, name: &str, field: &str, value: &str) -> Result<()> {
    fixture.wait(&format!("--for=jsonpath={{{field}}}={value}"), "pvc", name)
}

/// Expands a device, which needs no kubelet.
fn check_device(fixture: &Fixture) -> Result<()> {
    request(fixture, DEVICE, "2Gi")?;
    wait_for(fixture, DEVICE, ".status.capacity.storage", "2Gi")?;
    let volume = fixture.value("pvc", DEVICE, ".spec.volumeName")?;
    let annotation = r".metadata.annotations.volume\.kubernetes\.io/node-expansion-not-required";
    for (kind, name, field, expected) in [
        ("pv", volume.as_str(), ".spec.capacity.storage", "2Gi"),
        (LV, &volume, ".status.currentSize", "2147483648"),
        ("pvc", DEVICE, annotation, "true"),
        ("pvc", DEVICE, ".status.allocatedResourceStatuses", ""),
    ] {
        let found = fixture.value(kind, name, field)?;
        let is_size = expected == "2147483648" && found == "2Gi";
        ensure!(found == expected || is_size, "{field} of {kind} {name} is {found:?} and not {expected:?}");
    }
    check_conditions(fixture)?;
    let note = format!("volume {volume} has 2Gi");
    fixture.wait_event("PersistentVolumeClaim", DEVICE, "Normal VolumeResizeSuccessful", &note)
}

/// Expands a filesystem, which waits for the kubelet. There is none here.
fn check_filesystem(fixture: &Fixture) -> Result<()> {
    request(fixture, FILESYSTEM, "2Gi")?;
    fixture.wait("--for=condition=FileSystemResizePending", "pvc", FILESYSTEM)?;
    let volume = fixture.value("pvc", FILESYSTEM, ".spec.volumeName")?;
    for (kind, name, field, expected) in [
        ("pv", volume.as_str(), ".spec.capacity.storage", "2Gi"),
        ("pvc", FILESYSTEM, ".status.capacity.storage", "1Gi"),
        ("pvc", FILESYSTEM, ".status.allocatedResources.storage", "2Gi"),
        ("pvc", FILESYSTEM, ".status.allocatedResourceStatuses.storage", "NodeResizePending"),
    ] {
        let found = fixture.value(kind, name, field)?;
        ensure!(found == expected, "{field} of {kind} {name} is {found:?} and not {expected:?}");
    }
    fixture.wait_event("PersistentVolumeClaim", FILESYSTEM, "Normal FileSystemResizeRequired", "the kubelet")
}

/// Requests more than the node has, and then less.
fn check_infeasible(fixture: &Fixture) -> Result<()> {
    request(fixture, DEVICE, "1Ti")?;
    wait_for(fixture, DEVICE, ".status.allocatedResourceStatuses.storage", "ControllerResizeInfeasible")?;
    fixture.wait("--for=condition=ControllerResizeError", "pvc", DEVICE)?;
    fixture.wait_event("PersistentVolumeClaim", DEVICE, "Warning VolumeResizeFailed", "OutOfRange")?;
    request(fixture, DEVICE, "3Gi")?;
    wait_for(fixture, DEVICE, ".status.capacity.storage", "3Gi")?;
    check_conditions(fixture)
}

/// Checks that the device has no condition about an expansion. Kubernetes has others, such as `Unused`.
fn check_conditions(fixture: &Fixture) -> Result<()> {
    let conditions = fixture.value("pvc", DEVICE, ".status.conditions[*].type")?;
    ensure!(!conditions.contains("Resiz"), "conditions stay: {conditions}");
    Ok(())
}

/// Applies a VolumeAttributesClass, and returns from one that the driver refuses.
fn check_class(fixture: &Fixture) -> Result<()> {
    let resources = fixture.kubectl(&["api-resources", "--api-group=storage.k8s.io", "-o", "name"])?;
    if !resources.contains("volumeattributesclasses") {
        return Ok(());
    }
    let volume = fixture.value("pvc", DEVICE, ".spec.volumeName")?;
    for (class, parameter) in [("limited", "topolvm.io/read-operations-per-second"), ("wrong", "colour")] {
        fixture.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": class},
            "driverName": "topolvm.io", "parameters": {parameter: "100"},
        }))?;
    }
    let modify = |class: &str| {
        let patch = json!({"spec": {"volumeAttributesClassName": class}}).to_string();
        fixture.kubectl(&["patch", "pvc", DEVICE, "-p", &patch]).map(drop)
    };
    modify("limited")?;
    wait_for(fixture, DEVICE, ".status.currentVolumeAttributesClassName", "limited")?;
    let limit = fixture.value(LV, &volume, r".metadata.annotations.topolvm\.io/read-operations-per-second")?;
    let class = fixture.value("pv", &volume, ".spec.volumeAttributesClassName")?;
    ensure!((limit.as_str(), class.as_str()) == ("100", "limited"), "limit {limit:?}, class {class:?}");

    modify("wrong")?;
    wait_for(fixture, DEVICE, ".status.modifyVolumeStatus.status", "Infeasible")?;
    fixture.wait_event("PersistentVolumeClaim", DEVICE, "Warning VolumeModifyFailed", "unknown mutable parameter")?;
    modify("limited")?;
    fixture.cluster.ready("apiserver", || {
        let status = fixture.value("pvc", DEVICE, ".status.modifyVolumeStatus")?;
        ensure!(status.is_empty(), "the modification has not ended: {status}");
        Ok(())
    })?;
    let current = fixture.value("pvc", DEVICE, ".status.currentVolumeAttributesClassName")?;
    ensure!(current == "limited", "the claim has the class {current:?}");
    fixture.kubectl(&["delete", "volumeattributesclass", "wrong"]).map(drop)
}

/// Expands the device, and checks which resizer has written its size.
fn check_size(fixture: &Fixture, size: &str, manager: &str) -> Result<()> {
    request(fixture, DEVICE, size)?;
    wait_for(fixture, DEVICE, ".status.capacity.storage", size)?;
    let claim: Value =
        serde_json::from_str(&fixture.kubectl(&["get", "pvc", DEVICE, "--show-managed-fields", "-o", "json"])?)?;
    let fields = claim["metadata"]["managedFields"].as_array().context("the claim has no managed fields")?;
    // Whose times may be of the same second
    let wrote = |entry: &&Value| entry["fieldsV1"]["f:status"]["f:capacity"].get("f:storage").is_some();
    let writers: Vec<_> = fields.iter().filter(wrote).map(|entry| entry["manager"].clone()).collect();
    ensure!(writers == [manager], "{size} was written by {writers:?} and not by {manager}: {fields:?}");
    Ok(())
}

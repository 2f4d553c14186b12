//! The provisioner inside topolvm-controller, and its hand-over to csi-provisioner and back.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{VolumeMode, claim, storage_class};
use testbed::sidecars::{NAMESPACE, Sidecar};
use testbed::topolvm::{CONTROLLER, controller_socket};
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_testkit::lvm::FakeLvm;

use crate::Body;
use crate::fixture::{Fixture, LV, spec};
use crate::metrics::{ADDRESS, request_metrics};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("embedded_provisioner_and_csi_provisioner_take_turns", take_turns),
    ("embedded_provisioner_continues_after_a_lost_lease", continue_after_loss),
];

const NODE: &str = "provisioning";
const CLASS: &str = "immediate";
const GIB: u64 = 1 << 30;
const LVMD_CONFIG: &str = "device-classes:\n- {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}\n";
const IDENTITY: &str = r".spec.csi.volumeAttributes.storage\.kubernetes\.io/csiProvisionerIdentity";
const PROVISIONER: Sidecar = Sidecar::UpstreamProvisioner;

fn take_turns(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let nodes = FakeNodes::new(cluster, &spec(&[])?)?;
    nodes.add(NODE, &FakeLvm::new().with_group("myvg1", 100 * GIB), LVMD_CONFIG)?;
    fixture.apply(&storage_class(TopoLvm, CLASS, None, true))?;
    let metrics = format!("--metrics-bind-address={ADDRESS}");
    let done = fixture.with_controller(&["--controllers=provisioner", &metrics], || check_embedded(fixture));
    let done = done.and_then(|()| check_csi_provisioner(fixture));
    let done = done.and_then(|()| {
        // csi-provisioner ends with the socket
        fixture.with_controller(&["--controllers=provisioner"], || {
            check_claim(fixture, "returned", true)?;
            delete_claims(fixture, &["returned"])
        })
    });
    cluster.stop(PROVISIONER.name(), Duration::ZERO)?;
    fixture.kubectl(&["delete", "storageclass", CLASS])?;
    nodes.remove(NODE)?;
    nodes.stop()?;
    done?;
    fixture.check_rights()
}

fn continue_after_loss(fixture: &Fixture) -> Result<()> {
    let nodes = FakeNodes::new(&fixture.cluster, &spec(&[])?)?;
    nodes.add(NODE, &FakeLvm::new().with_group("myvg1", 100 * GIB), LVMD_CONFIG)?;
    fixture.apply(&storage_class(TopoLvm, CLASS, None, true))?;
    // The Lease of the provisioner, and that of all controllers
    let mut leases = [("interrupted", "topolvm-io"), ("interrupted-too", "topolvm")].into_iter();
    let done = fixture.with_controller(&["--controllers=provisioner"], || {
        leases.try_for_each(|(claim, lease)| check_lost_lease(fixture, &nodes, claim, lease))
    });
    fixture.kubectl(&["delete", "storageclass", CLASS])?;
    nodes.remove(NODE)?;
    nodes.stop()?;
    done?;
    fixture.check_rights()
}

/// Takes a Lease away while the agent of the node has yet to create a volume, and checks that the volume is provisioned
/// with the same LogicalVolume.
fn check_lost_lease(fixture: &Fixture, nodes: &FakeNodes<'_>, name: &str, lease: &str) -> Result<()> {
    check_claim(fixture, &format!("before-{name}"), true)?;
    nodes.stop_agent(NODE)?;
    fixture.apply(&claim(name, CLASS, "1Gi", VolumeMode::Filesystem))?;
    let volume = format!("pvc-{}", fixture.value("pvc", name, ".metadata.uid")?);
    fixture.cluster.ready(CONTROLLER, || {
        ensure!(fixture.exists(LV, &volume)?, "LogicalVolume {volume} does not exist");
        Ok(())
    })?;
    let uid = fixture.value(LV, &volume, ".metadata.uid")?;
    let stolen = json!({"spec": {"holderIdentity": "other", "leaseDurationSeconds": 1}}).to_string();
    fixture.kubectl(&["patch", "lease", lease, "-n", NAMESPACE, "--type=merge", "-p", &stolen])?;
    fixture.cluster.ready(CONTROLLER, || {
        let format = "jsonpath={.spec.holderIdentity}";
        let holder = fixture.kubectl(&["get", "lease", lease, "-n", NAMESPACE, "-o", format])?;
        ensure!(holder != "other", "the Lease {lease} was not acquired again");
        Ok(())
    })?;
    nodes.start_agent(NODE)?;
    fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", name)?;
    let expected = format!("Successfully provisioned volume {volume}");
    fixture.wait_event("PersistentVolumeClaim", name, "Normal ProvisioningSucceeded", &expected)?;
    let found = fixture.value(LV, &volume, ".metadata.uid")?;
    ensure!(found == uid, "another LogicalVolume was created for {name}");
    delete_claims(fixture, &[name, &format!("before-{name}")])
}

/// Provisions and deletes inside the controller, also after an error and with `Retain`.
fn check_embedded(fixture: &Fixture) -> Result<()> {
    check_claim(fixture, "first", true)?;
    let volume = fixture.value("pvc", "first", ".spec.volumeName")?;
    let object: Value = fixture.cluster.get(&format!("/api/v1/persistentvolumes/{volume}"))?;
    let terms = json!([{"matchExpressions": [{"key": TopoLvm.topology_key(), "operator": "In", "values": [NODE]}]}]);
    for (pointer, expected) in [
        ("/metadata/annotations/pv.kubernetes.io~1provisioned-by", json!("topolvm.io")),
        ("/spec/capacity/storage", json!("1Gi")),
        ("/spec/claimRef/name", json!("first")),
        ("/spec/csi/fsType", json!("ext4")),
        ("/spec/nodeAffinity/required/nodeSelectorTerms", terms),
        ("/spec/persistentVolumeReclaimPolicy", json!("Delete")),
    ] {
        let found = object.pointer(pointer);
        ensure!(found == Some(&expected), "{pointer} is {found:?} and not {expected}");
    }
    let expected = format!("Successfully provisioned volume {volume}");
    fixture.wait_event("PersistentVolumeClaim", "first", "Normal ProvisioningSucceeded", &expected)?;
    let object = fixture.value(LV, &volume, r".metadata.annotations.topolvm\.io/claim")?;
    ensure!(object == "default/first", "the LogicalVolume names the claim {object:?}");
    let (_, page) = request_metrics(fixture, "http", None)?;
    let created = r#"topolvm_grpc_handled_total{method="CreateVolume",code="Ok"}"#;
    ensure!(page.contains(created), "no call is counted: {page}");

    fixture.apply(&claim("large", CLASS, "1Ti", VolumeMode::Block))?;
    fixture.wait_event("PersistentVolumeClaim", "large", "Warning ProvisioningFailed", "ResourceExhausted")?;
    // It waits for the Lease
    start_csi_provisioner(fixture)?;
    check_claim(fixture, "contended", true)?;
    delete_claims(fixture, &["large", "first", "contended"])
}

/// Lets csi-provisioner take over, when the embedded one has released the Lease.
fn check_csi_provisioner(fixture: &Fixture) -> Result<()> {
    start_csi_provisioner(fixture)?;
    check_claim(fixture, "stock", false)?;
    delete_claims(fixture, &["stock"])
}

/// Starts csi-provisioner with leader election.
fn start_csi_provisioner(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    cluster.stop(PROVISIONER.name(), Duration::ZERO)?;
    let mut command = PROVISIONER.command(cluster, &controller_socket(cluster));
    command.args(["--leader-election", &format!("--leader-election-namespace={NAMESPACE}")]);
    cluster.spawn(PROVISIONER.name(), &command)
}

/// Creates a claim, and checks which provisioner has created its volume.
fn check_claim(fixture: &Fixture, name: &str, is_embedded: bool) -> Result<()> {
    fixture.apply(&claim(name, CLASS, "1Gi", VolumeMode::Filesystem))?;
    fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", name)?;
    let volume = fixture.value("pvc", name, ".spec.volumeName")?;
    let managers = fixture.value("pv", &volume, ".metadata.managedFields[*].manager")?;
    let by_controller = managers.split_whitespace().any(|manager| manager == "topolvm-controller");
    ensure!(by_controller == is_embedded, "the volume of {name} was written by {managers}");
    let identity = fixture.value("pv", &volume, IDENTITY)?;
    ensure!(identity.ends_with("topolvm.io"), "the volume of {name} names the provisioner {identity:?}");
    Ok(())
}

/// Deletes claims, and waits until their volumes are gone.
fn delete_claims(fixture: &Fixture, names: &[&str]) -> Result<()> {
    fixture.kubectl(&[&["delete", "pvc", "--timeout=180s"], names].concat())?;
    for kind in ["pv", LV] {
        fixture.kubectl(&["wait", "--for=delete", kind, "--all", "--timeout=180s"])?;
    }
    Ok(())
}

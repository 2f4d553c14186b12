//! Clones and a restored snapshot whose source is on another node than the scheduler would choose, or may choose.

use anyhow::Result;
use serde_json::{Value, json};
use system_tests::manifests::{DataSource, copied_claim, snapshot, snapshot_class};
use testbed::sidecars::{Sidecar, apply_snapshot_crds};
use testbed::topolvm::controller_socket;
use topolvm_api::ApiFlavor::TopoLvm;

use super::setup::{FAR, NEAR, Setup, THIN, Wanted, device_claim};

const WANTED: Wanted<'_> = (THIN, 1);

pub(super) fn place_next_to_source(setup: &Setup<'_>) -> Result<()> {
    let pinned = |name: &str, node: &str| {
        let mut pod = setup.pod(name, &[(name, WANTED)]);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod
    };
    setup.apply(&[device_claim("source", WANTED), pinned("source", NEAR)])?;
    setup.wait_volume("source", NEAR)?;
    let affinity = |pod: &str| {
        json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"affine": pod}}},
        ]}})
    };
    let mut other = setup.pod("other", &[]);
    other["metadata"]["labels"] = json!({"affine": "other"});
    other["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": FAR});
    let mut affine = setup.pod("affine", &[("affine", WANTED)]);
    affine["spec"]["affinity"] = affinity("other");
    setup.apply(&[other, clone("affine"), affine, clone("free"), setup.pod("free", &[("free", WANTED)])])?;
    restore_snapshot(setup)?;

    // Whichever node the scheduler chose first
    setup.wait_scheduled("free", NEAR)?;
    setup.wait_volume("free", NEAR)?;
    // The copy cannot be where the pod has to be
    setup.wait_volume("affine", NEAR)?;
    setup.fixture.wait_event("Pod", "affine", "Warning FailedScheduling", "node affinity")?;
    refuse_strictly(setup, &pinned("strict", FAR))
}

/// Restores a snapshot of the source for a pod that may run anywhere.
fn restore_snapshot(setup: &Setup<'_>) -> Result<()> {
    let (cluster, socket) = (&setup.fixture.cluster, controller_socket(&setup.fixture.cluster));
    apply_snapshot_crds(cluster)?;
    let sidecars = [Sidecar::SnapshotController, Sidecar::Snapshotter];
    sidecars.into_iter().try_for_each(|sidecar| sidecar.start(cluster, &socket))?;
    setup.apply(&[snapshot_class(TopoLvm, "snapshots"), snapshot("taken", "snapshots", "source")])?;
    setup.fixture.wait("--for=jsonpath={.status.readyToUse}=true", "volumesnapshot", "taken")?;
    setup.apply(&[copy("restored", DataSource::Snapshot("taken")), setup.pod("restored", &[("restored", WANTED)])])?;
    setup.wait_scheduled("restored", NEAR)?;
    setup.wait_volume("restored", NEAR)?;
    setup.fixture.kubectl(&["delete", "volumesnapshot/taken", "volumesnapshotclass/snapshots", "--timeout=180s"])?;
    sidecars.into_iter().try_for_each(|sidecar| sidecar.stop(cluster))?;
    // Restore the cluster for other tests
    let all = setup.fixture.kubectl(&["get", "crd", "-o", "name"])?;
    let ours: Vec<_> = all.lines().filter(|name| name.ends_with(".snapshot.storage.k8s.io")).collect();
    setup.fixture.kubectl(&[&["delete", "--timeout=180s"], ours.as_slice()].concat()).map(drop)
}

/// Clones for a pod that can only run on another node, where csi-provisioner allows only the node of the pod.
fn refuse_strictly(setup: &Setup<'_>, pod: &Value) -> Result<()> {
    let (cluster, socket) = (&setup.fixture.cluster, controller_socket(&setup.fixture.cluster));
    let publishes = format!("--enable-capacity={}", !setup.mode.asks_extender());
    Sidecar::UpstreamProvisioner.stop(cluster)?;
    let mut strict = Sidecar::Provisioner.command(cluster, &socket);
    // The last one counts
    strict.arg(&publishes);
    cluster.spawn(Sidecar::Provisioner.name(), &strict)?;
    setup.apply(&[clone("strict"), pod.clone()])?;
    let words = format!("the source of the copy is on node {NEAR}");
    setup.fixture.wait_event("PersistentVolumeClaim", "strict", "Warning ProvisioningFailed", &words)?;
    setup.check_pending("strict")?;
    Sidecar::Provisioner.stop(cluster)?;
    let mut provisioner = Sidecar::UpstreamProvisioner.command(cluster, &socket);
    provisioner.args(["--capacity-poll-interval=1s", &publishes]);
    cluster.spawn(Sidecar::UpstreamProvisioner.name(), &provisioner)
}

fn clone(name: &str) -> Value {
    copy(name, DataSource::Claim("source"))
}

fn copy(name: &str, source: DataSource<'_>) -> Value {
    let mut claim = copied_claim(name, THIN, "1Gi", source);
    claim["spec"]["volumeMode"] = json!("Block");
    claim
}

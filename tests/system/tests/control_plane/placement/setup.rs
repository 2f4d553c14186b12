//! Two nodes with volume groups of different sizes, their StorageClasses, and operations on pods and claims.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{VolumeMode, claim, storage_class};
use system_tests::scheduling::Mode;
use testbed::failure::WithState as _;
use testbed::sidecars::Sidecar;
use testbed::topolvm::controller_socket;
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use crate::fixture::{Fixture, LV, spec};

/// The node with the smaller `fast` group: 100 GiB, and 1000 GiB in `slow`.
pub(super) const NEAR: &str = "near";
/// The node with the smaller `slow` group: 100 GiB, and 1000 GiB in `fast`.
pub(super) const FAR: &str = "far";
/// StorageClass of the default device class, in the group `fast`.
pub(super) const WAITING: &str = "waiting";
/// The same for the node [`NEAR`] only, by `allowedTopologies`.
pub(super) const HERE: &str = "here";
/// StorageClass and device class in the group `slow`.
pub(super) const SLOW: &str = "slow";
/// StorageClass and device class in a thin pool, which each node has.
pub(super) const THIN: &str = "thin";

const GIB: u64 = 1 << 30;
/// Time after which a pod was tried again: kube-scheduler 1.30 retries one that an extender refused after five minutes.
const RETRIED: Duration = Duration::from_mins(6);
const LVMD_CONFIG: &str = "
device-classes:
- {name: fast, volume-group: fast, default: true, spare-gb: 0}
- {name: slow, volume-group: slow, spare-gb: 0}
- {name: thin, volume-group: pooled, spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 5}}
";
/// Label of all objects of a test.
const LABEL: &str = "placement";

/// The nodes in a cluster with the programs of a mode.
pub(super) struct Setup<'a> {
    pub(super) fixture: &'a Fixture,
    pub(super) mode: Mode,
    pub(super) nodes: &'a FakeNodes<'a>,
    /// LVM of the node [`NEAR`].
    pub(super) near: FakeLvm,
}

/// Runs a test with the nodes, and removes its objects.
pub(super) fn run_in_mode(fixture: &Fixture, mode: Mode, body: impl FnOnce(&Setup<'_>) -> Result<()>) -> Result<()> {
    let cluster = &fixture.cluster;
    mode.run(cluster, &spec(&[])?, Duration::from_secs(1), || {
        Sidecar::Resizer.start(cluster, &controller_socket(cluster))?;
        let nodes = FakeNodes::new(cluster, &spec(&[])?)?;
        let setup = Setup { fixture, mode, nodes: &nodes, near: lvm(100, 1000) };
        let done = setup.add_nodes().and_then(|()| body(&setup)).with_state(|| setup.events());
        setup.clean_up()?;
        Sidecar::Resizer.stop(cluster)?;
        nodes.stop()?;
        done
    })?;
    fixture.check_rights()
}

/// Returns an LVM with so many GiB in the groups `fast` and `slow`, and a thin pool.
pub(super) fn lvm(fast: u64, slow: u64) -> FakeLvm {
    let lvm = FakeLvm::new().with_group("fast", fast * GIB).with_group("slow", slow * GIB);
    let lvm = lvm.with_group("pooled", 100 * GIB);
    lvm.add_volume("pooled", "pool", FakeVolume::thin_pool(90 * GIB));
    lvm
}

/// A volume of a pod: its StorageClass and GiB.
pub(super) type Wanted<'a> = (&'a str, u64);

/// Returns a claim for a device.
pub(super) fn device_claim(name: &str, (class, gib): Wanted<'_>) -> Value {
    claim(name, class, &format!("{gib}Gi"), VolumeMode::Block)
}

impl Setup<'_> {
    fn add_nodes(&self) -> Result<()> {
        let mut here = storage_class(TopoLvm, HERE, None, false);
        here["allowedTopologies"] =
            json!([{"matchLabelExpressions": [{"key": TopoLvm.topology_key(), "values": [NEAR]}]}]);
        self.apply(&[
            storage_class(TopoLvm, WAITING, None, false),
            here,
            storage_class(TopoLvm, SLOW, Some(SLOW), false),
            storage_class(TopoLvm, THIN, Some(THIN), false),
        ])?;
        self.add_node(NEAR, &self.near)?;
        self.add_node(FAR, &lvm(1000, 100))
    }

    /// Adds a node and waits until its agent has published free space.
    pub(super) fn add_node(&self, name: &str, lvm: &FakeLvm) -> Result<()> {
        self.nodes.add(name, lvm, LVMD_CONFIG)?;
        let free = lvm.free("fast").to_string();
        self.fixture.wait_value("node", name, r".metadata.annotations.capacity\.topolvm\.io/00default", &free)
    }

    fn clean_up(&self) -> Result<()> {
        let ours = format!("--selector={LABEL}");
        self.fixture.kubectl(&["delete", "pods", &ours, "--force", "--grace-period=0", "--timeout=180s"])?;
        self.fixture.kubectl(&["delete", "pvc,storageclasses", &ours, "--timeout=180s"])?;
        self.fixture.kubectl(&["wait", "--for=delete", LV, "--all", "--timeout=180s"])?;
        [NEAR, FAR].into_iter().try_for_each(|name| self.nodes.remove(name))
    }

    /// Applies objects at once.
    pub(super) fn apply(&self, objects: &[Value]) -> Result<()> {
        let mut objects = objects.to_vec();
        for object in &mut objects {
            object["metadata"]["labels"][LABEL] = json!("yes");
        }
        self.fixture.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))
    }

    /// Returns a pod with the claims of these names, marked as the pod webhook does it.
    pub(super) fn pod(&self, name: &str, claims: &[(&str, Wanted<'_>)]) -> Value {
        let volumes: Vec<_> = claims
            .iter()
            .map(|(claim, _)| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        self.pod_with_volumes(name, &volumes, claims.iter().map(|(_, wanted)| *wanted))
    }

    /// Returns a pod with devices for these volumes, marked with their requests.
    pub(super) fn pod_with_volumes<'w>(
        &self,
        name: &str,
        volumes: &[Value],
        wanted: impl Iterator<Item = Wanted<'w>>,
    ) -> Value {
        let device = |volume: &Value| json!({"name": volume["name"], "devicePath": format!("/{}", volume["name"])});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "containers": [{
                    "name": "main", "image": "none",
                    "volumeDevices": volumes.iter().map(device).collect::<Vec<_>>(),
                }],
                "volumes": volumes,
                // No kubelet reports that the nodes are ready
                "tolerations": [{"operator": "Exists"}],
            },
        });
        let mut sizes = BTreeMap::new();
        for (class, gib) in wanted {
            let device_class = if [WAITING, HERE].contains(&class) { "" } else { class };
            *sizes.entry(device_class).or_default() += gib * GIB;
        }
        self.mode.mark_pod(&mut pod, &sizes);
        pod
    }

    /// Applies a pod and its claims.
    pub(super) fn apply_pod(&self, name: &str, claims: &[(&str, Wanted<'_>)]) -> Result<()> {
        let mut objects: Vec<_> = claims.iter().map(|(claim, wanted)| device_claim(claim, *wanted)).collect();
        objects.push(self.pod(name, claims));
        self.apply(&objects)
    }

    /// Waits until the pod is scheduled to a node.
    pub(super) fn wait_scheduled(&self, pod: &str, node: &str) -> Result<()> {
        self.fixture.cluster.ready_within("apiserver", RETRIED, || {
            let on = self.fixture.value("pod", pod, ".spec.nodeName")?;
            ensure!(on == node, "the pod {pod} is on {on:?} and not on {node}");
            Ok(())
        })
    }

    /// Waits until the claim is Bound, and checks the node of its volume.
    pub(super) fn wait_volume(&self, claim: &str, node: &str) -> Result<()> {
        self.fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", claim)?;
        let on = self.fixture.value(LV, &self.fixture.value("pvc", claim, ".spec.volumeName")?, ".spec.nodeName")?;
        ensure!(on == node, "the volume of {claim} is on {on} and not on {node}");
        Ok(())
    }

    /// Waits until an Event reports that no node has space for the volumes of a pod.
    pub(super) fn wait_no_space(&self, pod: &str) -> Result<()> {
        let words = match self.mode {
            Mode::Capacity | Mode::EmbeddedCapacity => "did not have enough free storage",
            Mode::Extender | Mode::ExtenderWithoutReservations => "out of VG free space",
        };
        self.fixture.wait_event("Pod", pod, "Warning FailedScheduling", words)
    }

    /// Deletes a pod by force, because no kubelet terminates it, and claims, and waits until they are deleted.
    pub(super) fn delete_pod(&self, pod: &str, claims: &[&str]) -> Result<()> {
        self.fixture.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0", "--timeout=180s"])?;
        self.fixture.kubectl(&[&["delete", "pvc", "--timeout=180s"], claims].concat()).map(drop)
    }

    /// Checks that a claim is not Bound.
    pub(super) fn check_pending(&self, claim: &str) -> Result<()> {
        let phase = self.fixture.value("pvc", claim, ".status.phase")?;
        ensure!(phase == "Pending", "the claim {claim} is {phase}");
        Ok(())
    }

    fn events(&self) -> String {
        self.fixture.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]).unwrap_or_default()
    }
}

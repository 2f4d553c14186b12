//! Preemption by pods with volumes: kube-scheduler evicts pods for CPU only where the storage of the pod fits, too.
//! The victims are bound to their nodes without kube-scheduler.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim};
use system_tests::scheduling::restart_kube_scheduler;

use super::{CLASS, Setup, annotations, pod};

const PRIORITY_CLASS: &str = "urgent";
/// Nodes whose CPU the victims take. The third node has CPU, and no device class.
const FULL: [&str; 2] = ["roomy", "small"];
/// Pod and claim for which the extender is not called.
const TRACKED: &str = "tracked";
/// End of the message of a pod for which kube-scheduler has considered preemption, and evicts nothing.
const NO_CANDIDATE: &str = "no candidate node for preemption";

impl Setup<'_> {
    /// Checks which pods are evicted, with the configuration that ships and changes of it.
    pub(super) fn check_preemption(&self) -> Result<()> {
        self.create(&[json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": PRIORITY_CLASS},
            "value": 1000,
        })])?;
        let checked = self.check_evictions();
        self.fixture.kubectl(&["delete", "priorityclass", PRIORITY_CLASS])?;
        checked
    }

    fn check_evictions(&self) -> Result<()> {
        self.start_extender("node-cache: true\nreservations: true\n")?;
        self.start_shipped(|config| config.replace("    preemptVerb: preempt\n", ""))?;
        self.check_storage_alone().context("storage is missing on all nodes")?;
        self.start_shipped(|config| config.replace("nodeCacheCapable: false", "nodeCacheCapable: true"))?;
        self.check_cpu_and_storage().context("victims as UIDs")?;
        self.start_shipped(|config| config)?;
        self.check_cpu_and_storage().context("victims as pods")?;
        self.check_ephemeral_volume().context("a victim with an ephemeral volume")?;
        self.check_capacity_tracking().context("storage capacity tracking")
    }

    /// Starts kube-scheduler again with the file that ships, as `edit` changes it.
    fn start_shipped(&self, edit: impl FnOnce(String) -> String) -> Result<()> {
        restart_kube_scheduler(&self.fixture.cluster, "scheduler-config.yaml", |config| {
            edit(config) + "podMaxBackoffSeconds: 1\n"
        })
    }

    /// Checks that kube-scheduler selects no victims on nodes that the extender refuses, with TopoLVM's file too.
    fn check_storage_alone(&self) -> Result<()> {
        let victims: Vec<Value> = FULL.iter().map(|node| victim(node, "1")).collect();
        self.create(&victims)?;
        self.create(&[urgent("vast", 128)])?;
        self.wait_condition("vast", "Unschedulable", "2 out of VG free space")?;
        self.wait_condition("vast", "Unschedulable", "3 Preemption is not helpful for scheduling")?;
        self.delete_pods(&["vast", "victim-roomy", "victim-small"])
    }

    /// Checks that a pod without a place for its volume evicts none, and one that fits evicts that of its node.
    fn check_cpu_and_storage(&self) -> Result<()> {
        let victims: Vec<Value> = FULL.iter().map(|node| victim(node, "60")).collect();
        self.create(&victims)?;
        self.create(&[urgent("vast", 128)])?;
        self.wait_condition("vast", "Unschedulable", "1 no capacity annotation")?;
        self.wait_condition("vast", "Unschedulable", NO_CANDIDATE)?;
        for node in FULL {
            self.ensure_spared(node)?;
        }
        self.create(&[urgent("fitting", 8)])?;
        self.wait_bound("fitting", "roomy")?;
        self.ensure_spared("small")?;
        ensure!(!self.fixture.exists("pod", "victim-roomy")?, "CPU comes from nowhere");
        self.delete_pods(&["vast", "fitting", "victim-small"])
    }

    /// Checks that the ephemeral volume of a victim counts: kube-controller-manager deletes it with its pod.
    fn check_ephemeral_volume(&self) -> Result<()> {
        let mut victim = victim("small", "60");
        victim["metadata"]["annotations"] = annotations(&[("ssd", 8)]);
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "resources": {"requests": {"storage": "8Gi"}},
        });
        victim["spec"]["volumes"] = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}]);
        let mut pod = urgent("heir", 10);
        pod["spec"]["nodeSelector"] = json!({ super::PREFERRED.0: "small" });
        self.create(&[victim, pod])?;
        self.fixture.kubectl(&["wait", "--for=delete", "pod/victim-small", "--timeout=60s"])?;
        // As the agent writes it when the volume is removed
        let capacity = |gib: u64| format!("capacity.topolvm.io/ssd={}", gib << 30);
        self.fixture.kubectl(&["annotate", "node", "small", "--overwrite", &capacity(12)])?;
        self.wait_bound("heir", "small")?;
        self.fixture.kubectl(&["annotate", "node", "small", "--overwrite", &capacity(4)])?;
        self.delete_pods(&["heir"])
    }

    /// Checks that with storage capacity tracking kube-scheduler compares free space before it evicts. There are no
    /// CSIStorageCapacity objects, and so there is none.
    fn check_capacity_tracking(&self) -> Result<()> {
        self.restart_kube_scheduler(&self.usual_config)?;
        let mut pod = urgent(TRACKED, 1);
        pod["spec"]["containers"][0]["resources"]["limits"] = Value::Null;
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": TRACKED}}]);
        let victims = FULL.iter().map(|node| victim(node, "60"));
        self.create(&victims.chain([claim(TRACKED, CLASS, "1Gi", VolumeMode::Filesystem), pod]).collect::<Vec<_>>())?;
        self.wait_condition(TRACKED, "Unschedulable", "2 Insufficient cpu")?;
        self.wait_condition(TRACKED, "Unschedulable", "preemption: 0/3 nodes are available")?;
        for node in FULL {
            self.ensure_spared(node)?;
        }
        self.delete_pods(&[TRACKED, "victim-roomy", "victim-small"])?;
        self.fixture.kubectl(&["delete", "pvc", TRACKED]).map(drop)
    }

    fn ensure_spared(&self, node: &str) -> Result<()> {
        let deleted = self.fixture.value("pod", &format!("victim-{node}"), ".metadata.deletionTimestamp");
        ensure!(deleted.is_ok_and(|time| time.is_empty()), "the pod on {node} is evicted in vain");
        Ok(())
    }

    fn delete_pods(&self, pods: &[&str]) -> Result<()> {
        self.fixture.kubectl(&[&["delete", "pod", "--force", "--grace-period=0"], pods].concat()).map(drop)
    }
}

/// A pod of the lowest priority on a node, which takes so many of its CPUs and ends at once.
fn victim(node: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("victim-{node}")},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "localhost/none:1", "resources": {"requests": {"cpu": cpu}}}],
        },
    })
}

/// A pod that may evict others, with a volume of so many GiB.
fn urgent(name: &str, gib: u64) -> Value {
    let mut pod = pod(name, &[("ssd", gib)]);
    pod["spec"]["priorityClassName"] = json!(PRIORITY_CLASS);
    pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "32"});
    pod
}

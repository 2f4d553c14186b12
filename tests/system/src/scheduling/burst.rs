//! One burst: nodes that are nearly full, pods and claims that are all created at once, and the wait until nothing
//! changes any more.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::{CONTROLLER, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_api::{LogicalVolume, SELECTED_NODE, parse_bytes};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use super::waiting::{ClaimState, Reason, reason_of};
use super::workload::Workload;
use super::{Outcome, Settings};
use crate::fake_node::FakeNodes;
use crate::manifests::{VolumeMode, claim, storage_class};

/// Interval in which csi-provisioner publishes free space during bursts. Usually it is a minute.
pub const CAPACITY_INTERVAL: Duration = Duration::from_secs(10);

/// Names of the nodes.
const NODES: [&str; 3] = ["burst-a", "burst-b", "burst-c"];
const VG: &str = "vg";
const LVMD_CONFIG: &str = "device-classes: [{name: ssd, volume-group: vg, default: true, spare-gb: 0}]";
/// Name of the StorageClass, and label of what belongs to a burst.
const CLASS: &str = "burst";
/// The volumes that fill the nodes beforehand are this many times as large as the free space.
const FILLED: u64 = 4;
/// Number of requests at the same time.
const AT_ONCE: usize = 20;
/// Interval at which the cluster is polled.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time without a change after which a waiting pod counts as waiting forever. kube-scheduler retries ten seconds after
/// a failure at the latest, and csi-provisioner publishes free space once in [`CAPACITY_INTERVAL`].
const PATIENCE: Duration = Duration::from_secs(45);

/// Runs a burst in a cluster with the programs of its mode, and removes all that belongs to it.
pub fn run_burst(cluster: &Cluster, spec: &TopolvmSpec, settings: Settings) -> Result<Outcome> {
    let nodes = FakeNodes::new(cluster, spec)?;
    let workload = Workload::new(settings.seed, settings.pods, settings.claims);
    let lvms = workload.free.map(|free| {
        let lvm = FakeLvm::new().with_group(VG, free * (FILLED + 1));
        lvm.add_volume(VG, "filled", FakeVolume::thick(free * FILLED));
        lvm
    });
    cluster.apply(&storage_class(TopoLvm, CLASS, None, false).to_string())?;
    for (name, lvm) in NODES.iter().zip(&lvms) {
        nodes.add(name, lvm, LVMD_CONFIG)?;
    }
    let burst = Burst { cluster, settings, workload: &workload, client: nodes.client(), lvms: &lvms };
    let outcome = burst.wait_published(&nodes).and_then(|()| nodes.block_on(burst.run()));
    nodes.block_on(burst.delete_all())?;
    cluster.kubectl_ok(["wait", "--for=delete", "logicalvolumes.topolvm.io", "--all", "--timeout=180s"])?;
    NODES.iter().try_for_each(|name| nodes.remove(name))?;
    cluster.kubectl_ok(["delete", "storageclass", CLASS])?;
    nodes.stop()?;
    outcome
}

/// A burst on nodes that are ready.
struct Burst<'a> {
    cluster: &'a Cluster,
    settings: Settings,
    workload: &'a Workload,
    client: Client,
    lvms: &'a [FakeLvm; 3],
}

/// The pods and volumes of a burst at one moment.
struct State {
    scheduled: usize,
    volumes: usize,
    /// The reasons why pods are not scheduled, by name.
    waiting: BTreeMap<String, Reason>,
    /// Bytes by which the volumes of nodes exceed what they have.
    excess: u64,
}

impl State {
    fn waits_for_nothing(&self) -> bool {
        self.waiting.values().all(|reason| *reason == Reason::NoSpace)
    }

    fn names(&self, wanted: &Reason) -> Vec<String> {
        let matching = self.waiting.iter().filter(|(_, reason)| *reason == wanted);
        matching.map(|(name, _)| name.clone()).collect()
    }
}

impl Burst<'_> {
    /// Waits until the free space of each node is published for kube-scheduler, or its extender.
    fn wait_published(&self, nodes: &FakeNodes<'_>) -> Result<()> {
        self.cluster.ready(CONTROLLER, || {
            let published = nodes.block_on(self.published())?;
            for (name, free) in NODES.iter().zip(self.workload.free) {
                let known = published.get(*name).copied();
                ensure!(known == Some(free), "{name} has {free} bytes free and is said to have {known:?}");
            }
            Ok(())
        })
    }

    /// Returns the published free bytes of the nodes.
    async fn published(&self) -> Result<HashMap<String, u64>> {
        let mut published = HashMap::new();
        if self.settings.mode.asks_extender() {
            for node in Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await? {
                let free = node.annotations().get(&TopoLvm.capacity_annotation("")).and_then(|free| free.parse().ok());
                published.extend(free.map(|free| (node.name_any(), free)));
            }
            return Ok(published);
        }
        let capacities: Api<CSIStorageCapacity> = Api::namespaced(self.client.clone(), NAMESPACE);
        for object in capacities.list(&ListParams::default()).await? {
            let labels = object.node_topology.and_then(|selector| selector.match_labels);
            let node = labels.and_then(|mut labels| labels.remove(TopoLvm.topology_key()));
            let free = object.capacity.as_ref().and_then(|capacity| parse_bytes(capacity).ok());
            if object.storage_class_name == CLASS {
                published.extend(node.zip(free));
            }
        }
        Ok(published)
    }

    async fn run(&self) -> Result<Outcome> {
        let refused = self.refused()?;
        let start = Instant::now();
        self.create_all().await?;
        let (mut last_scheduled, mut last_change) = (Duration::ZERO, start);
        let mut state = self.state().await?;
        let mut is_settled = false;
        while last_change.elapsed() < PATIENCE {
            tokio::time::sleep(INTERVAL).await;
            // A broken connection is not a change; the next poll uses another one
            let Ok(now) = self.state().await else { continue };
            let changed = (now.scheduled, now.volumes) != (state.scheduled, state.volumes);
            if now.scheduled > state.scheduled {
                last_scheduled = start.elapsed();
            }
            state = now;
            if changed {
                last_change = Instant::now();
            } else if is_settled && state.waits_for_nothing() {
                break;
            }
            is_settled = !changed && state.waits_for_nothing();
        }
        Ok(Outcome {
            settings: self.settings,
            scheduled: state.scheduled,
            without_space: state.names(&Reason::NoSpace),
            overlooked: [state.names(&Reason::Overlooked), state.names(&Reason::InProgress)].concat(),
            stranded: state.names(&Reason::Stranded),
            excess: state.excess,
            refused: self.refused()? - refused,
            last_scheduled,
        })
    }

    /// Creates all claims and pods.
    async fn create_all(&self) -> Result<()> {
        let (claims, pods) = (self.claims(), self.pods());
        let plan: Vec<_> = self.workload.pods.iter().enumerate().collect();
        let creates = plan.into_iter().map(|(index, sizes)| {
            let (claims, pods) = (&claims, &pods);
            async move {
                for (number, bytes) in sizes.iter().enumerate() {
                    let name = claim_name(index, number);
                    let mut object = claim(&name, CLASS, &bytes.to_string(), VolumeMode::Block);
                    add_label(&mut object);
                    claims.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
                }
                let pod = self.pod(index, sizes);
                pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
                anyhow::Ok(())
            }
        });
        stream::iter(creates).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Deletes all pods and claims. Without a kubelet no pod terminates.
    async fn delete_all(&self) -> Result<()> {
        let ours = ListParams::default().labels(CLASS);
        self.pods().delete_collection(&DeleteParams::default().grace_period(0), &ours).await?;
        self.claims().delete_collection(&DeleteParams::default(), &ours).await?;
        Ok(())
    }

    fn pod(&self, index: usize, sizes: &[u64]) -> Value {
        let names: Vec<_> = (0..sizes.len()).map(|number| claim_name(index, number)).collect();
        let devices = names.iter().map(|name| json!({"name": name, "devicePath": format!("/dev/{name}")}));
        let volumes = names.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name(index), "namespace": "default"},
            "spec": {
                "containers": [{"name": "main", "image": "none", "volumeDevices": devices.collect::<Vec<_>>()}],
                "volumes": volumes.collect::<Vec<_>>(),
                // No kubelet reports that the nodes are ready
                "tolerations": [{"operator": "Exists"}],
            },
        });
        add_label(&mut pod);
        self.settings.mode.mark_pod(&mut pod, &BTreeMap::from([("", sizes.iter().sum())]));
        pod
    }

    async fn state(&self) -> Result<State> {
        let ours = ListParams::default().labels(CLASS);
        let volumes: Api<LogicalVolume> = Api::all(self.client.clone());
        let volumes = volumes.list(&ListParams::default()).await?.items;
        let provisioned: HashMap<_, _> = volumes
            .iter()
            .filter(|volume| volume.volume_id().is_some())
            .map(|volume| (volume.name().to_owned(), volume.spec.node_name.clone()))
            .collect();
        let claims: HashMap<_, _> =
            self.claims().list(&ours).await?.into_iter().map(|claim| (claim.name_any(), claim)).collect();
        let free: BTreeMap<_, _> =
            NODES.iter().zip(self.lvms).map(|(name, lvm)| ((*name).to_owned(), lvm.free(VG))).collect();
        let (mut scheduled, mut waiting) = (0, BTreeMap::new());
        for pod in self.pods().list(&ours).await? {
            if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                scheduled += 1;
                continue;
            }
            let index = pod.name_any().trim_start_matches("burst-").parse::<usize>().context("a strange pod")?;
            let sizes = self.workload.pods.get(index).context("a pod outside of the workload")?;
            let claims: Vec<_> = (0..)
                .zip(sizes)
                .map(|(number, bytes)| claim_state(claims.get(&claim_name(index, number)), *bytes, &provisioned))
                .collect();
            waiting.insert(pod.name_any(), reason_of(&claims, &free));
        }
        Ok(State { scheduled, volumes: provisioned.len(), waiting, excess: self.excess(&volumes) })
    }

    /// Returns the bytes by which the volumes of nodes exceed what was free at first.
    fn excess(&self, volumes: &[LogicalVolume]) -> u64 {
        let of_node = |name: &str| -> u64 {
            let volumes = volumes.iter().filter(|volume| volume.spec.node_name == name);
            volumes.filter_map(LogicalVolume::current_bytes).sum()
        };
        NODES.iter().zip(self.workload.free).map(|(name, free)| of_node(name).saturating_sub(free)).sum()
    }

    /// Returns the number of CreateVolume calls that the controller has answered with ResourceExhausted.
    fn refused(&self) -> Result<u64> {
        let mut curl = self.cluster.command("curl");
        let output = curl.args(["-sSf", "--max-time", "10", "http://127.0.0.1:8080/metrics"]).output()?;
        let page = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "the controller has no metrics: {}", String::from_utf8_lossy(&output.stderr));
        let counter = r#"topolvm_grpc_handled_total{method="CreateVolume",code="ResourceExhausted"} "#;
        let count = page.lines().find_map(|line| line.strip_prefix(counter));
        count.map_or(Ok(0), |count| count.parse().with_context(|| format!("{count} is no count")))
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::default_namespaced(self.client.clone())
    }
}

fn claim_state(claim: Option<&PersistentVolumeClaim>, bytes: u64, provisioned: &HashMap<String, String>) -> ClaimState {
    let node = claim.and_then(|claim| provisioned.get(&format!("pvc-{}", claim.uid()?))).cloned();
    let has_annotation = claim.is_some_and(|claim| claim.annotations().contains_key(SELECTED_NODE));
    ClaimState { bytes, is_selected: has_annotation && node.is_none(), node }
}

fn pod_name(index: usize) -> String {
    format!("burst-{index}")
}

fn claim_name(index: usize, number: usize) -> String {
    format!("burst-{index}-{number}")
}

fn add_label(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("labels".to_owned(), json!({CLASS: "yes"}));
    }
}

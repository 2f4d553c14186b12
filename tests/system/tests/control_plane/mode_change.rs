//! A cluster that is changed from storage capacity tracking to the extender, back, and to the extender again in another
//! order, as in scheduling.md: after each step a Deployment with a claim gets its pod scheduled and its volume created,
//! and the pods of earlier steps stay. Pods that wait since before the change are named and recreated.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::plugin;
use system_tests::scheduling::{EXTENDER, options_of_overlays, restart_without_extender, start_extender};
use system_tests::shared::TestCluster;
use testbed::cluster::SCHEDULER_PROCESS;
use testbed::failure::WithState as _;
use testbed::kubeconfig::Credential;
use testbed::sidecars::{NAMESPACE, Sidecar};
use testbed::suite;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, account_token, controller_socket, manifests};
use topolvm_testkit::lvm::FakeLvm;

use crate::fixture::{CLASS, spec, write_extender_manifests};

const LVMD_CONFIG: &str = "device-classes: [{name: ssd, volume-group: ssd, default: true, spare-gb: 0}]";
/// The nodes that exist from the beginning, and the bytes of their volume groups.
const NODES: [(&str, u64); 2] = [("small-1", 24 << 30), ("small-2", 24 << 30)];
/// Size of the claims that no node has space for before [`ROOMY`] is added.
const LARGE: &str = "32Gi";
/// The node that is added when pods wait for space.
const ROOMY: (&str, u64) = ("roomy", 200 << 30);
const RESOURCE: &str = "topolvm.io/capacity";
const REFUSED: &str = "out of VG free space";
const INSUFFICIENT: &str = "Insufficient topolvm.io/capacity";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "scheduling_mode_change_schedules_pods_at_each_step";
    vec![suite::test(name, run_in_own_cluster)]
}

fn run_in_own_cluster() -> Result<()> {
    let shared = TestCluster::up("mode", &spec(&["--scheduling-mode=capacity"])?)?;
    let nodes = FakeNodes::new(&shared.cluster, &spec(&[])?)?;
    let mut setup = Setup { shared: &shared, nodes: &nodes, scheduled: BTreeMap::new() };
    let outcome = setup.change_modes().with_state(|| setup.state());
    nodes.stop()?;
    shared.down()?;
    outcome
}

/// The cluster, and the scheduled pods until now.
struct Setup<'a> {
    shared: &'a TestCluster,
    nodes: &'a FakeNodes<'a>,
    /// UIDs of the pods that were scheduled, by their Deployment.
    scheduled: BTreeMap<&'static str, String>,
}

impl Setup<'_> {
    fn change_modes(&mut self) -> Result<()> {
        NODES.iter().try_for_each(|(name, bytes)| self.add_node(name, *bytes))?;
        self.start_provisioner(true)?;
        self.schedule_unmarked("before")?;

        self.start_extender()?;
        self.schedule_unmarked("extender-runs")?;
        self.set_extender_mode()?;
        // Marked or not: the proof may come at any moment
        self.schedule("extender-mode")?;
        self.wait_for_proof()?;
        self.schedule_marked("extender-proven")?;

        self.leave_waiting()?;
        self.delete_webhook()?;
        self.schedule_unmarked("without-webhook")?;
        self.set_capacity_mode()?;
        self.schedule_unmarked("capacity-mode")?;
        restart_without_extender(&self.shared.cluster)?;
        self.schedule_unmarked("without-file")?;
        self.shared.cluster.stop(EXTENDER, Duration::ZERO)?;
        self.schedule_unmarked("without-extender")?;
        self.restart_waiting()?;

        // The other order: the extender is not called when the mode is changed, and the earlier proof is discarded
        self.shared.kubectl(&["wait", "--for=delete", "configmap/topolvm-extender-probe", "-n", NAMESPACE])?;
        self.set_extender_mode()?;
        self.schedule_unmarked("mode-first")?;
        self.start_extender()?;
        self.wait_for_proof()?;
        self.schedule_marked("proven-again")?;
        self.check_scheduled()
    }

    fn add_node(&self, name: &str, bytes: u64) -> Result<()> {
        self.nodes.add(name, &FakeLvm::new().with_group("ssd", bytes), LVMD_CONFIG)
    }

    /// Starts csi-provisioner, which ends when its controller does, with the flags of the mode.
    fn start_provisioner(&self, publishes: bool) -> Result<()> {
        let cluster = &self.shared.cluster;
        let mut provisioner = Sidecar::Provisioner.command(cluster, &controller_socket(cluster));
        // The last one counts
        provisioner.args([format!("--enable-capacity={publishes}"), "--capacity-poll-interval=1s".to_owned()]);
        cluster.spawn(Sidecar::Provisioner.name(), &provisioner)
    }

    /// Replaces the controller and csi-provisioner as the roll-out of a Deployment does.
    fn replace_controller(&self, spec: &TopolvmSpec, publishes: bool) -> Result<()> {
        let cluster = &self.shared.cluster;
        Sidecar::Provisioner.stop(cluster)?;
        topolvm::stop(cluster, &[], spec)?;
        topolvm::start(cluster, &[], spec)?;
        self.start_provisioner(publishes)
    }

    /// Changes the mode to `extender`. The webhook of the first pods may not be served yet; their creation is retried.
    fn set_extender_mode(&self) -> Result<()> {
        let webhooks = ["--enable-webhooks", "--webhook-namespace=topolvm-system"];
        let flags = [&["--scheduling-mode=extender", "--extender-probe-interval=1s"][..], &webhooks].concat();
        let manifests = write_extender_manifests(&self.shared.cluster)?;
        self.replace_controller(&TopolvmSpec { manifests, ..spec(&flags)? }, false)
    }

    fn set_capacity_mode(&self) -> Result<()> {
        let namespace = format!("--pod-namespace={NAMESPACE}");
        self.replace_controller(&spec(&["--scheduling-mode=capacity", &namespace])?, true)
    }

    /// Starts topolvm-scheduler, and kube-scheduler with the file that ships.
    fn start_extender(&self) -> Result<()> {
        let cluster = &self.shared.cluster;
        let rights = manifests().join("components/scheduler-daemonset/rbac.yaml");
        self.shared.kubectl(&["apply", "--server-side", "-f", &rights.to_string_lossy()])?;
        let kubeconfig = cluster.directory().join("extender.kubeconfig");
        cluster.write_kubeconfig(&kubeconfig, &Credential::Token(&account_token(cluster, EXTENDER, None)?))?;
        start_extender(cluster, &spec(&[])?.programs, &options_of_overlays(), &kubeconfig)
    }

    fn delete_webhook(&self) -> Result<()> {
        self.shared.kubectl(&["delete", "mutatingwebhookconfiguration", "topolvm-hook"]).map(drop)
    }

    /// Waits until kube-scheduler is proven to call the extender.
    fn wait_for_proof(&self) -> Result<()> {
        let probe = ["get", "configmap", "topolvm-extender-probe", "-n", NAMESPACE, "-o", "jsonpath={.data}"];
        self.shared.cluster.ready(CONTROLLER, || {
            let said = self.shared.kubectl(&probe)?;
            ensure!(said.contains(r#""extender-proven":"true""#), "the extender is not proven to be called: {said}");
            Ok(())
        })
    }

    fn schedule_unmarked(&mut self, name: &'static str) -> Result<()> {
        let pod = self.schedule(name)?;
        ensure!(marker(&pod).is_null(), "{name} is marked: {pod}");
        Ok(())
    }

    fn schedule_marked(&mut self, name: &'static str) -> Result<()> {
        let pod = self.schedule(name)?;
        ensure!(*marker(&pod) == "1", "{name} is not marked: {pod}");
        Ok(())
    }

    /// Creates a Deployment with a claim, and waits until its pod is scheduled and the claim is Bound. Returns the pod.
    fn schedule(&mut self, name: &'static str) -> Result<Value> {
        self.create_deployment(name, "1Gi")
            .and_then(|()| self.wait_scheduled(name))
            .with_context(|| format!("at {name}"))
    }

    fn wait_scheduled(&mut self, name: &'static str) -> Result<Value> {
        let pod = self.shared.cluster.ready(SCHEDULER_PROCESS, || {
            let pod = self.pod_of(name)?;
            ensure!(pod["spec"]["nodeName"].is_string(), "the pod of {name} is on no node: {}", pod["status"]);
            Ok(pod)
        })?;
        self.shared.wait_value("pvc", name, ".status.phase", "Bound")?;
        self.scheduled.insert(name, pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        Ok(pod)
    }

    fn create_deployment(&self, name: &str, size: &str) -> Result<()> {
        self.shared.apply(&claim(name, CLASS, size, VolumeMode::Filesystem))?;
        let labels = json!({"app": name});
        self.shared.apply(&json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": user(name)["spec"]},
            },
        }))
    }

    /// Returns the pod of a Deployment.
    fn pod_of(&self, name: &str) -> Result<Value> {
        let list = self.shared.kubectl(&["get", "pods", "-l", &format!("app={name}"), "-o", "json"])?;
        let mut list: Value = serde_json::from_str(&list).context("kubectl prints no JSON")?;
        let pod = list["items"].as_array_mut().and_then(Vec::pop);
        pod.with_context(|| format!("the Deployment {name} has no pod"))
    }

    /// Creates marked pods that fit on no node: one of a Deployment, and one without a controller that would recreate
    /// it.
    fn leave_waiting(&self) -> Result<()> {
        self.create_deployment("waiting", LARGE)?;
        self.create_alone()?;
        self.wait_refused(REFUSED)
    }

    fn create_alone(&self) -> Result<()> {
        self.shared.apply(&claim("alone", CLASS, LARGE, VolumeMode::Filesystem))?;
        self.shared.apply(&user("alone"))
    }

    /// Waits until kube-scheduler reports this reason for both waiting pods.
    fn wait_refused(&self, words: &str) -> Result<()> {
        self.shared.cluster.ready(SCHEDULER_PROCESS, || {
            let alone = self.shared.value("pod", "alone", ".status.conditions")?;
            for conditions in [self.pod_of("waiting")?["status"]["conditions"].to_string(), alone] {
                ensure!(conditions.contains(words), "{words:?} is not why it waits: {conditions}");
            }
            Ok(())
        })
    }

    /// Checks that the waiting marked pods are named, and that each is scheduled after it was recreated and a node has
    /// space.
    fn restart_waiting(&mut self) -> Result<()> {
        self.wait_refused(INSUFFICIENT)?;
        let command = "kubectl topolvm restart-pending -n default";
        let named = ["wait only for topolvm.io/capacity", "default/alone (no owner)", "default/waiting-"];
        plugin::wait_for_findings(&self.shared.cluster, "blocked-pods", &named.map(|words| (words, command)))?;
        let printed = plugin::run_successfully(&self.shared.cluster, &["restart-pending", "-A"])?.text;
        let row = |words: &[&str]| printed.lines().any(|line| words.iter().all(|words| line.contains(words)));
        ensure!(row(&["waiting-", "ReplicaSet/waiting-", "restarted"]), "the Deployment's pod is left: {printed}");
        ensure!(
            row(&["alone", "not restarted: the pod has no controller"]),
            "the pod without an owner is not named: {printed}"
        );
        ensure!(printed.lines().count() == 3, "others are named, too: {printed}");
        self.shared.kubectl(&["delete", "pod", "alone", "--force", "--grace-period=0", "--timeout=180s"])?;
        self.create_alone()?;
        self.wait_refused("did not have enough free storage")?;
        self.add_node(ROOMY.0, ROOMY.1)?;
        let waiting = self.wait_scheduled("waiting")?;
        ensure!(marker(&waiting).is_null() && waiting["spec"]["nodeName"] == ROOMY.0, "{waiting}");
        self.shared.wait_value("pod", "alone", ".spec.nodeName", ROOMY.0)?;
        self.shared.wait_value("pvc", "alone", ".status.phase", "Bound")
    }

    /// Checks that the pods of all steps are those that were scheduled then.
    fn check_scheduled(&self) -> Result<()> {
        for (name, uid) in &self.scheduled {
            let pod = self.pod_of(name)?;
            ensure!(pod["metadata"]["uid"] == uid.as_str(), "the pod of {name} is another one: {pod}");
        }
        Ok(())
    }

    fn state(&self) -> String {
        let objects = ["get", "nodes,pods,pvc,csistoragecapacities,events", "-A", "-o", "wide"];
        let mut text = self.shared.kubectl(&objects).unwrap_or_else(|error| format!("{error:#}"));
        for process in [CONTROLLER, Sidecar::Provisioner.name()] {
            let log = fs::read_to_string(self.shared.cluster.log(process)).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(20).collect();
            text.extend(["\n", process, ", last line first:\n", &last.join("\n")]);
        }
        text
    }
}

/// Returns a pod with the claim of its name. The Leases of its nodes, which have no kubelet, are not renewed.
fn user(name: &str) -> Value {
    let mut user = pod(name, name, VolumeMode::Filesystem);
    user["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    user
}

/// Returns the amount of the resource that a pod requests, which lets kube-scheduler call the extender; null if none.
fn marker(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["resources"]["requests"][RESOURCE]
}

//! topolvm-scheduler, called by a real kube-scheduler. Nodes are objects without machines, which is enough to check the
//! bindings of pods, and the reasons for unschedulable pods.

mod preemption;
mod restart;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, storage_class};
use tempfile::TempDir;
use testbed::assets;
use testbed::cluster::SCHEDULER_PROCESS;
use testbed::failure::WithState as _;
use testbed::kubeconfig::Credential;
use testbed::topolvm::{TopolvmSpec, account_token, manifests};
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::{Fixture, GRACE};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("kube_scheduler_filters_and_scores_nodes_as_the_extender_says", |fixture| with_setup(fixture, Setup::check)),
    ("preemption_evicts_no_pod_where_storage_is_missing", |fixture| with_setup(fixture, Setup::check_preemption)),
];

const PROGRAM: &str = "topolvm-scheduler";
const ADDRESS: &str = "127.0.0.1:9251";
const GIB: u64 = 1 << 30;
/// File with the KubeSchedulerConfiguration, in the directory of a cluster.
const SCHEDULER_CONFIG: &str = "scheduler.yaml";
/// The nodes, with their free GiB by device class.
const NODES: [(&str, &[(&str, u64)]); 3] =
    [("roomy", &[("ssd", 64)]), ("small", &[("ssd", 4), ("hdd", 16)]), ("bare", &[])];
/// StorageClass of the device class `ssd`.
const CLASS: &str = "extender-ssd";
const SELECTED_NODE: &str = r".metadata.annotations.volume\.kubernetes\.io/selected-node";
/// Label of a node that some pods prefer.
const PREFERRED: (&str, &str) = ("example.com/preferred", "small");

fn with_setup<'a>(fixture: &'a Fixture, check: fn(&Setup<'a>) -> Result<()>) -> Result<()> {
    let directory = tempfile::tempdir().context("create a directory for configurations")?;
    let config = fixture.cluster.directory().join(SCHEDULER_CONFIG);
    let usual_config = fs::read_to_string(&config).with_context(|| format!("read {}", config.display()))?;
    let setup = Setup { fixture, directory, usual_config };
    let done = setup.prepare().and_then(|()| check(&setup)).with_state(|| setup.state());
    setup.restore()?;
    done
}

struct Setup<'a> {
    fixture: &'a Fixture,
    directory: TempDir,
    /// The KubeSchedulerConfiguration without an extender.
    usual_config: String,
}

impl Setup<'_> {
    fn prepare(&self) -> Result<()> {
        let cluster = &self.fixture.cluster;
        self.fixture.kubectl(&["apply", "--server-side", "-f", &rbac()])?;
        let token = account_token(cluster, PROGRAM, None)?;
        cluster.write_kubeconfig(&self.file("kubeconfig"), &Credential::Token(&token))?;
        let server = cluster.pki().server("extender", None, &[], &[IpAddr::V4(Ipv4Addr::LOCALHOST)])?;
        server.write(self.directory.path(), "server")?;
        cluster.pki().client("kube-scheduler", None)?.write(self.directory.path(), "client")?;
        let class = storage_class(ApiFlavor::TopoLvm, CLASS, Some("ssd"), false);
        self.create(&NODES.iter().map(|(name, free)| node(name, free)).chain([class]).collect::<Vec<_>>())
    }

    fn check(&self) -> Result<()> {
        self.start_extender("")?;
        self.start_kube_scheduler("http", "weight: 1, nodeCacheCapable: false")?;
        self.check_filter("whole")?;
        self.create(&[with_preference(pod("light", &[("ssd", 1)]))])?;
        // 10 * 1 * log2(64) for the roomy node; 10 * 1 * log2(4) and 2 * 100 of the preference for the small one
        self.wait_bound("light", "small")?;

        // With a certificate on both sides
        let files = format!(
            "enableHTTPS: true, tlsConfig: {{caFile: {}, certFile: {}, keyFile: {}}}",
            self.fixture.cluster.pki().file("ca.crt").display(),
            self.file("client.crt").display(),
            self.file("client.key").display()
        );
        self.start_kube_scheduler("https", &format!("weight: 10, nodeCacheCapable: true, {files}"))?;
        let tls = format!(
            "tls-cert-file: {}\ntls-key-file: {}\ntls-client-ca-file: {}\n",
            self.file("server.crt").display(),
            self.file("server.key").display(),
            self.fixture.cluster.pki().file("ca.crt").display()
        );
        self.check_names_without_cache(&tls)?;
        self.start_extender(&format!("{tls}node-cache: true\n"))?;
        let status = self.curl(&format!("https://{ADDRESS}/status")).output().context("run curl")?.status;
        ensure!(!status.success(), "it answers without a certificate");
        // kube-scheduler retries after the error
        self.wait_bound("early", "roomy")?;
        self.check_filter("names")?;
        self.create(&[with_preference(pod("heavy", &[("ssd", 1)]))])?;
        // 10 * 10 * log2(64) against 10 * 10 * log2(4) + 2 * 100
        self.wait_bound("heavy", "roomy")?;
        self.start_extender(&format!("{tls}node-cache: true\nstrategy: binpack\n"))?;
        self.create(&[pod("packed", &[("ssd", 1)])])?;
        self.wait_bound("packed", "small")?;
        let reserving = format!("{tls}node-cache: true\nreservations: true\n");
        self.start_extender(&reserving)?;
        self.check_reservations()?;
        self.check_reservations_after_restart(&reserving)
    }

    /// Checks that of two pods at once, each with a claim that fits alone, one gets the node, and the other one when
    /// the first has gone. No provisioner runs, so kube-scheduler binds neither.
    fn check_reservations(&self) -> Result<()> {
        self.set_capacity_tracking(false)?;
        let pods = ["first", "second"];
        let objects = pods.map(|name| claim(name, CLASS, "3Gi", VolumeMode::Filesystem)).into_iter();
        self.create(&objects.chain(pods.map(pod_with_claim)).collect::<Vec<_>>())?;
        let (chosen, refused) = self.fixture.cluster.ready("apiserver", || {
            let nodes = pods.map(|name| self.fixture.value("pvc", name, SELECTED_NODE));
            match nodes.map(Result::unwrap_or_default).each_ref().map(String::as_str) {
                ["small", ""] => Ok(("first", "second")),
                ["", "small"] => Ok(("second", "first")),
                other => bail!("the claims have the nodes {other:?}"),
            }
        })?;
        self.wait_condition(refused, "Unschedulable", "1 out of VG free space")?;
        ensure!(self.fixture.value("pvc", refused, SELECTED_NODE)?.is_empty(), "the node is reserved twice");
        // A claim that is being deleted reserves nothing, and stays until its pod is deleted. In the other order
        // kube-scheduler would retry the other pod when this one is deleted, and not again when the claim is.
        self.fixture.kubectl(&["delete", "pvc", chosen, "--wait=false"])?;
        self.fixture.kubectl(&["delete", "pod", chosen, "--force", "--grace-period=0"])?;
        self.fixture.wait_value("pvc", refused, SELECTED_NODE, "small")
    }

    /// Sets whether kube-scheduler compares claims with CSIStorageCapacity objects, of which there are none.
    fn set_capacity_tracking(&self, is_on: bool) -> Result<()> {
        let patch = json!({"spec": {"storageCapacity": is_on}}).to_string();
        self.fixture.kubectl(&["patch", "csidriver", "topolvm.io", "--type=merge", "-p", &patch]).map(drop)
    }

    /// Checks the scheduling of pods that fit, do not fit, and fit in one of two classes.
    fn check_filter(&self, prefix: &str) -> Result<()> {
        let name = |name: &str| format!("{prefix}-{name}");
        let (large, other, both, huge) = (name("large"), name("other-class"), name("both-classes"), name("huge"));
        self.create(&[
            pod(&huge, &[("ssd", 128)]),
            pod(&large, &[("ssd", 8)]),
            pod(&other, &[("hdd", 8)]),
            pod(&both, &[("ssd", 2), ("hdd", 2)]),
        ])?;
        self.wait_bound(&large, "roomy")?;
        self.wait_bound(&other, "small")?;
        self.wait_bound(&both, "small")?;
        for reason in ["1 no capacity annotation", "2 out of VG free space"] {
            self.wait_condition(&huge, "Unschedulable", reason)?;
            self.fixture.wait_event("Pod", &huge, "Warning FailedScheduling", reason)?;
        }
        // As the agent writes it when the volume group has grown
        let capacity = format!("capacity.topolvm.io/ssd={}", 256 * GIB);
        self.fixture.kubectl(&["annotate", "node", "bare", &capacity])?;
        if assets::is_oldest_kubernetes() {
            // An annotation of a node is no reason for it to try again before five minutes are over
            self.fixture.kubectl(&["delete", "pod", &huge, "--force", "--grace-period=0"])?;
            self.create(&[pod(&huge, &[("ssd", 128)])])?;
        }
        self.wait_bound(&huge, "bare")?;
        self.fixture.kubectl(&["annotate", "node", "bare", "capacity.topolvm.io/ssd-"]).map(drop)
    }

    /// Checks that the two settings that contradict each other are named in the pod.
    fn check_names_without_cache(&self, tls: &str) -> Result<()> {
        self.start_extender(tls)?;
        self.create(&[pod("early", &[("ssd", 8)])])?;
        for setting in ["nodeCacheCapable: false", "node-cache: true"] {
            self.wait_condition("early", "SchedulerError", setting)?;
        }
        Ok(())
    }

    fn wait_bound(&self, pod: &str, node: &str) -> Result<()> {
        self.fixture.wait_value("pod", pod, ".spec.nodeName", node)
    }

    /// Waits until the condition `PodScheduled` is false with this reason and this text.
    fn wait_condition(&self, pod: &str, reason: &str, words: &str) -> Result<()> {
        self.fixture.cluster.ready("apiserver", || {
            let path = r#".status.conditions[?(@.type=="PodScheduled")]"#;
            let condition = self.fixture.value("pod", pod, path)?;
            let condition: Value = serde_json::from_str(&condition).context("no condition")?;
            let message = condition["message"].as_str().unwrap_or_default();
            ensure!(condition["reason"] == reason && message.contains(words), "the condition of {pod}: {condition}");
            Ok(())
        })
    }

    /// Restarts topolvm-scheduler with these settings, and waits until it is ready.
    fn start_extender(&self, settings: &str) -> Result<()> {
        self.fixture.cluster.stop(PROGRAM, GRACE)?;
        self.spawn_extender(PROGRAM, ADDRESS, settings)
    }

    /// Starts a process of topolvm-scheduler at an address, and waits until it is ready.
    fn spawn_extender(&self, process: &str, address: &str, settings: &str) -> Result<()> {
        let (cluster, options) = (&self.fixture.cluster, self.file(&format!("{process}.yaml")));
        fs::write(&options, format!("listen: {address}\n{settings}")).context("write options")?;
        let mut command = cluster.command(TopolvmSpec::nodes(0)?.programs.join(PROGRAM));
        command.arg("--config").arg(options).env("KUBECONFIG", self.file("kubeconfig"));
        cluster.spawn(process, &command)?;
        let scheme = if settings.contains("tls-cert-file") { "https" } else { "http" };
        cluster.ready(process, || self.ask(&format!("{scheme}://{address}/readyz"), None)).map(drop)
    }

    /// Restarts kube-scheduler with these fields of its extender.
    fn start_kube_scheduler(&self, scheme: &str, fields: &str) -> Result<()> {
        let resources = "managedResources: [{name: topolvm.io/capacity, ignoredByScheduler: true}]";
        let verbs = "filterVerb: predicate, prioritizeVerb: prioritize, httpTimeout: 30s";
        self.restart_kube_scheduler(&format!(
            "{}podMaxBackoffSeconds: 1\nextenders:\n\
             - {{urlPrefix: '{scheme}://{ADDRESS}', {verbs}, {resources}, {fields}}}\n",
            self.usual_config
        ))
    }

    fn restart_kube_scheduler(&self, config: &str) -> Result<()> {
        let cluster = &self.fixture.cluster;
        fs::write(cluster.directory().join(SCHEDULER_CONFIG), config).context("write its configuration")?;
        cluster.stop(SCHEDULER_PROCESS, GRACE)?;
        cluster.spawn(SCHEDULER_PROCESS, &cluster.scheduler_command())
    }

    fn restore(&self) -> Result<()> {
        self.restart_kube_scheduler(&self.usual_config)?;
        self.fixture.cluster.stop(PROGRAM, GRACE)?;
        self.fixture.kubectl(&["delete", "pods", "--all", "--force", "--grace-period=0"])?;
        self.fixture.kubectl(&[
            "delete",
            "pvc,storageclass",
            "first",
            "second",
            restart::LATE,
            CLASS,
            "--ignore-not-found",
        ])?;
        self.set_capacity_tracking(true)?;
        let names = NODES.map(|(name, _)| name);
        self.fixture.kubectl(&[&["delete", "node"][..], &names].concat())?;
        self.fixture.kubectl(&["delete", "-f", &rbac()]).map(drop)
    }

    /// Sends a request to an extender, with the client's certificate, and returns the answer. One with a body is a
    /// POST.
    fn ask(&self, url: &str, body: Option<&str>) -> Result<String> {
        let mut command = self.curl(url);
        command.arg("--cert").arg(self.file("client.crt")).arg("--key").arg(self.file("client.key"));
        if let Some(body) = body {
            command.args(["--header", "Content-Type: application/json", "--data", body]);
        }
        let output = command.output().context("run curl")?;
        ensure!(output.status.success(), "{url}: {}", output.status);
        String::from_utf8(output.stdout).context("the answer is no text")
    }

    fn curl(&self, url: &str) -> Command {
        let mut command = self.fixture.cluster.command("curl");
        command.args(["--silent", "--fail", "--max-time", "5", url]);
        command.arg("--cacert").arg(self.fixture.cluster.pki().file("ca.crt"));
        command
    }

    /// Creates objects as they are, with their status.
    fn create(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = self.file("objects.json");
        fs::write(&file, list.to_string()).context("write objects")?;
        self.fixture.kubectl(&["create", "-f", &file.to_string_lossy()]).map(drop)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> String {
        let log = fs::read_to_string(self.fixture.cluster.log(PROGRAM)).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(10).collect();
        format!("topolvm-scheduler, last line first:\n{}", last.join("\n"))
    }
}

fn rbac() -> String {
    manifests().join("components/scheduler-daemonset/rbac.yaml").display().to_string()
}

/// A Node without a machine, whose taints the pods tolerate.
fn node(name: &str, free: &[(&str, u64)]) -> Value {
    let resources = json!({"cpu": "64", "memory": "64Gi", "pods": "110"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "annotations": annotations(free), "labels": {PREFERRED.0: name}},
        "status": {"capacity": resources, "allocatable": resources},
    })
}

/// A pod as the webhook leaves it, whose volumes take so many GiB.
fn pod(name: &str, requested: &[(&str, u64)]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations(requested)},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "main", "image": "localhost/none:1", "resources": {"limits": {"topolvm.io/capacity": "1"}},
            }],
        },
    })
}

/// A pod with a claim of the same name, of a size that fits once on its node.
fn pod_with_claim(name: &str) -> Value {
    let mut pod = pod(name, &[("ssd", 3)]);
    let (key, value) = PREFERRED;
    pod["spec"]["nodeSelector"] = json!({ key: value });
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
    pod
}

/// The pod with the strongest preference for one of the nodes.
fn with_preference(mut pod: Value) -> Value {
    let (key, value) = PREFERRED;
    let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
    let preferred = json!([{"weight": 100, "preference": term}]);
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}});
    pod
}

fn annotations(gib: &[(&str, u64)]) -> Value {
    let annotation =
        |(class, gib): &(&str, u64)| (format!("capacity.topolvm.io/{class}"), json!((gib * GIB).to_string()));
    gib.iter().map(annotation).collect()
}

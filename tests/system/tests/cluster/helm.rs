//! The Helm chart as an administrator uses it: install, upgrade, rollback and uninstall, with volumes that stay.

use std::fs;
use std::os::unix::fs::symlink;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::chart::{self, Helm};
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class, virtual_node};
use system_tests::scenario::Scenario;
use system_tests::{plugin, product_images, workloads};
use testbed::cluster::Cluster;
use testbed::failure::WithState as _;
use testbed::node::{Node, NodeSpec};
use testbed::sidecars::{self, NAMESPACE, Sidecar};
use testbed::suite;
use testbed::topolvm::{self, THIN_CLASS, THIN_OVERPROVISION, THIN_POOL, THIN_VG, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::job::SilentReporter;

const RELEASE: &str = "topolvm";
/// Name of the StorageClass of the chart.
const CLASS: &str = "topolvm-provisioner";
/// Annotation with the free bytes of the class that an upgrade adds.
const THIN_ANNOTATION: &str = "capacity.topolvm.io/thin";
/// Timeout of the effects of a change of the release.
const SOON: Duration = Duration::from_mins(3);

pub(crate) const NAME: &str = "helm_install_upgrade_rollback_and_uninstall_keep_volumes";

pub(crate) fn tests() -> Vec<Trial> {
    vec![suite::test(NAME, check_chart)]
}

fn check_chart() -> Result<()> {
    // The images that the manifests name are those of the chart
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?.with_thin_class();
    let directory = tempfile::Builder::new().prefix("topolvm-helm-").tempdir_in("/var/tmp")?;
    let cluster = Cluster::up(&directory.path().join("c"), &spec.cluster)?;
    let outcome = prepare_cluster(&cluster, &spec).and_then(|node| {
        let setup = Setup { cluster: &cluster, node };
        setup.check_lifecycle().and_then(|()| setup.follow_page()).with_state(|| setup.logs())
    });
    cluster.down(None)?;
    outcome
}

/// Prepares a cluster with snapshots and one node, which has volume groups and nothing of the product.
fn prepare_cluster(cluster: &Cluster, spec: &TopolvmSpec) -> Result<Node> {
    sidecars::apply_snapshot_crds(cluster)?;
    cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"])?;
    Sidecar::SnapshotController.start(cluster, &topolvm::controller_socket(cluster))?;
    let node = cluster.add_node(spec.nodes.first().context("no node")?)?;
    node.script(&spec.node_script).context("the script that makes the thin pool failed")?;
    Ok(node)
}

struct Setup<'a> {
    cluster: &'a Cluster,
    node: Node,
}

impl Setup<'_> {
    /// Installs, upgrades, rolls back and uninstalls the chart.
    fn check_lifecycle(&self) -> Result<()> {
        self.install().context("install")?;
        self.upgrade_and_roll_back().context("upgrade and rollback")?;
        self.uninstall_around_a_volume().context("uninstall with a volume")
    }

    /// Installs the chart with the commands of a page, which creates the namespace.
    fn install(&self) -> Result<()> {
        let page = match chart::version() {
            Helm::Three => Commands::of("../charts/topolvm/README.md", "Chart topolvm")?,
            Helm::Four => Commands::of("install.md", "With Helm")?,
        };
        let without_storage = self.add_nodes_without_storage()?;
        self.run_page(&page.with("REGISTRY", "localhost")?)?;
        topolvm::wait_for_driver(self.cluster, &self.node, TopoLvm)?;
        Scenario { cluster: self.cluster, node: &self.node, flavor: TopoLvm }.run(&mut SilentReporter)?;
        let notes = self.helm_output(&["get", "notes", RELEASE])?;
        ensure!(notes.contains("rollout status") && !notes.contains("without effect"), "{notes}");
        self.check_ready()?;
        self.remove_node(&without_storage)
    }

    /// Powers a node off, deletes its Node and the virtual one, and waits until the controllers run without them.
    fn remove_node(&self, node: &Node) -> Result<()> {
        node.down()?;
        self.kubectl(&["delete", "node", node.name(), "virtual", "--timeout=180s"])?;
        let selector = format!("spec.nodeName={}", node.name());
        self.kubectl(&["delete", "pods", "-n", NAMESPACE, "--field-selector", &selector, "--force"])?;
        self.kubectl(&["rollout", "status", "-n", NAMESPACE, "deployment/topolvm-controller", "--timeout=180s"])
            .map(drop)
    }

    /// Adds a node without a volume group, and a virtual Node.
    fn add_nodes_without_storage(&self) -> Result<Node> {
        self.cluster.apply(&virtual_node().to_string())?;
        self.cluster.add_node(&NodeSpec { vg_disks: Vec::new(), ..NodeSpec::number(2) })
    }

    /// Waits until all pods of the DaemonSets are ready, also where there is no storage.
    fn check_ready(&self) -> Result<()> {
        for name in ["topolvm-lvmd", "topolvm-node"] {
            wait_for("all pods are ready", || {
                let ready = workloads::wanted_and_ready(self.cluster, name)?;
                ensure!(ready == "2 2", "of {name} are wanted and ready: {ready}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Adds a device class and takes it back: lvmd reads its file again, and no pod of the product is replaced.
    fn upgrade_and_roll_back(&self) -> Result<()> {
        let values = self.cluster.directory().join("values.yaml");
        let classes = json!([
            {"name": "ssd", "volume-group": "myvg1", "default": true, "spare-gb": 10},
            {
                "name": THIN_CLASS, "volume-group": THIN_VG, "spare-gb": 0, "type": "thin",
                "thin-pool": {"name": THIN_POOL, "overprovision-ratio": THIN_OVERPROVISION},
            },
        ]);
        fs::write(&values, json!({"lvmd": {"deviceClasses": classes}}).to_string())?;
        let (chart, values) = (chart::directory(), values.to_string_lossy().into_owned());
        let before = self.pods()?;
        self.helm(&["upgrade", RELEASE, &chart.to_string_lossy(), "--values", &values])?;
        self.wait_for_thin_class(true)?;
        self.cluster.apply(&storage_class(TopoLvm, THIN_CLASS, Some(THIN_CLASS), false).to_string())?;
        self.cluster.apply(&claim("thin", THIN_CLASS, "1Gi", VolumeMode::Filesystem).to_string())?;
        self.run_pod("thin", "thin")?;
        self.kubectl(&["delete", "pod/thin", "pvc/thin", "--timeout=180s"])?;
        wait_for("the LV in the thin pool is removed", || {
            let left = self.kubectl(&["get", "logicalvolumes.topolvm.io", "-o", "name"])?;
            ensure!(left.is_empty(), "{left}");
            Ok(())
        })?;
        self.kubectl(&["delete", "storageclass", THIN_CLASS])?;
        self.helm(&["rollback", RELEASE, "1"])?;
        self.wait_for_thin_class(false)?;
        let after = self.pods()?;
        ensure!(before == after, "pods were restarted: {before} and then {after}");
        Ok(())
    }

    /// Uninstalls the release and installs it again while a pod has a volume.
    fn uninstall_around_a_volume(&self) -> Result<()> {
        self.cluster.apply(&claim("stays", CLASS, "512Mi", VolumeMode::Filesystem).to_string())?;
        self.run_pod("stays", "stays")?;
        self.kubectl(&["exec", "stays", "--", "sh", "-c", "echo kept >/data/file && sync"])?;
        let volume = self.kubectl(&["get", "pvc", "stays", "-o", "jsonpath={.spec.volumeName}"])?;
        let lv = self.kubectl(&["get", "pv", &volume, "-o", "jsonpath={.spec.csi.volumeHandle}"])?;

        self.helm_output(&["uninstall", RELEASE, "--wait", "--timeout=180s"])?;
        wait_for("nothing is left in the namespace", || {
            let left = self.kubectl(&["get", "all,configmaps,roles", "-n", NAMESPACE, "-o", "name"])?;
            let ours: Vec<&str> = left.lines().filter(|name| name.contains("topolvm")).collect();
            ensure!(ours.is_empty(), "{ours:?} are left");
            Ok(())
        })?;
        self.kubectl(&["get", "crd", "logicalvolumes.topolvm.io"])?;
        self.kubectl(&["get", "pv", &volume])?;
        self.kubectl(&["get", "logicalvolumes.topolvm.io", &volume])?;
        self.node.exec_ok(&["lvs", &format!("myvg1/{lv}")])?;
        let text = self.kubectl(&["exec", "stays", "--", "cat", "/data/file"])?;
        ensure!(text == "kept\n", "the pod has lost its volume: {text:?}");

        let chart = chart::directory();
        self.helm(&["install", RELEASE, &chart.to_string_lossy()])?;
        topolvm::wait_for_driver(self.cluster, &self.node, TopoLvm)?;
        self.kubectl(&["delete", "pod", "stays", "--timeout=180s"])?;
        self.run_pod("stays", "stays")?;
        let text = self.kubectl(&["exec", "stays", "--", "cat", "/data/file"])?;
        ensure!(text == "kept\n", "the file says {text:?}");
        self.kubectl(&["delete", "pod/stays", "pvc/stays", "--timeout=180s"])?;
        self.kubectl(&["wait", "--for=delete", &format!("pv/{volume}"), "--timeout=180s"])?;
        self.helm_output(&["uninstall", RELEASE, "--wait", "--timeout=180s"])?;
        let volumes = self.node.exec_ok(&["lvs", "--noheadings", "-o", "lv_name", "myvg1"])?;
        ensure!(volumes.trim().is_empty(), "LVs are left: {volumes}");
        Ok(())
    }

    /// Follows the page about helm from the namespace to an uninstallation.
    fn follow_page(&self) -> Result<()> {
        self.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=180s"])?;
        let values = self.cluster.directory().join("values.yaml");
        let page = Commands::of("helm.md", "Install, upgrade, uninstall")?;
        self.run_page(&page.with("values.yaml", &values.to_string_lossy())?)?;
        let left = self.kubectl(&["get", "deployments,daemonsets", "-n", NAMESPACE, "-o", "name"])?;
        ensure!(left.is_empty(), "{left} is left");
        Ok(())
    }

    /// Runs the commands of a page with helm in the PATH.
    fn run_page(&self, page: &Commands) -> Result<()> {
        let directory = tempfile::tempdir().context("create a directory for helm")?;
        symlink(chart::program()?, directory.path().join("helm")).context("link helm")?;
        let path = format!("{}:{}", directory.path().display(), plugin::search_path(self.cluster)?);
        page.answer(page.command(self.cluster)?.env("PATH", path)).map(drop)
    }

    /// Waits until lvmd has read its changed file. kubelet writes a changed ConfigMap into the volume of a running pod
    /// up to a minute and a half later, but at once when the pod's object changes.
    fn wait_for_thin_class(&self, wanted: bool) -> Result<()> {
        let began = Instant::now();
        wait_for(&format!("the node has the thin class: {wanted}"), || {
            let annotations =
                self.kubectl(&["get", "node", self.node.name(), "-o", "jsonpath={.metadata.annotations}"])?;
            if annotations.contains(THIN_ANNOTATION) == wanted {
                return Ok(());
            }
            let sync = format!("synced-after={}ms", began.elapsed().as_millis());
            self.kubectl(&["annotate", "pods", "--all", "-n", NAMESPACE, "--overwrite", &sync])?;
            bail!("{annotations}")
        })
    }

    /// Returns name, UID and restart count of each pod of the product.
    fn pods(&self) -> Result<String> {
        let what =
            "{range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}\n{end}";
        self.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", &format!("jsonpath={what}")])
    }

    fn run_pod(&self, name: &str, claim: &str) -> Result<()> {
        self.cluster.apply(&pod(name, claim, VolumeMode::Filesystem).to_string())?;
        let ready = self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"]);
        ready.map(drop).with_context(|| self.kubectl(&["describe", "pod,pvc"]).unwrap_or_default())
    }

    /// Runs helm for a change of the release, and waits until its pods are ready.
    fn helm(&self, arguments: &[&str]) -> Result<()> {
        self.helm_output(&[arguments, &["--wait", "--timeout=180s"]].concat()).map(drop)
    }

    fn helm_output(&self, arguments: &[&str]) -> Result<String> {
        chart::run(self.cluster, NAMESPACE, arguments)
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(arguments)
    }

    /// Returns the descriptions and the logs of the product's pods.
    fn logs(&self) -> String {
        let pods = self.kubectl(&["describe", "pods", "-n", NAMESPACE]).unwrap_or_default();
        let selector = "--selector=app.kubernetes.io/name=topolvm";
        let logs = ["logs", "-n", NAMESPACE, selector, "--all-containers", "--prefix", "--tail=40"];
        pods + &self.kubectl(&[&logs[..], &["--max-log-requests=40"]].concat()).unwrap_or_default()
    }
}

fn wait_for(what: &str, probe: impl Fn() -> Result<()>) -> Result<()> {
    let end = Instant::now() + SOON;
    loop {
        match probe() {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= end => return Err(error.context(format!("in vain: {what}"))),
            Err(_) => sleep(Duration::from_millis(200)),
        }
    }
}

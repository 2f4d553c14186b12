//! The cluster for the faults, and operations on it.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use testbed::size::GIB;
use testbed::topolvm::{self, LVMD_SOCKET, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use super::super::server::Prometheus;
use crate::kustomization::{Kustomization, lvmd_config, patch};
use crate::manifests::{VolumeMode, claim, pod, storage_class};
use crate::{plugin, product_images};

/// Name of a claim and its pod that exist from the first group on.
pub(super) const USED: &str = "used";
/// StorageClass of the default device class, whose volumes wait for their pod.
pub(super) const USED_CLASS: &str = "waiting";

/// StorageClasses that bind at once, and device classes of the same name.
pub(super) const IMMEDIATE: [&str; 3] = ["ssd", "wiped", "twice"];

/// Creates the volume groups of the device classes. The one of `wiped` is on a disk with injectable block errors: a
/// loop device, because LVM scans no other device on top of device-mapper, at an offset from the start of the disk, so
/// that LVM sees one label and not two. `pulled` has a disk that can be disconnected.
const NODE_SCRIPT: &str = "
vgs tight >/dev/null 2>&1 && exit
vgcreate -q tight /dev/ubdd
vgcreate -q pool /dev/ubde
lvcreate -qy -L 64m --poolmetadatasize 2m -T pool/small
dmsetup create --noudevsync weak --table \"0 $(($(blockdev --getsz /dev/ubdf) - 2048)) linear /dev/ubdf 2048\"
dmsetup mknodes weak
vgcreate -q wiped $(losetup -f --show --direct-io=on /dev/mapper/weak)
vgcreate -q renamed /dev/ubdg
truncate -s 128M /run/pulled
vgcreate -q pulled /dev/ubdh $(losetup -f --show /run/pulled)
vgcreate -q twice /dev/ubdi
";

/// A cluster with a Prometheus that evaluates the rules in fast time.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) node: &'a Node,
    /// Directory of the kustomization of the product.
    pub(super) manifests: &'a Path,
    pub(super) prometheus: &'a Prometheus<'a>,
}

/// Returns the specification of the cluster: the product as pods in the scheduling mode extender, on a node with a
/// volume group for each fault. The kustomization is written into a directory.
pub fn faults_spec(directory: &Path) -> Result<TopolvmSpec> {
    let add = |container: u8, flag: &str| {
        let path = format!("/spec/template/spec/containers/{container}/args/-");
        json!({"op": "add", "path": path, "value": flag})
    };
    let flags = json!([
        // Five minutes without
        add(0, "--extender-probe-interval=5s"),
        add(1, "--retry-interval-start=500ms"),
    ]);
    let kustomization = Kustomization {
        base: "overlays/lvmd",
        components: &["webhooks", "certificate-self-managed", "scheduler-deployment"],
        patches: vec![
            lvmd_config(&lvmd_yaml(true).to_string()),
            patch("Deployment", Some("topolvm-controller"), &flags),
        ],
        ..Kustomization::default()
    };
    let manifests = kustomization.write(directory)?;
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(1)?, &manifests)?;
    for node in &mut spec.nodes {
        node.spare_disks = vec![2 * GIB, GIB, GIB / 2, GIB / 2, GIB / 2, GIB / 2];
    }
    NODE_SCRIPT.clone_into(&mut spec.node_script);
    Ok(spec)
}

/// Returns the lvmd.yaml, with or without a default device class.
pub(super) fn lvmd_yaml(has_default: bool) -> Value {
    let class = |name: &str| json!({"name": name, "volume-group": name, "spare-gb": 0});
    json!({
        "socket-name": LVMD_SOCKET,
        "device-classes": [
            {"name": "ssd", "volume-group": "myvg1", "default": has_default, "spare-gb": 1},
            {"name": "tight", "volume-group": "tight", "spare-gb": 1},
            {
                "name": "thin", "volume-group": "pool", "spare-gb": 0, "type": "thin",
                "thin-pool": {"name": "small", "overprovision-ratio": 10},
            },
            {"name": "wiped", "volume-group": "wiped", "spare-gb": 0, "wipe": "zero"},
            class("renamed"),
            class("pulled"),
            class("twice"),
        ],
    })
}

impl Setup<'_> {
    /// Applies the StorageClasses.
    pub(super) fn apply_classes(&self) -> Result<()> {
        self.apply(&storage_class(TopoLvm, USED_CLASS, None, false))?;
        IMMEDIATE.iter().try_for_each(|class| self.apply(&storage_class(TopoLvm, class, Some(class), true)))
    }

    /// Runs kubectl and returns its standard output.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(arguments)
    }

    /// Runs kubectl in the namespace of the product.
    pub(super) fn kubectl_there(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl(&[&["-n", NAMESPACE], arguments].concat())
    }

    pub(super) fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).map(drop)
    }

    pub(super) fn apply_claim(&self, name: &str, class: &str) -> Result<()> {
        self.apply(&claim(name, class, "128Mi", VolumeMode::Filesystem))
    }

    pub(super) fn wait_bound(&self, claim: &str) -> Result<()> {
        let claim = format!("persistentvolumeclaim/{claim}");
        self.kubectl(&["wait", "--for=jsonpath={.status.phase}=Bound", &claim, "--timeout=180s"]).map(drop)
    }

    /// Starts a pod with a claim of its name.
    pub(super) fn start_pod(&self, name: &str, class: &str) -> Result<()> {
        self.apply_claim(name, class)?;
        self.apply(&pod(name, name, VolumeMode::Filesystem))?;
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"]).map(drop)
    }

    /// Deletes objects of the namespace `default`, such as `pvc/a`, and waits until they are deleted.
    pub(super) fn delete(&self, objects: &[&str]) -> Result<()> {
        self.kubectl(&[&["delete", "--timeout=180s"], objects].concat()).map(drop)
    }

    /// Runs a shell script in the node.
    pub(super) fn script(&self, script: &str) -> Result<String> {
        self.node.script(script)
    }

    /// Waits until these alerts have fired.
    pub(super) fn wait_for_alerts(&self, alerts: &[&str]) -> Result<()> {
        self.prometheus.wait_for_alerts(alerts, || Ok(()))
    }

    /// Waits until these alerts have fired, while pods with other addresses come.
    pub(super) fn wait_for_alerts_of_new_pods(&self, alerts: &[&str]) -> Result<()> {
        self.prometheus.wait_for_alerts(alerts, || self.prometheus.find_pods())
    }

    /// Waits until `doctor` finds each of these in the storage of nodes, with this part of the remedy.
    pub(super) fn wait_for_storage_findings(&self, expected: &[(&str, &str)]) -> Result<()> {
        plugin::wait_for_findings(self.cluster, "storage", expected)
    }

    /// Applies the product as it was at the start, waits until its pods are complete, and finds them.
    pub(super) fn restore_product(&self) -> Result<()> {
        topolvm::roll_out(self.cluster, self.manifests)?;
        self.prometheus.find_pods()
    }

    /// Waits until these alerts have ended.
    pub(super) fn wait_for_end(&self, alerts: &[&str]) -> Result<()> {
        self.prometheus.wait_for_end(alerts)
    }

    /// Returns the last lines of the product's logs.
    pub(super) fn logs(&self) -> String {
        let selector = "-l=app.kubernetes.io/name=topolvm";
        let logs = ["logs", selector, "--all-containers", "--prefix", "--tail=5", "--max-log-requests=40"];
        self.kubectl_there(&logs).unwrap_or_else(|error| format!("no logs: {error:#}"))
    }
}

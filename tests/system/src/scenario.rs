//! The main use case, step by step: a pod writes to a volume in a real volume group. The demo prints the steps, the
//! cluster tests assert them.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::node::Node;
use topolvm_api::ApiFlavor;

use crate::manifests::{VolumeMode, claim, pod, storage_class};

/// Volume group of the node.
const VG: &str = "myvg1";
/// Text that the pod writes into a file.
const TEXT: &str = "hello from a real logical volume";

/// Receives the steps that have succeeded.
pub trait Reporter {
    /// Takes a step that has succeeded, the seconds that it took, and the output that shows it.
    fn step(&mut self, title: &str, seconds: f64, lines: &str);
}

/// A step, which returns the output that shows its success.
type Step<T> = fn(&T) -> Result<String>;

/// A cluster with the product and one node.
#[derive(Debug)]
pub struct Scenario<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The node whose volume group is used.
    pub node: &'a Node,
    /// The API group that the product speaks.
    pub flavor: ApiFlavor,
}

impl Scenario<'_> {
    /// Runs all steps and ends with an empty volume group. Returns the error of the first step that fails, with
    /// kubectl's description of the objects concerned.
    pub fn run(&self, reporter: &mut dyn Reporter) -> Result<()> {
        let steps: [(&str, Step<Self>); 7] = [
            ("a StorageClass, a claim of 1Gi and a pod are applied; the claim is Bound", Self::claim_is_bound),
            ("the volume is a logical volume of the node", Self::volume_is_in_lvm),
            ("the pod runs on an ext4 mount and writes a file", Self::pod_writes),
            ("the pod is recreated and the file still exists", Self::file_survives),
            ("the claim grows from 1Gi to 2Gi while it is mounted", Self::volume_grows),
            ("pod and claim are deleted", Self::everything_is_deleted),
            ("the volume group is empty again", Self::volume_group_is_empty),
        ];
        for (title, step) in steps {
            let start = Instant::now();
            let lines = step(self).with_context(|| format!("{title}: this failed\n{}", self.describe()))?;
            reporter.step(title, start.elapsed().as_secs_f64(), &lines);
        }
        Ok(())
    }

    fn claim_is_bound(&self) -> Result<String> {
        self.apply(&storage_class(self.flavor, "demo", None, false))?;
        self.apply(&claim("demo", "demo", "1Gi", VolumeMode::Filesystem))?;
        self.apply(&pod("demo", "demo", VolumeMode::Filesystem))?;
        self.kubectl("wait --for=jsonpath={.status.phase}=Bound persistentvolumeclaim/demo --timeout=180s")?;
        self.kubectl("get persistentvolumeclaim demo")
    }

    fn volume_is_in_lvm(&self) -> Result<String> {
        let uid = self.kubectl(&format!("get {} -o jsonpath={{.items[*].metadata.uid}}", self.kind()))?;
        let listing = self.lvm(&["lvs", "-o", "lv_name,vg_name,lv_size,lv_attr", VG])?;
        ensure!(!uid.is_empty() && listing.contains(&uid), "no LV is named {uid:?}:\n{listing}");
        Ok(listing)
    }

    fn pod_writes(&self) -> Result<String> {
        self.kubectl("wait --for=condition=Ready pod/demo --timeout=180s")?;
        let mount = self.in_pod("grep ' /data ' /proc/mounts")?;
        ensure!(mount.contains(" ext4 "), "not an ext4 mount: {mount}");
        self.in_pod(&format!("echo '{TEXT}' >/data/file && sync"))?;
        Ok(mount + &self.in_pod("df -hP /data")?)
    }

    fn file_survives(&self) -> Result<String> {
        self.kubectl("delete pod demo --timeout=180s")?;
        self.apply(&pod("demo", "demo", VolumeMode::Filesystem))?;
        self.kubectl("wait --for=condition=Ready pod/demo --timeout=180s")?;
        let text = self.in_pod("cat /data/file")?;
        ensure!(text.trim() == TEXT, "the file says {text:?}");
        Ok(format!("/data/file: {text}"))
    }

    fn volume_grows(&self) -> Result<String> {
        let before = self.filesystem_mebibytes()?;
        self.kubectl_arguments(&[
            "patch",
            "persistentvolumeclaim",
            "demo",
            "-p",
            r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#,
        ])?;
        self.kubectl("wait --for=jsonpath={.status.capacity.storage}=2Gi persistentvolumeclaim/demo --timeout=180s")?;
        let after = self.filesystem_mebibytes()?;
        ensure!(before < 1024 && after > 1900, "df shows {before} MiB before and {after} MiB after");
        ensure!(self.in_pod("cat /data/file")?.trim() == TEXT, "the file did not survive");
        self.in_pod("df -hP /data")
    }

    fn everything_is_deleted(&self) -> Result<String> {
        let volume = self.kubectl("get persistentvolumeclaim demo -o jsonpath={.spec.volumeName}")?;
        self.kubectl("delete pod demo --timeout=180s")?;
        self.kubectl("delete persistentvolumeclaim demo --timeout=180s")?;
        self.kubectl(&format!("wait --for=delete persistentvolume/{volume} --timeout=180s"))?;
        self.kubectl("delete storageclass demo")?;
        Ok(format!("persistentvolume {volume} is gone"))
    }

    fn volume_group_is_empty(&self) -> Result<String> {
        let objects = self.kubectl(&format!("get {} -o name", self.kind()))?;
        ensure!(objects.is_empty(), "LogicalVolumes are left: {objects}");
        let volumes = self.lvm(&["lvs", "--noheadings", "-o", "lv_name", VG])?;
        ensure!(volumes.trim().is_empty(), "LVs are left: {volumes}");
        self.lvm(&["vgs", "-o", "vg_name,vg_size,vg_free,lv_count", VG])
    }

    /// Returns the name of the resource `LogicalVolume` for kubectl.
    fn kind(&self) -> String {
        format!("logicalvolumes.{}", self.flavor.group())
    }

    /// Returns the size of the filesystem that the pod sees, in MiB.
    fn filesystem_mebibytes(&self) -> Result<u64> {
        let output = self.in_pod("df -mP /data | tail -n 1")?;
        let size = output.split_whitespace().nth(1).context("df printed no size")?;
        size.parse().with_context(|| format!("df printed {output}"))
    }

    fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).map(drop)
    }

    /// Runs kubectl with arguments that are separated by spaces.
    fn kubectl(&self, words: &str) -> Result<String> {
        self.cluster.kubectl_ok(words.split(' '))
    }

    fn kubectl_arguments(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(arguments)
    }

    fn in_pod(&self, script: &str) -> Result<String> {
        self.cluster.kubectl_ok(["exec", "demo", "--", "sh", "-c", script])
    }

    fn lvm(&self, command: &[&str]) -> Result<String> {
        self.node.exec(command)?.success()
    }

    /// Returns kubectl's description of the objects concerned, for a failure.
    fn describe(&self) -> String {
        let objects = format!("get pods,pvc,pv,{} -o wide", self.kind());
        let texts = [objects.as_str(), "describe pod demo", "describe persistentvolumeclaim demo"];
        let texts = texts.map(|command| self.kubectl(command).unwrap_or_else(|error| format!("{error:#}")));
        texts.join("\n")
    }
}

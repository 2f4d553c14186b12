//! Pods that keep data in volumes, in addition to the sequences: data that they have written and synced must survive
//! every event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::node::Node;

use super::class::Class;
use super::fields::text;
use system_tests::manifests::{VolumeMode, claim, pod};

/// Size of each volume in MiB.
pub(super) const MEBIBYTES: u64 = 48;
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// A pod with a volume on a given node. Claim and pod have the same name.
#[derive(Debug)]
pub(super) struct Workload<'a> {
    cluster: &'a Cluster,
    node: &'a Node,
    patience: Duration,
    name: String,
    class: Class,
    mode: VolumeMode,
    /// Number that the pod has written and synced last.
    written: AtomicU64,
}

/// A volume whose claim is deleted.
#[derive(Debug)]
pub(super) struct DeletedVolume {
    /// Name of PersistentVolume and LogicalVolume.
    name: String,
    lv: String,
}

impl<'a> Workload<'a> {
    /// Returns a workload that is not started.
    pub(super) fn new(cluster: &'a Cluster, node: &'a Node, patience: Duration, purpose: &str, class: Class) -> Self {
        let name = format!("{purpose}-{}-{}", node.name(), class.name());
        Self { cluster, node, patience, name, class, mode: VolumeMode::Filesystem, written: AtomicU64::new(0) }
    }

    /// Changes the volume to a raw block volume, whose first sector has the number.
    pub(super) fn with_raw_block_volume(self) -> Self {
        Self { mode: VolumeMode::Block, ..self }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    pub(super) fn node(&self) -> &'a Node {
        self.node
    }

    /// Creates the claim, starts the pod, and writes a number.
    pub(super) fn start(&self) -> Result<()> {
        let size = format!("{MEBIBYTES}Mi");
        let claim = claim(&self.name, self.class.waiting_name(), &size, self.mode).to_string();
        self.cluster.apply(&claim)?;
        self.start_pod()?;
        self.write()
    }

    /// Starts the pod without waiting for it.
    pub(super) fn start_pod(&self) -> Result<()> {
        let mut pod = pod(&self.name, &self.name, self.mode);
        if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
            spec.insert("nodeSelector".to_owned(), json!({"kubernetes.io/hostname": self.node.name()}));
        }
        self.cluster.apply(&pod.to_string()).map(drop)
    }

    /// Deletes the pod and waits until its volume is no longer in use.
    pub(super) fn stop_pod(&self) -> Result<()> {
        self.cluster.kubectl_ok(["delete", "pod", &self.name, "--ignore-not-found", "--timeout=180s"]).map(drop)
    }

    /// Writes the next number in the pod and syncs it.
    pub(super) fn write(&self) -> Result<()> {
        let number = self.written.load(Ordering::Relaxed) + 1;
        self.retry("writes", || self.exec_in_pod(&format!("echo {number} >{} && sync", self.file())))?;
        self.written.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the path of the number in the pod.
    fn file(&self) -> &'static str {
        match self.mode {
            VolumeMode::Filesystem => "/data/number",
            VolumeMode::Block => "/data",
        }
    }

    /// Waits until the pod runs, and checks the number that it has written.
    pub(super) fn check(&self) -> Result<()> {
        let has =
            self.retry("reads", || self.exec_in_pod(&format!("head -n1 {} 2>/dev/null || echo nothing", self.file())))?;
        let written = self.written.load(Ordering::Relaxed).to_string();
        ensure!(has.trim() == written, "{} has written and synced {written}, and reads {has:?}", self.name);
        Ok(())
    }

    /// Replaces the pod by another one, and checks that it finds the data.
    pub(super) fn restart(&self) -> Result<()> {
        self.write()?;
        self.stop_pod()?;
        self.start_pod()?;
        self.check()
    }

    /// Waits for the event FailedMount of the new pod and returns its message. It is an error if the pod is Ready.
    pub(super) fn wait_for_mount_failure(&self) -> Result<String> {
        let end = Instant::now() + self.patience;
        loop {
            let pod = self.object("pod", &self.name)?;
            let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
            let is_ready =
                |condition: &Value| text(condition, "/type") == "Ready" && text(condition, "/status") == "True";
            ensure!(!conditions.into_iter().flatten().any(is_ready), "pod {} is Ready", self.name);
            let selector = format!("involvedObject.uid={},reason=FailedMount", text(&pod, "/metadata/uid"));
            let format = "jsonpath={range .items[*]}{.message}{\"\\n\"}{end}";
            let said = self.cluster.kubectl_ok(["get", "events", "--field-selector", &selector, "-o", format])?;
            if let Some(line) = said.lines().find(|line| !line.is_empty()) {
                return Ok(line.to_owned());
            }
            if Instant::now() > end {
                bail!("pod {} is not Ready, and no event FailedMount says why", self.name);
            }
            sleep(POLL_INTERVAL);
        }
    }

    /// Deletes pod and claim, and waits until the volume is removed from Kubernetes and from LVM.
    pub(super) fn delete(&self) -> Result<()> {
        let volume = self.begin_deletion()?;
        self.wait_until_removed(&volume)
    }

    /// Deletes pod and claim, and returns the volume, which may still exist.
    pub(super) fn begin_deletion(&self) -> Result<DeletedVolume> {
        let volume = DeletedVolume { name: self.volume()?, lv: self.lv()? };
        self.stop_pod()?;
        self.cluster.kubectl_ok(["delete", "persistentvolumeclaim", &self.name, "--timeout=180s"])?;
        Ok(volume)
    }

    /// Waits until a volume is removed from Kubernetes and from LVM.
    pub(super) fn wait_until_removed(&self, DeletedVolume { name, lv }: &DeletedVolume) -> Result<()> {
        self.cluster.kubectl_ok(["wait", "--for=delete", &format!("persistentvolume/{name}"), "--timeout=180s"])?;
        let there = self.node.script("lvs --noheadings -o lv_name")?;
        ensure!(!there.contains(lv), "LV {lv} of {} is still there when its PersistentVolume is gone", self.name);
        Ok(())
    }

    /// Waits for an Event about a volume, and returns its message.
    pub(super) fn wait_for_event(&self, volume: &DeletedVolume, reason: &str) -> Result<String> {
        let selector = format!("involvedObject.name={},reason={reason}", volume.name);
        let format = "jsonpath={.items[*].message}";
        self.retry("waits for the Event", || {
            let said = self.cluster.kubectl_ok(["get", "events", "-A", "--field-selector", &selector, "-o", format])?;
            ensure!(!said.is_empty(), "no Event {reason}");
            Ok(said)
        })
    }

    /// Returns the path of the volume's device in the node.
    pub(super) fn device(&self) -> Result<String> {
        let lv = self.lv()?;
        let group = self.node.script(&format!("lvs --noheadings -o vg_name -S lv_name={lv}"))?;
        Ok(format!("/dev/{}/{lv}", group.trim()))
    }

    /// Returns the name of the LV.
    fn lv(&self) -> Result<String> {
        Ok(text(&self.object("persistentvolume", &self.volume()?)?, "/spec/csi/volumeHandle").to_owned())
    }

    /// Returns the name of PersistentVolume and LogicalVolume.
    pub(super) fn volume(&self) -> Result<String> {
        Ok(text(&self.object("persistentvolumeclaim", &self.name)?, "/spec/volumeName").to_owned())
    }

    /// Returns where the node has the volume mounted for the pod.
    pub(super) fn mount_directory(&self) -> Result<String> {
        let end = format!("kubernetes.io~csi/{}/mount", self.volume()?);
        let directory = self.node.script(&format!("awk '$2 ~ \"{end}\" {{print $2; exit}}' /proc/mounts"))?;
        ensure!(!directory.trim().is_empty(), "{} is not mounted", self.name);
        Ok(directory.trim().to_owned())
    }

    /// Returns the pids and names of the pod's processes that no signal can end now (state D).
    pub(super) fn uninterruptible_processes(&self) -> Result<String> {
        let pod = self.object("pod", &self.name)?;
        let uid = text(&pod, "/metadata/uid");
        let found = self.node.script(&format!(
            "for process in /proc/[0-9]*; do
                 if grep -q 'pod{uid}' $process/cgroup && grep -q '^State:.D' $process/status; then
                     echo ${{process#/proc/}} $(cat $process/comm)
                 fi
             done 2>/dev/null; true"
        ))?;
        Ok(found.trim().to_owned())
    }

    fn object(&self, kind: &str, name: &str) -> Result<Value> {
        serde_json::from_str(&self.cluster.kubectl_ok(["get", kind, name, "-o", "json"])?)
            .context("kubectl prints no JSON")
    }

    fn exec_in_pod(&self, script: &str) -> Result<String> {
        let request_timeout = "--request-timeout=20s";
        self.cluster.kubectl_ok(["exec", request_timeout, &self.name, "--", "sh", "-c", script])
    }

    /// Retries an attempt until it succeeds or times out: the pod may not run yet, or not again.
    fn retry<T>(&self, what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let end = Instant::now() + self.patience;
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(error) if Instant::now() > end => {
                    let events = self.cluster.kubectl_ok([
                        "get",
                        "events",
                        "--field-selector",
                        &format!("involvedObject.name={}", self.name),
                    ]);
                    return Err(error).with_context(|| {
                        format!(
                            "pod {} {what} nothing for {:?}; events:\n{}",
                            self.name,
                            self.patience,
                            events.unwrap_or_default()
                        )
                    });
                }
                Err(_) => sleep(POLL_INTERVAL),
            }
        }
    }
}

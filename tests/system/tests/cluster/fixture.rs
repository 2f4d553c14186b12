//! The cluster that the trials share, and the words they use about it.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, storage_class};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::{self, THIN_CLASS, Topolvm, TopolvmSpec};

/// Volume group of the node.
pub(crate) const VG: &str = "myvg1";

/// Started by the first trial that wants it, so that listing the trials starts nothing.
static SHARED: Mutex<Option<Fixture>> = Mutex::new(None);

/// A cluster with the product, one node, and the classes `waiting` (binds with a pod), `thin` (the same in a thin pool), `immediate` and
/// `unknown` (of a device class that no node has).
pub(crate) struct Fixture {
    pub(crate) cluster: Cluster,
    pub(crate) node: Node,
    directory: tempfile::TempDir,
}

/// Runs a trial. After one that failed everything it left is removed, so that the next one says something.
pub(crate) fn with(body: impl FnOnce(&Fixture) -> Result<()>) -> Result<()> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let fixture = match &mut *shared {
        Some(fixture) => fixture,
        none => none.insert(Fixture::up()?),
    };
    body(fixture).map_err(|error| {
        let state = fixture.state();
        let clean = fixture.clean_up();
        error.context(format!("clean-up afterwards: {clean:?}\nstate at the failure:\n{state}"))
    })
}

/// Ends the cluster, if one was started.
pub(crate) fn down() -> Result<()> {
    let Some(fixture) = SHARED.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
    fixture.cluster.down(None)?;
    fixture.directory.close().context("cannot remove the directory of the cluster")
}

impl Fixture {
    fn up() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("topolvm-cluster-").tempdir_in("/var/tmp")?;
        let spec = TopolvmSpec::nodes(1)?.with_thin_class();
        let Topolvm { cluster, nodes } = topolvm::up_with(&directory.path().join("c"), &spec)?;
        let node = nodes.into_iter().next().context("the cluster has no node")?;
        let fixture = Self { cluster, node, directory };
        fixture.apply(&storage_class("waiting", None, false))?;
        fixture.apply(&storage_class("immediate", None, true))?;
        fixture.apply(&storage_class("thin", Some(THIN_CLASS), false))?;
        fixture.apply(&storage_class("unknown", Some("no-such-class"), true))?;
        Ok(fixture)
    }

    /// Applies an object.
    pub(crate) fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).map(drop)
    }

    /// Applies a claim for a filesystem.
    pub(crate) fn apply_claim(&self, name: &str, class: &str, size: &str) -> Result<()> {
        self.apply(&claim(name, class, size, VolumeMode::Filesystem))
    }

    /// kubectl's standard output.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(arguments)
    }

    /// Runs a shell command in a pod.
    pub(crate) fn in_pod(&self, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    /// Waits until the claim is Bound.
    pub(crate) fn wait_bound(&self, claim: &str) -> Result<()> {
        let claim = format!("persistentvolumeclaim/{claim}");
        self.kubectl(&["wait", "--for=jsonpath={.status.phase}=Bound", &claim, "--timeout=90s"]).map(drop)
    }

    /// Waits until the pod is Ready.
    pub(crate) fn wait_ready(&self, pod: &str) -> Result<()> {
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=90s"]).map(drop)
    }

    /// Waits for an event of this reason about this object, and returns its message.
    pub(crate) fn wait_event(&self, object: &str, reason: &str) -> Result<String> {
        let selector = format!("involvedObject.name={object},reason={reason}");
        let mut command = self.cluster.kubectl_command();
        command.args(["get", "events", "--watch", "--request-timeout=60s", "--field-selector", &selector]);
        command.args(["-o", "jsonpath={.message}{\"\\n\"}"]);
        let mut kubectl = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        let output = kubectl.stdout.take().context("kubectl has no output")?;
        let read = BufReader::new(output).read_line(&mut line);
        kubectl.kill()?;
        kubectl.wait()?;
        read?;
        ensure!(!line.is_empty(), "no event {reason} about {object} within a minute");
        Ok(line)
    }

    /// Asks for another size of a claim.
    pub(crate) fn request_size(&self, claim: &str, size: &str) -> Result<()> {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
        self.kubectl(&["patch", "persistentvolumeclaim", claim, "-p", &patch]).map(drop)
    }

    /// Asks for another size and waits until the volume, not yet any filesystem on it, has it.
    pub(crate) fn grow(&self, claim: &str, size: &str) -> Result<()> {
        self.request_size(claim, size)?;
        let volume = self.kubectl(&["get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"])?;
        let condition = format!("--for=jsonpath={{.spec.capacity.storage}}={size}");
        self.kubectl(&["wait", &condition, &format!("persistentvolume/{volume}"), "--timeout=90s"]).map(drop)
    }

    /// Deletes a claim, if it is still there, and waits until its volume is gone.
    pub(crate) fn delete_claim(&self, claim: &str) -> Result<()> {
        let volume = self.kubectl(&["get", "pvc", claim, "--ignore-not-found", "-o", "jsonpath={.spec.volumeName}"])?;
        self.kubectl(&["delete", "persistentvolumeclaim", claim, "--ignore-not-found", "--timeout=90s"])?;
        if volume.is_empty() {
            self.wait_no_volumes()
        } else {
            self.kubectl(&["wait", "--for=delete", &format!("persistentvolume/{volume}"), "--timeout=90s"]).map(drop)
        }
    }

    fn wait_no_volumes(&self) -> Result<()> {
        self.kubectl(&["wait", "--for=delete", "logicalvolumes.topolvm.io", "--all", "--timeout=90s"]).map(drop)
    }

    /// There are this many LogicalVolumes, each has its LV, and there is no other LV.
    pub(crate) fn check_volumes(&self, count: usize) -> Result<()> {
        let mut objects = words(&self.kubectl(&[
            "get",
            "logicalvolumes.topolvm.io",
            "-o",
            "jsonpath={range .items[*]}{.metadata.uid} {end}",
        ])?);
        let mut volumes = words(&self.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?);
        objects.sort();
        volumes.sort();
        ensure!(objects == volumes, "LogicalVolumes {objects:?} and LVs {volumes:?} do not match");
        ensure!(objects.len() == count, "{} volumes where {count} should be: {objects:?}", objects.len());
        Ok(())
    }

    /// From now on lvmd calls this script for LVM.
    pub(crate) fn use_lvm(&self, script: &str) -> Result<()> {
        let install = "mkdir -p /run/crash && rm -f /run/crash/arm* && cat >/run/crash/lvm.new && chmod 755 /run/crash/lvm.new \
                       && mv /run/crash/lvm.new /run/crash/lvm";
        self.node.script_with_input(install, script.as_bytes())?;
        if !self.node.script("cat /etc/topolvm/lvmd.yaml")?.contains("/run/crash/lvm") {
            self.node.script("sed -i '/^lvm-command-prefix/d' /etc/topolvm/lvmd.yaml && echo 'lvm-command-prefix: [/run/crash/lvm]' >>/etc/topolvm/lvmd.yaml")?;
            self.node.kill_kept("lvmd")?;
        }
        Ok(())
    }

    /// After kubelet and the agent were killed: waits until kubelet has published the pods' volumes to the new agent.
    pub(crate) fn wait_node_ready_again(&self) -> Result<()> {
        let published = r#"topolvm_grpc_handled_total.method="NodePublishVolume",code="Ok". [1-9]"#;
        let script = format!(
            "timeout 90 sh -c 'until curl -s http://127.0.0.1:8080/metrics | grep -q '\\''{published}'\\''; do sleep 0.2; done'"
        );
        self.node.script(&script).context("kubelet has not published the volume again").map(drop)
    }

    fn clean_up(&self) -> Result<()> {
        self.node.script("rm -f /run/crash/arm")?;
        self.kubectl(&["delete", "pods,persistentvolumeclaims", "--all", "--timeout=60s"])?;
        let definition = "volumesnapshots.snapshot.storage.k8s.io";
        if !self.kubectl(&["get", "crd", definition, "--ignore-not-found", "-o", "name"])?.is_empty() {
            self.kubectl(&["delete", "volumesnapshots", "--all", "--timeout=60s"])?;
        }
        self.wait_no_volumes()
    }

    fn state(&self) -> String {
        let mut text = String::new();
        for arguments in [
            &["get", "pods,pvc,pv", "-o", "wide"][..],
            &["get", "logicalvolumes.topolvm.io", "-o", "yaml"],
            &["get", "events", "--sort-by=.lastTimestamp"],
        ] {
            text += &self.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"));
        }
        text += &self
            .node
            .script("lvs -a -o +tags; tail -n 15 /run/node/lvmd.log /run/node/topolvm-node.log")
            .unwrap_or_default();
        text
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

//! The control plane that the tests share, and operations on its objects.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::{VolumeMode, claim, webhook_endpoints};
use system_tests::shared::{ClusterPool, TestCluster};
use testbed::cluster::Cluster;
use testbed::failure::WithState as _;
use testbed::network::GATEWAY;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec};

/// Name of the StorageClass in `deploy/manifests/base/storageclass.yaml`.
pub(crate) const CLASS: &str = "topolvm-provisioner";
/// Name of the resource `LogicalVolume` for kubectl.
pub(crate) const LV: &str = "logicalvolumes.topolvm.io";
/// Flags for a leader election within seconds.
pub(crate) const ELECTION: [&str; 3] = [
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
];
/// Time for a process to exit after SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

static SHARED: ClusterPool<Fixture> = ClusterPool::new(1);

/// A control plane with the product's manifests and its controller.
pub(crate) struct Fixture {
    shared: TestCluster,
}

impl Deref for Fixture {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.shared
    }
}

/// Runs a test with the shared control plane.
pub(crate) fn run_test(body: impl FnOnce(&Fixture) -> Result<()>) -> Result<()> {
    let up = || Ok(Fixture { shared: TestCluster::up("control-plane", &spec(&[])?)? });
    SHARED.run_with(up, |fixture| body(fixture).with_state(|| fixture.state()))
}

/// Stops the control plane, if one was started.
pub(crate) fn down() -> Result<()> {
    SHARED.stop_idle(|fixture| fixture.shared.down())
}

impl Fixture {
    /// Runs `body` with a controller that has these further arguments, and restores the usual one.
    pub(crate) fn with_controller<T>(&self, arguments: &[&str], body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.cluster.stop(CONTROLLER, GRACE)?;
        topolvm::start_controller(&self.cluster, &spec(arguments)?)?;
        let done = body();
        self.cluster.stop(CONTROLLER, GRACE)?;
        topolvm::start_controller(&self.cluster, &spec(&[])?)?;
        done
    }

    pub(crate) fn exists(&self, kind: &str, name: &str) -> Result<bool> {
        Ok(!self.kubectl(&["get", kind, name, "--ignore-not-found", "-o", "name"])?.is_empty())
    }

    pub(crate) fn wait(&self, condition: &str, kind: &str, name: &str) -> Result<()> {
        self.kubectl(&["wait", condition, &format!("{kind}/{name}"), "--timeout=180s"]).map(drop)
    }

    /// Creates a Node with the agent's finalizer.
    pub(crate) fn create_node(&self, name: &str) -> Result<()> {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": name}},
        }))
    }

    /// Creates a LogicalVolume with the agent's finalizer.
    pub(crate) fn create_volume(&self, name: &str, node: &str) -> Result<()> {
        self.apply(&json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": name, "finalizers": ["topolvm.io/logicalvolume"]},
            "spec": {"name": name, "nodeName": node, "size": "1Gi"},
        }))
    }

    /// Creates a claim with these annotations and finalizers.
    pub(crate) fn create_claim(&self, name: &str, annotations: &Value, finalizers: &[&str]) -> Result<()> {
        let mut claim = claim(name, CLASS, "1Gi", VolumeMode::Filesystem);
        claim["metadata"]["annotations"] = annotations.clone();
        claim["metadata"]["finalizers"] = json!(finalizers);
        self.apply(&claim)
    }

    /// Binds a claim to the volume of a LogicalVolume, through a PersistentVolume of the same name.
    pub(crate) fn bind_claim(&self, claim: &str, volume: &str) -> Result<()> {
        let claim_ref = json!({
            "kind": "PersistentVolumeClaim", "namespace": "default", "name": claim,
            "uid": self.value("pvc", claim, ".metadata.uid")?,
        });
        let handle = self.value(LV, volume, ".metadata.uid")?;
        self.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": CLASS,
                "persistentVolumeReclaimPolicy": "Delete", "claimRef": claim_ref,
                "csi": {"driver": "topolvm.io", "volumeHandle": handle},
            },
        }))?;
        self.wait("--for=jsonpath={.status.phase}=Bound", "pvc", claim)
    }

    /// Waits until an object has an Event of this type and reason, with this text.
    pub(crate) fn wait_event(&self, kind: &str, name: &str, what: &str, words: &str) -> Result<()> {
        let selector = format!("--field-selector=involvedObject.kind={kind},involvedObject.name={name}");
        let format = r#"jsonpath={range .items[*]}{.type} {.reason}: {.message}{"\n"}{end}"#;
        self.cluster.ready("apiserver", || {
            let events = self.kubectl(&["get", "events", &selector, "-o", format])?;
            let is_there = events.lines().any(|event| event.starts_with(&format!("{what}: ")) && event.contains(words));
            ensure!(is_there, "no event {what} with {words:?} about {kind} {name}: {events}");
            Ok(())
        })
    }

    /// Checks that no request of the controller was forbidden.
    pub(crate) fn check_rights(&self) -> Result<()> {
        let log = fs::read_to_string(self.cluster.log(CONTROLLER))?.to_lowercase();
        let refused: Vec<_> = log.lines().filter(|line| line.contains("forbidden")).collect();
        ensure!(refused.is_empty(), "a right is missing in rbac.yaml: {refused:#?}");
        Ok(())
    }

    fn state(&self) -> String {
        let arguments = ["get", "nodes,pvc,pods,logicalvolumes.topolvm.io,leases", "-A", "-o", "wide"];
        let objects = self.kubectl(&arguments).unwrap_or_else(|error| format!("{error:#}"));
        let log = fs::read_to_string(self.cluster.log(CONTROLLER)).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(20).collect();
        format!("state at the failure:\n{objects}\ncontroller, last line first:\n{}", last.join("\n"))
    }
}

/// Returns the specification of a control plane and a controller with these further arguments.
pub(crate) fn spec(arguments: &[&str]) -> Result<TopolvmSpec> {
    let controller_arguments = ELECTION.iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    Ok(TopolvmSpec { embeds_controllers: false, controller_arguments, ..TopolvmSpec::nodes(0)? })
}

/// Writes the manifests of the overlay `extender`, for a controller that is a process of the test bed: no pod is behind
/// its Service. Returns their directory.
pub(crate) fn write_extender_manifests(cluster: &Cluster) -> Result<PathBuf> {
    let directory = cluster.directory().join("extender");
    let without_selector = json!([{"op": "remove", "path": "/spec/selector"}]);
    Kustomization {
        base: "overlays/extender",
        resources: &["endpoints.yaml"],
        patches: vec![patch("Service", Some("topolvm-controller"), &without_selector)],
        ..Kustomization::default()
    }
    .write(&directory)?;
    fs::write(directory.join("endpoints.yaml"), webhook_endpoints(&[GATEWAY])).context("write the endpoints")?;
    Ok(directory)
}

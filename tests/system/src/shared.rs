//! A cluster that the trials of a test program share. The first trial that wants it starts it, so that listing the trials starts nothing.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::network::API_SERVER;
use testbed::node::Node;
use testbed::topolvm::{self, Topolvm, TopolvmSpec};

/// A cluster with the product, in a directory of its own.
#[derive(Debug)]
pub struct TestCluster {
    /// The cluster.
    pub cluster: Cluster,
    /// Its nodes.
    pub nodes: Vec<Node>,
    directory: tempfile::TempDir,
}

impl TestCluster {
    /// Starts one. The directory's name says what it is for.
    pub fn up(name: &str, spec: &TopolvmSpec) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&format!("topolvm-{name}-")).tempdir_in("/var/tmp")?;
        let Topolvm { cluster, nodes } = topolvm::up_with(&directory.path().join("c"), spec)?;
        Ok(Self { cluster, nodes, directory })
    }

    /// Its first node.
    pub fn node(&self) -> Result<&Node> {
        self.nodes.first().context("the cluster has no node")
    }

    /// Applies an object.
    pub fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).map(drop)
    }

    /// kubectl's standard output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(arguments)
    }

    /// One value of an object.
    pub fn value(&self, kind: &str, name: &str, path: &str) -> Result<String> {
        self.kubectl(&["get", kind, name, "-o", &format!("jsonpath={{{path}}}")])
    }

    /// Waits until a value of an object is this; a minute at most.
    pub fn wait_value(&self, kind: &str, name: &str, path: &str, wanted: &str) -> Result<()> {
        self.cluster.ready("apiserver", || {
            let value = self.value(kind, name, path)?;
            ensure!(value == wanted, "{path} of {kind} {name} is {value:?} and not {wanted:?}");
            Ok(())
        })
    }

    /// One request with the token of a service account: the HTTP status, and what the API server says. kubectl would first read.
    pub fn request_as(&self, token: &str, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let mut command = self.cluster.command("curl");
        command.args([
            "--silent",
            "--insecure",
            "--max-time",
            "10",
            "--write-out",
            "\\n%{http_code}",
            "--request",
            method,
        ]);
        command.args(["--header", &format!("Authorization: Bearer {token}"), "--data", body]);
        command.args([
            "--header",
            "Content-Type: application/merge-patch+json",
            &format!("https://{API_SERVER}{path}"),
        ]);
        let output = command.output().context("run curl")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (said, status) = text.rsplit_once('\n').context("curl says nothing")?;
        Ok((status.parse().context("no HTTP status")?, said.to_owned()))
    }

    /// Ends it.
    pub fn down(self) -> Result<()> {
        self.cluster.down(None)?;
        self.directory.close().context("cannot remove the directory of the cluster")
    }
}

/// What the trials share: a [`TestCluster`], or more that contains one.
#[derive(Debug)]
pub struct Shared<T>(Mutex<Option<T>>);

impl<T> Shared<T> {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Runs a trial, which has the cluster for itself. `up` starts it for the first one.
    pub fn with(&self, up: impl FnOnce() -> Result<T>, body: impl FnOnce(&T) -> Result<()>) -> Result<()> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = match &mut *shared {
            Some(shared) => shared,
            none => none.insert(up()?),
        };
        body(shared)
    }

    /// Ends the cluster, if one was started.
    pub fn end(&self, down: impl FnOnce(T) -> Result<()>) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), down)
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self::new()
    }
}

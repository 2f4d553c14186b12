//! Pools of clusters that the tests of a test program share. The first test that needs one starts it, so that listing
//! the tests starts nothing.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::network::API_SERVER;
use testbed::node::Node;
use testbed::topolvm::{self, Topolvm, TopolvmSpec};

use crate::fresh_cluster;

/// A cluster with the product, in a separate directory.
#[derive(Debug)]
pub struct TestCluster {
    /// The cluster.
    pub cluster: Cluster,
    /// Nodes of the cluster.
    pub nodes: Vec<Node>,
    directory: tempfile::TempDir,
}

impl TestCluster {
    /// Starts a cluster with the product; `name` becomes part of the directory's name.
    pub fn up(name: &str, spec: &TopolvmSpec) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&format!("topolvm-{name}-")).tempdir_in("/var/tmp")?;
        let Topolvm { cluster, nodes } = topolvm::up_with(&directory.path().join("c"), spec)?;
        Ok(Self { cluster, nodes, directory })
    }

    /// Starts a cluster that is ready for the product and does not have it: with its images and volume groups in the
    /// nodes, and with snapshots.
    pub fn without_product(name: &str, spec: &TopolvmSpec) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix(&format!("topolvm-{name}-")).tempdir_in("/var/tmp")?;
        let Topolvm { cluster, nodes } = fresh_cluster::up(&directory.path().join("c"), spec)?;
        Ok(Self { cluster, nodes, directory })
    }

    /// Returns the first node.
    pub fn node(&self) -> Result<&Node> {
        self.nodes.first().context("the cluster has no node")
    }

    /// Applies an object.
    pub fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).map(drop)
    }

    /// Runs kubectl and returns its standard output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(arguments)
    }

    /// Returns the value at a JSONPath of an object.
    pub fn value(&self, kind: &str, name: &str, path: &str) -> Result<String> {
        self.kubectl(&["get", kind, name, "-o", &format!("jsonpath={{{path}}}")])
    }

    /// Waits until the value at a JSONPath of an object is `wanted`, for at most three minutes.
    pub fn wait_value(&self, kind: &str, name: &str, path: &str, wanted: &str) -> Result<()> {
        self.cluster.ready("apiserver", || {
            let value = self.value(kind, name, path)?;
            ensure!(value == wanted, "{path} of {kind} {name} is {value:?} and not {wanted:?}");
            Ok(())
        })
    }

    /// Sends one request with the token of a service account, which kubectl would precede by reads. Returns the HTTP
    /// status and the body of the response. A PATCH is a merge patch.
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
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        command.args(["--header", &format!("Content-Type: {content}"), &format!("https://{API_SERVER}{path}")]);
        let output = command.output().context("run curl")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (said, status) = text.rsplit_once('\n').context("curl says nothing")?;
        Ok((status.parse().context("no HTTP status")?, said.to_owned()))
    }

    /// Stops the cluster and removes its directory.
    pub fn down(self) -> Result<()> {
        self.cluster.down(None)?;
        self.directory.close().context("cannot remove the directory of the cluster")
    }
}

/// A pool of at most `limit` values of `T`: a [`TestCluster`], or a value that contains one. A test has exclusive use
/// of one.
#[derive(Debug)]
pub struct ClusterPool<T> {
    limit: usize,
    state: Mutex<State<T>>,
    given_back: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// Values that no test uses.
    idle: Vec<T>,
    /// Number of values that are started or starting.
    up: usize,
}

impl<T> ClusterPool<T> {
    /// Returns an empty pool for at most `limit` values.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::new(State { idle: Vec::new(), up: 0 }), given_back: Condvar::new() }
    }

    /// Runs a test with an idle value. If there is none, `up` starts another, or the test waits at the limit.
    pub fn run_with(&self, up: impl FnOnce() -> Result<T>, body: impl FnOnce(&T) -> Result<()>) -> Result<()> {
        let mut taken = Taken { pool: self, one: self.take_idle() };
        body(match &mut taken.one {
            Some(one) => one,
            none => none.insert(up()?),
        })
    }

    /// Stops the values that no test uses.
    pub fn stop_idle(&self, down: impl Fn(T) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        let idle = mem::take(&mut state.idle);
        state.up -= idle.len();
        drop(state);
        idle.into_iter().map(down).fold(Ok(()), Result::and)
    }

    /// Takes an idle value, or returns nothing if the caller is to start one. Waits if all are in use and the limit is
    /// reached.
    fn take_idle(&self) -> Option<T> {
        let state = self.lock();
        let occupied = |state: &mut State<T>| state.idle.is_empty() && state.up >= self.limit;
        let mut state = self.given_back.wait_while(state, occupied).unwrap_or_else(PoisonError::into_inner);
        let one = state.idle.pop();
        if one.is_none() {
            state.up += 1;
        }
        one
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guard that returns a value to the pool when the test ends or panics.
struct Taken<'a, T> {
    pool: &'a ClusterPool<T>,
    one: Option<T>,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        match self.one.take() {
            Some(one) => state.idle.push(one),
            // It did not start
            None => state.up -= 1,
        }
        drop(state);
        self.pool.given_back.notify_one();
    }
}

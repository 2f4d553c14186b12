//! topolvm-controller with its web page over a fake API server, which has exactly the objects that a test creates.

mod agents;

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testbed::topolvm::{CONTROLLER, TopolvmSpec};
use tokio::runtime::{self, Runtime};
use topolvm_api::LogicalVolume;
use topolvm_runtime::CancellationToken;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node};

use crate::fake_api_server;

pub use agents::Agents;

/// Name of the resource for [`ApiServer::edit`].
pub const LV: &str = "logicalvolumes.topolvm.io";
/// Namespace of the programs.
pub const NAMESPACE: &str = "topolvm-system";
/// Time in which the controller begins to serve the page.
const START: Duration = Duration::from_mins(1);
/// Interval of the attempts to connect to it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The controller and its API server; both end when this is dropped.
#[derive(Debug)]
pub struct WebPage {
    /// Objects of the cluster.
    pub api: ApiServer,
    /// Address of the page.
    pub url: String,
    controller: Child,
    agents: Agents,
    shutdown: CancellationToken,
    _runtime: Runtime,
}

impl WebPage {
    /// Starts a controller over an empty API server, with its files in `directory`. Its checks run at
    /// `--doctor-interval`.
    pub fn start(directory: &Path, doctor_interval: &str) -> Result<Self> {
        let api = ApiServer::new();
        #[expect(clippy::disallowed_methods, reason = "objects are as old for the controller as they are")]
        api.set_clock(Timestamp::now());
        let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let shutdown = CancellationToken::new();
        let server = fake_api_server::serve(&runtime, &api, &shutdown)?;
        let agents = Agents::serve(&runtime, &shutdown)?;
        let kubeconfig = directory.join("kubeconfig");
        fake_api_server::write_kubeconfig(&kubeconfig, &server)?;
        let address = fake_api_server::free_address()?;
        #[expect(clippy::disallowed_methods, reason = "the program is under test")]
        let mut command = Command::new(TopolvmSpec::nodes(0)?.programs.join(CONTROLLER));
        command
            .args(["--metrics-bind-address=", "--health-probe-bind-address=", "--leader-election=false"])
            .args(["--doctor-interval", doctor_interval, "--log-level=warn", "--pod-name=controller"])
            .args([format!("--pod-namespace={NAMESPACE}"), format!("--ui-bind-address={address}")])
            .arg("--csi-socket")
            .arg(directory.join("csi.sock"))
            .env("KUBECONFIG", &kubeconfig)
            .stdin(Stdio::null());
        let controller = command.spawn().context("start topolvm-controller; build the programs first")?;
        let url = format!("http://{address}/");
        let mut page = Self { api, url, controller, agents, shutdown, _runtime: runtime };
        page.wait_until_served(&address)?;
        Ok(page)
    }

    fn wait_until_served(&mut self, address: &str) -> Result<()> {
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.controller.try_wait()? {
                bail!("topolvm-controller has ended: {status}");
            }
            if Instant::now() > deadline {
                bail!("topolvm-controller does not serve its page at {address}");
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns an answer of the controller, as it gives it to its page.
    pub fn ask(&self, path: &str) -> Result<Value> {
        #[expect(clippy::disallowed_methods, reason = "curl is no part of the product")]
        let output =
            Command::new("curl").args(["-sSf", &format!("{}{path}", self.url)]).output().context("run curl")?;
        ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).with_context(|| path.to_owned())
    }

    /// Returns the process id of the controller.
    pub fn controller(&self) -> u32 {
        self.controller.id()
    }

    /// Adds a node with the driver, the free GiB of its device classes, and an agent that reports all volumes.
    pub fn add_node(&self, name: &str, classes: &[(&str, u64)]) {
        let mut built = node(name).finalizer("topolvm.io/node");
        for (class, gib) in classes {
            built = built.capacity(class, *gib);
        }
        self.api.apply_json(built.build());
        self.api.apply_json(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": [{"name": "topolvm.io", "nodeID": name, "topologyKeys": ["topology.topolvm.io/node"]}]},
        }));
        self.api.apply_json(self.agents.pod(name));
    }

    /// Adds a volume of a claim `NAMESPACE/NAME`, which its agent has created. Returns the object.
    pub fn add_volume(&self, name: &str, node: &str, class: &str, gib: u64, claim: &str) -> LogicalVolume {
        let size = format!("{gib}Gi");
        let volume = logical_volume(name).on(node).class(class).sized(&size).annotation("topolvm.io/claim", claim);
        let volume = volume.ready(name, &size).build();
        self.api.apply_json(&volume);
        self.agents.report(&volume, claim);
        volume
    }
}

impl Drop for WebPage {
    fn drop(&mut self) {
        self.shutdown.cancel();
        let pid = i32::try_from(self.controller.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // One that has ended already needs no signal
            let _signalled = kill_process(pid, Signal::TERM);
        }
        drop(self.controller.wait());
    }
}

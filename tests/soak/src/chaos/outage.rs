//! Makes the API server unavailable for a while.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use testbed::cluster::{API_SERVER_PROCESS as API_SERVER, Cluster};
use testbed::node::Node;

use super::plan::Outage;
use super::programs::find_process;

impl Outage {
    /// Keeps the API server unavailable while `meanwhile` runs.
    pub(super) fn run_during(
        self,
        cluster: &Cluster,
        nodes: &[Node],
        meanwhile: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.begin(cluster, nodes)?;
        let done = meanwhile();
        self.end(cluster, nodes)?;
        done
    }

    fn begin(self, cluster: &Cluster, nodes: &[Node]) -> Result<()> {
        match self {
            Self::Killed => cluster.stop(API_SERVER, Duration::ZERO),
            Self::Frozen => signal(cluster, Signal::STOP),
            Self::CutOff => set_links(cluster, nodes, &["nomaster"]),
        }
    }

    fn end(self, cluster: &Cluster, nodes: &[Node]) -> Result<()> {
        match self {
            Self::Killed => cluster.start_api_server(),
            Self::Frozen => signal(cluster, Signal::CONT),
            Self::CutOff => set_links(cluster, nodes, &["master", "br0"]),
        }
    }
}

fn signal(cluster: &Cluster, signal: Signal) -> Result<()> {
    find_process(cluster, API_SERVER)?.context("there is no API server")?.signal(signal)
}

/// Detaches the nodes' network links from the bridge, or attaches them. Packets are lost silently; if the link were
/// down, the guest would notice, and not bring its end up again automatically.
fn set_links(cluster: &Cluster, nodes: &[Node], link: &[&str]) -> Result<()> {
    for node in nodes {
        let tap = format!("tap{}", node.spec().address.octets()[3]);
        let output = cluster.command("ip").args(["link", "set", &tap]).args(link).output().context("run ip")?;
        ensure!(output.status.success(), "cannot set {tap} {link:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

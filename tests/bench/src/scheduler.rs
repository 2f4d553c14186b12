//! Measures topolvm-scheduler: how long requests about many nodes take, as kube-scheduler sends them for each pod, and
//! how much memory it has after them.

mod api_server;
mod connection;
mod requests;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use testbed::topolvm::TopolvmSpec;

use crate::figure::{Figure, median};
use crate::memory::{AT_REST, ResidentMemory};
use connection::{Connection, Exchange};

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 1] = ["scheduler."];

/// Nodes of the cluster after whose requests the memory is read.
const NODES: usize = 1000;
/// Nodes of a cluster of the largest size that Kubernetes supports.
const MOST_NODES: usize = 5000;
/// Number of images in the status of each Node, which are most of its bytes: kubelet lists at most 50 by default.
const IMAGES: usize = 50;
const PODS: usize = 20;
/// Times as long as the loopback interface needs for the same bytes that a request with full-size Nodes may take.
const LOOPBACK_TIMES: f64 = 4.0;
/// Repetitions of requests of 150 MB.
const LARGE_REQUESTS: usize = 7;

/// Starts the program in this program's directory, sends it filter and prioritize requests for some pods, and reads
/// times and memory.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let mut figures = measure_without_cache(directory)?;
    figures.extend(measure_with_cache(directory)?);
    Ok(figures)
}

/// Measures the program as kube-scheduler uses it with `nodeCacheCapable: false`, without a node cache.
fn measure_without_cache(directory: &Path) -> Result<Vec<Figure>> {
    let scheduler = Scheduler::start(directory, None)?;
    let mut connection = Connection::open(scheduler.address)?;
    let request = requests::of_nodes(NODES, IMAGES).to_string();
    for _ in 0..PODS {
        for path in ["/predicate", "/prioritize"] {
            connection.post(path, &request)?;
        }
    }
    thread::sleep(AT_REST);
    let resident = ResidentMemory::read(scheduler.child.id())?;
    let small = requests::of_nodes(NODES, 0).to_string();
    let small = repeat(PODS, || connection.post("/predicate", &small))?;
    Ok(vec![
        mebibytes("scheduler.rss_mib", resident.mebibytes(), 8.0),
        mebibytes("scheduler.rss_mib.anon", resident.anonymous_mebibytes(), f64::INFINITY),
        milliseconds("scheduler.predicate.1000.ms", small.total, 2.0),
    ])
}

/// Measures the program with a cache of the Nodes, in the largest cluster.
fn measure_with_cache(directory: &Path) -> Result<Vec<Figure>> {
    let api_server = api_server::start(MOST_NODES)?;
    let scheduler = Scheduler::start(directory, Some(&write_kubeconfig(directory, api_server)?))?;
    let mut connection = Connection::open(scheduler.address)?;
    connection.wait_until_ready()?;
    let names = requests::of_names(MOST_NODES).to_string();
    connection.post("/predicate", &names)?;
    let names = repeat(PODS, || connection.post("/predicate", &names))?;
    let nodes = requests::of_nodes(MOST_NODES, requests::FULL_SIZE_IMAGES).to_string();
    let bytes_per_node = nodes.len() / MOST_NODES;
    ensure!(bytes_per_node >= 30 << 10, "a Node has {bytes_per_node} bytes");
    let large = repeat(LARGE_REQUESTS, || connection.post("/predicate", &nodes))?;
    let echo = repeat(LARGE_REQUESTS, || connection::echo(nodes.as_bytes()))?;
    drop(nodes);
    thread::sleep(AT_REST);
    let resident = ResidentMemory::read(scheduler.child.id())?;
    Ok(vec![
        milliseconds("scheduler.names.5000.ms", names.total, 1.0),
        milliseconds("scheduler.predicate.5000.ms", large.total, (LOOPBACK_TIMES * echo.total * 1e3).round()),
        milliseconds("scheduler.predicate.5000.transfer_ms", echo.total, f64::INFINITY),
        milliseconds("scheduler.predicate.5000.wait_ms", large.wait, f64::INFINITY),
        mebibytes("scheduler.rss_mib.5000", resident.mebibytes(), 8.0),
        mebibytes("scheduler.rss_mib.5000.anon", resident.anonymous_mebibytes(), f64::INFINITY),
    ])
}

fn mebibytes(name: &'static str, value: f64, goal: f64) -> Figure {
    Figure { name, value, unit: "MiB", goal }
}

fn milliseconds(name: &'static str, seconds: f64, goal: f64) -> Figure {
    Figure { name, value: seconds * 1e3, unit: "ms", goal }
}

/// Returns the medians of the times of several exchanges.
fn repeat(times: usize, mut exchange: impl FnMut() -> Result<Exchange>) -> Result<Exchange> {
    let exchanges: Vec<Exchange> = (0..times).map(|_| exchange()).collect::<Result<_>>()?;
    let median = |time: fn(&Exchange) -> f64| median(exchanges.iter().map(time).collect()).context("no exchange");
    Ok(Exchange { total: median(|exchange| exchange.total)?, wait: median(|exchange| exchange.wait)? })
}

/// Writes a kubeconfig for a server without authentication.
fn write_kubeconfig(directory: &Path, server: SocketAddr) -> Result<PathBuf> {
    let path = directory.join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: a, \
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}], users: [{{name: a, user: {{}}}}], \
         clusters: [{{name: a, cluster: {{server: \"http://{server}\"}}}}]}}\n"
    );
    fs::write(&path, text).context("write a kubeconfig")?;
    Ok(path)
}

/// Returns an address of the loopback interface on which nothing listens.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on a free port")?;
    listener.local_addr().context("ask for the free port")
}

/// A running topolvm-scheduler. Dropping it kills it.
struct Scheduler {
    child: Child,
    address: SocketAddr,
}

impl Scheduler {
    /// Starts it; with a kubeconfig it has a cache of the Nodes.
    #[expect(clippy::disallowed_methods, reason = "the program is what is measured")]
    fn start(directory: &Path, kubeconfig: Option<&Path>) -> Result<Self> {
        let address = free_address()?;
        let config = directory.join("scheduler.yaml");
        let text = format!("listen: {address}\nnode-cache: {}\n", kubeconfig.is_some());
        fs::write(&config, text).context("write the configuration of topolvm-scheduler")?;
        let program = TopolvmSpec::nodes(0)?.programs.join("topolvm-scheduler");
        let mut command = Command::new(&program);
        command.args(["--log-level=warn", "--config"]).arg(config);
        command.envs(kubeconfig.map(|kubeconfig| ("KUBECONFIG", kubeconfig)));
        let child = command.spawn().with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, address })
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // It may have ended already
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

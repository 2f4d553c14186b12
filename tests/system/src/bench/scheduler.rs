//! Measures the memory of topolvm-scheduler after requests about many nodes, as kube-scheduler sends them for each pod.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::topolvm::TopolvmSpec;

use super::Figure;
use super::memory::{AT_REST, ResidentMemory};
use super::metrics;

/// Prefixes of the names of its figures.
pub const FAMILIES: [&str; 1] = ["scheduler."];

const NODES: usize = 1000;
/// Number of images in the status of each Node, which are most of its bytes: kubelet lists at most 50 by default.
const IMAGES: usize = 50;
const PODS: usize = 20;

/// Starts the program beside this one, sends it filter and prioritize requests for some pods, and reads its memory.
pub fn run(directory: &Path) -> Result<Vec<Figure>> {
    let address = free_address()?;
    let scheduler = Scheduler::start(directory, address)?;
    let request = request().to_string();
    for _ in 0..PODS {
        for path in ["/predicate", "/prioritize"] {
            let answer = post(address, path, &request)?;
            ensure!(answer.starts_with("HTTP/1.1 200 "), "{path}: {}", answer.lines().next().unwrap_or_default());
        }
    }
    thread::sleep(AT_REST);
    let resident = ResidentMemory::read(scheduler.0.id())?;
    let figure = |name, value, goal| Figure { name, value, unit: "MiB", goal };
    Ok(vec![
        figure("scheduler.rss_mib", resident.mebibytes(), 8.0),
        figure("scheduler.rss_mib.anon", resident.anonymous_mebibytes(), f64::INFINITY),
    ])
}

/// Returns an address of the loopback interface on which nothing listens.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on a free port")?;
    listener.local_addr().context("ask for the free port")
}

/// A running topolvm-scheduler. Dropping it kills it.
struct Scheduler(Child);

impl Scheduler {
    #[expect(clippy::disallowed_methods, reason = "the program is what is measured")]
    fn start(directory: &Path, address: SocketAddr) -> Result<Self> {
        let config = directory.join("scheduler.yaml");
        fs::write(&config, format!("listen: {address}\n")).context("write the configuration of topolvm-scheduler")?;
        let program = TopolvmSpec::nodes(0)?.programs.join("topolvm-scheduler");
        let mut command = Command::new(&program);
        command.args(["--log-level=warn", "--config"]).arg(config);
        Ok(Self(command.spawn().with_context(|| format!("start {}", program.display()))?))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // It may have ended already
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns a request with a pod and all nodes, as kube-scheduler sends it to an extender that has no cache of Nodes.
fn request() -> Value {
    let pod = json!({"metadata": {"name": "pod", "annotations": {"capacity.topolvm.io/ssd": "1073741824"}}});
    let nodes: Vec<Value> = (0..NODES).map(node).collect();
    json!({"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": null})
}

fn node(number: usize) -> Value {
    let image = |image| json!({"names": [format!("localhost/image-{image:02}@sha256:{image:064x}")], "sizeBytes": 1});
    let images: Vec<Value> = (0..IMAGES).map(image).collect();
    json!({
        "metadata": {"name": format!("node-{number}"), "annotations": {"capacity.topolvm.io/ssd": "107374182400"}},
        "status": {"images": images},
    })
}

/// Sends a POST request and returns the whole response, with its headers.
fn post(address: SocketAddr, path: &str, body: &str) -> Result<String> {
    let mut connection = metrics::connect(address).context("connect to topolvm-scheduler")?;
    connection.set_read_timeout(Some(metrics::TIMEOUT)).context("set a timeout")?;
    let length = body.len();
    write!(
        connection,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .context("send a request to topolvm-scheduler")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).context("read the answer of topolvm-scheduler")?;
    Ok(answer)
}

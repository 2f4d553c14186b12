//! One server in place of the agents of all nodes, with the metrics of volumes under load.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use topolvm_api::LogicalVolume;
use topolvm_runtime::CancellationToken;

use super::NAMESPACE;
use crate::fake_api_server;

/// Volumes of a large node.
const MOST_VOLUMES: usize = 500;

/// Agents of any number of nodes.
#[derive(Debug)]
pub struct Agents {
    port: u16,
    volumes: Arc<Mutex<Vec<Volume>>>,
}

#[derive(Clone, Debug)]
struct Volume {
    /// Labels of every series.
    labels: String,
    /// Labels of the series with the name.
    info: String,
    bytes: u64,
}

impl Agents {
    pub(super) fn serve(runtime: &Runtime, shutdown: &CancellationToken) -> Result<Self> {
        let volumes: Arc<Mutex<Vec<Volume>>> = Arc::default();
        let (shared, began) = (Arc::clone(&volumes), Instant::now());
        let page = move || {
            let volumes = shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
            async move { metrics(&volumes, began.elapsed().as_secs()) }
        };
        let address = fake_api_server::start(runtime, Router::new().route("/metrics", get(page)), shutdown)?;
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).context("no port")?;
        Ok(Self { port, volumes })
    }

    /// Returns the pod of the agent of a node.
    pub(super) fn pod(&self, node: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": format!("topolvm-node-{node}"), "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/name": "topolvm", "app.kubernetes.io/component": "node"},
            },
            "spec": {"nodeName": node, "containers": [{
                "name": "topolvm-node", "image": "topolvm", "ports": [{"name": "metrics", "containerPort": self.port}],
            }]},
            "status": {"phase": "Running", "podIP": "127.0.0.1"},
        })
    }

    /// Reports a volume from now on, unless the number of volumes is at the limit of a node.
    pub(super) fn report(&self, volume: &LogicalVolume, claim: &str) {
        let (namespace, name) = claim.split_once('/').unwrap_or(("", claim));
        let labels = format!(
            r#"namespace="{namespace}",persistentvolumeclaim="{name}",device_class="{}",pod="{name}-0""#,
            volume.spec.device_class
        );
        let info = format!(r#"node="{}",volume="{}",{labels}"#, volume.spec.node_name, volume.name());
        let bytes = volume.current_bytes().unwrap_or_default();
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        if volumes.len() < MOST_VOLUMES {
            volumes.push(Volume { labels, info, bytes });
        }
    }
}

/// Returns the metrics after this number of seconds of reads and writes.
fn metrics(volumes: &[Volume], seconds: u64) -> String {
    let mut page = String::new();
    for (number, Volume { labels, info, bytes }) in (0_u64..).zip(volumes) {
        let share = number * 37 % 97 + 1;
        let series = [
            ("filesystem_size_bytes", *bytes),
            ("filesystem_available_bytes", bytes - bytes / 100 * share),
            ("reads_completed_total", seconds * 20),
            ("writes_completed_total", seconds * 30),
            ("read_bytes_total", seconds * share * 40_000),
            ("written_bytes_total", seconds * share * 90_000),
        ];
        // Writing to a text in memory does not fail
        let _written = writeln!(page, "topolvm_volume_info{{{info}}} 1");
        for (name, value) in series {
            let _written = writeln!(page, "topolvm_volume_{name}{{{labels}}} {value}");
        }
    }
    page + "# EOF\n"
}

//! How much room this node has: followed in lvmd, shown as metrics and written to the own Node object, where the
//! controller and the scheduler read it.
//!
//! Three tasks that never give up: lvmd, the API server and the Node object may each go away and come back.

mod annotate;
mod lvmd_watch;
mod metrics;
mod node_watch;
mod pools;

use std::time::Duration;

use kube::Client;
use kube::api::Api;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use topolvm_api::{ApiFlavor, NodeCapacity};
use topolvm_runtime::{Backoff, CancellationToken, Tasks};

use crate::lvmd::Lvmd;

use metrics::Gauges;
pub use pools::{ClassState, Pools, ThinPool};

/// Pauses between tries while lvmd or the API server is away.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Follows and publishes the capacity of a node.
#[derive(Clone, Debug)]
pub struct Capacity {
    flavor: ApiFlavor,
    node: String,
    lvmd: Lvmd,
    gauges: Gauges,
    pools: watch::Sender<Pools>,
}

impl Capacity {
    /// The capacity of `node` as `lvmd` reports it. The gauges go to `registry`.
    pub fn new(flavor: ApiFlavor, node: String, lvmd: Lvmd, registry: &mut Registry) -> Self {
        let pools = watch::Sender::new(Pools::default());
        Self { gauges: Gauges::register(registry, &node), flavor, node, lvmd, pools }
    }

    /// The state of the thin pools, as far as it is known.
    pub fn pools(&self) -> watch::Receiver<Pools> {
        self.pools.subscribe()
    }

    /// Starts the tasks. Each time that lvmd has come back, a message says so, since work that failed while it was away
    /// can go on.
    pub fn start(self, client: Client, tasks: &Tasks, shutdown: &CancellationToken) -> mpsc::Receiver<()> {
        let (returned, returns) = mpsc::channel(1);
        let (capacity, capacities) = watch::channel::<Option<NodeCapacity>>(None);
        let (node, nodes) = watch::channel(None);
        let nodes_api = Api::all(client.clone());

        let following = lvmd_watch::follow(self.lvmd, self.gauges, self.pools, capacity, returned);
        tasks.spawn("free space of lvmd", until(shutdown.clone(), following));
        tasks.spawn("own Node", node_watch::follow(Api::all(client), self.node.clone(), node, shutdown.clone()));
        let writing = annotate::keep_annotated(nodes_api, self.flavor, self.node, capacities, nodes);
        tasks.spawn("capacity of the Node", until(shutdown.clone(), writing));
        returns
    }
}

async fn until(shutdown: CancellationToken, work: impl Future<Output = ()>) -> anyhow::Result<()> {
    shutdown.run_until_cancelled(work).await;
    Ok(())
}

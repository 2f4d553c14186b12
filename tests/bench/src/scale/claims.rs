//! Measures the time until the last of 1,000 claims on 100 nodes is Bound, with the sidecars and with the embedded
//! controllers. kube-controller-manager, API server, etcd and agents are real, LVM is a fake with 20 ms a command.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::PostParams;
use system_tests::fake_node::FakeNodes;
use testbed::cluster::{Cluster, SCHEDULER_PROCESS};
use testbed::sidecars;
use testbed::topolvm;
use tokio::runtime;
use topolvm_testkit::lvm::FakeLvm;

use super::api_limit;
use super::provisioners::Provisioners;
use super::writes::Writes;
use super::{LVMD_CONFIG, scheduled_claim};
use crate::api_client;
use crate::figure::{Figure, TIMES_AS_FAST};
use crate::watching::{is_bound, time_until_all};

const NODES: usize = 100;
const CLAIMS: usize = 1000;
const LVM_LATENCY: Duration = Duration::from_millis(20);
/// Size of a volume group: more than all claims.
const GROUP_BYTES: u64 = 1 << 40;
/// Concurrent requests that create claims.
const CONCURRENT_REQUESTS: usize = 32;
/// Nodes that are added or stopped at the same time.
const CONCURRENT_NODES: usize = 8;
/// Time for a program to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// Starts a control plane with the nodes, and measures both.
pub(super) fn run(directory: &Path, divisor: NonZeroUsize) -> Result<Vec<Figure>> {
    std::fs::create_dir_all(directory)?;
    let sidecars = Provisioners::Sidecars.spec(directory)?;
    let topolvm = topolvm::up_with(&directory.join("c"), &sidecars)?;
    let size = Size { nodes: (NODES / divisor).max(1), claims: (CLAIMS / divisor).max(1) };
    let figures = FakeNodes::new(&topolvm.cluster, &sidecars)
        .and_then(|nodes| Bench { cluster: &topolvm.cluster, nodes, size, directory }.measure());
    topolvm.cluster.down(None)?;
    figures
}

/// Numbers of objects.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    claims: usize,
}

struct Bench<'a> {
    cluster: &'a Cluster,
    nodes: FakeNodes<'a>,
    size: Size,
    directory: &'a Path,
}

impl Bench<'_> {
    fn measure(self) -> Result<Vec<Figure>> {
        sidecars::apply_snapshot_crds(self.cluster)?;
        self.on_all_nodes(|name| {
            let lvm = FakeLvm::new().with_group("ssd", GROUP_BYTES);
            lvm.set_latency(LVM_LATENCY);
            self.nodes.add(name, &lvm, LVMD_CONFIG)
        })?;
        let by_sidecars = self.run_claims(Provisioners::Sidecars)?;
        let embedded = self.run_claims(Provisioners::Embedded)?;
        let by_client = self.run_api_limit(&embedded.writes)?;
        self.nodes.stop()?;
        let name = "scale.claims_1000x100.ratio_to_sidecars";
        let ratio_to_sidecars = by_sidecars.seconds / embedded.seconds;
        let figure = |name, value, unit, goal| Figure { name, value, unit, goal };
        let seconds = |name, value| figure(name, value, "s", f64::INFINITY);
        Ok(vec![
            seconds("scale.claims_1000x100_s", embedded.seconds),
            seconds("scale.claims_1000x100_s.sidecars", by_sidecars.seconds),
            seconds("scale.claims_1000x100_s.api", by_client),
            figure("scale.claims_1000x100.ratio_to_api", embedded.seconds / by_client, "ratio", 1.5),
            figure(name, ratio_to_sidecars, TIMES_AS_FAST, 4.0),
            per_claim("scale.claims_1000x100.writes", &embedded, self.size),
            per_claim("scale.claims_1000x100.writes.sidecars", &by_sidecars, self.size),
        ])
    }

    /// Runs an action for each node, several at the same time.
    fn on_all_nodes(&self, action: impl Fn(&str) -> Result<()> + Sync) -> Result<()> {
        let names: Vec<String> = (0..self.size.nodes).map(node_name).collect();
        let part = names.len().div_ceil(CONCURRENT_NODES);
        thread::scope(|scope| {
            let run = |names: &[String]| names.iter().try_for_each(|name| action(name));
            let threads: Vec<_> = names.chunks(part).map(|names| scope.spawn(move || run(names))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })
    }

    /// Starts the programs, creates the claims when a first one is Bound on each node, and stops the programs.
    fn run_claims(&self, provisioners: Provisioners) -> Result<Run> {
        provisioners.start(self.cluster, self.directory)?;
        let name = |kind: &str, number: usize| format!("{}-{kind}-{number}", provisioners.name());
        let first: Vec<_> = (0..self.size.nodes).map(|number| name("first", number)).collect();
        self.time_claims(&first)?;
        let names: Vec<_> = (0..self.size.claims).map(|number| name("claim", number)).collect();
        let before = Writes::read(self.cluster)?;
        let seconds = self.time_claims(&names)?;
        let writes = Writes::read(self.cluster)?.since(&before);
        provisioners.stop(self.cluster)?;
        eprintln!("bench: {} took {seconds:.1} s with these writes:\n{writes}", provisioners.name());
        Ok(Run { seconds, writes })
    }

    /// Creates claims, and returns the seconds until the last one is Bound.
    fn time_claims(&self, names: &[String]) -> Result<f64> {
        let milliseconds = self.cluster.netns().enter(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let client = api_client::connect(&self.cluster.inner_kubeconfig()).await?;
                let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client);
                let create = async |(number, name): (usize, &String)| {
                    let claim = serde_json::from_value(scheduled_claim(name, &node_name(number % self.size.nodes)))?;
                    claims.create(&PostParams::default(), &claim).await?;
                    anyhow::Ok(())
                };
                let creating = stream::iter(names.iter().enumerate().map(create));
                let creating = creating.buffer_unordered(CONCURRENT_REQUESTS).try_collect::<()>();
                time_until_all(&claims, names, is_bound, creating).await
            })
        })??;
        Ok(milliseconds.into_iter().fold(0.0, f64::max) / 1000.0)
    }

    /// Stops all programs that write, and returns the seconds in which a client makes the same writes.
    fn run_api_limit(&self, writes: &Writes) -> Result<f64> {
        for name in ["controller-manager", SCHEDULER_PROCESS] {
            self.cluster.stop(name, GRACE)?;
        }
        self.on_all_nodes(|name| self.nodes.stop_agent(name))?;
        let time = self.cluster.netns().enter(|| {
            let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async {
                let client = api_client::connect(&self.cluster.inner_kubeconfig()).await?;
                api_limit::time_writes(&client, writes, self.size.claims).await
            })
        })??;
        Ok(time.as_secs_f64())
    }
}

/// The claims of a run.
struct Run {
    /// Time until the last one was Bound.
    seconds: f64,
    /// Writes of all programs in that time.
    writes: Writes,
}

fn node_name(number: usize) -> String {
    format!("node-{number:03}")
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "counts of a run are exact in a float")]
fn per_claim(name: &'static str, run: &Run, size: Size) -> Figure {
    let value = run.writes.total() as f64 / size.claims as f64;
    Figure { name, value, unit: "writes per claim", goal: f64::INFINITY }
}

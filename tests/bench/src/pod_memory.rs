//! Resident memory of the product's pods, summed over the processes of all containers.

use anyhow::{Context as _, Result, ensure};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;

use crate::memory::ResidentMemory;

/// Returns the resident memory of the largest pod of a component: of the replicas the leader's.
pub(crate) fn largest_pod(cluster: &Cluster, node: &Node, component: &str) -> Result<ResidentMemory> {
    let selector = format!("--selector=app.kubernetes.io/name=topolvm,app.kubernetes.io/component={component}");
    let uids = "jsonpath={.items[*].metadata.uid}";
    let uids = cluster.kubectl_ok(["get", "pods", "--namespace", NAMESPACE, &selector, "-o", uids])?;
    let pods = uids.split_whitespace().map(|uid| pod_memory(node, uid)).collect::<Result<Vec<_>>>()?;
    pods.into_iter().max_by_key(|pod| pod.anonymous + pod.file).with_context(|| format!("no pod of {component}"))
}

/// Returns the sum of the resident memory of a pod's processes, without the pause process, which is the container
/// runtime's.
fn pod_memory(node: &Node, uid: &str) -> Result<ResidentMemory> {
    // Processes may exit in the meantime
    let script = format!(
        "for process in /proc/[0-9]*; do if grep -q 'pod{uid}\\|pod{}' $process/cgroup 2>/dev/null; \
         then cat $process/status 2>/dev/null && echo ---; fi; done; true",
        uid.replace('-', "_")
    );
    let statuses = node.script(&script)?;
    let processes: Vec<_> =
        statuses.split("---\n").filter(|status| status.contains("RssAnon") && !is_pause(status)).collect();
    ensure!(!processes.is_empty(), "the pod {uid} has no process on {}", node.name());
    processes.into_iter().map(ResidentMemory::parse).try_fold(ResidentMemory::default(), |sum, process| {
        let process = process?;
        Ok(ResidentMemory { anonymous: sum.anonymous + process.anonymous, file: sum.file + process.file })
    })
}

/// Returns true for the process that containerd of the test cluster runs in place of `pause`.
fn is_pause(status: &str) -> bool {
    status.lines().next().is_some_and(|line| line == "Name:\tbusybox")
}

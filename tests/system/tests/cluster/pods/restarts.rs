//! The host after restarts of every container of the product: as it was after the first.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::shared::TestCluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;

use super::{CLASS, SIZE};

/// Restarts of each container.
const RESTARTS: u32 = 3;
/// The workloads of the product.
const WORKLOADS: [&str; 3] = ["daemonset/topolvm-lvmd", "daemonset/topolvm-node", "deployment/topolvm-controller"];
/// A pod whose volume is mounted all the time.
const POD: &str = "stays";

/// Replaces names that each pod and container has of its own.
const NORMALIZE: &str = "sed -E -e 's/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/UID/g' -e 's/[0-9a-f]{64}/ID/g' \
                         -e 's/kube-api-access-[a-z0-9]{5}/kube-api-access/g' \
                         -e 's/topolvm-[a-z]+-[a-z0-9-]+/POD/g' | sort";

/// Lists, each with the script that prints it on the node.
const LISTS: [(&str, &str); 8] = [
    ("mounts of the host", "cut -d ' ' -f 5 /proc/1/mountinfo"),
    ("mounts in the agent", "cut -d ' ' -f 5 /proc/$(pgrep -xn topolvm-node)/mountinfo"),
    ("mounts in lvmd", "cut -d ' ' -f 5 /proc/$(pgrep -xn lvmd)/mountinfo"),
    ("loop devices", "losetup --list --noheadings --output NAME,BACK-FILE"),
    ("device-mapper devices", "dmsetup ls"),
    ("listening sockets", "awk '$4 == \"00010000\" {print $8}' /proc/net/unix"),
    ("control groups", "find /sys/fs/cgroup -type d"),
    (
        "files",
        "find /run/topolvm /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry /dev/topolvm 2>/dev/null || :",
    ),
];

/// Restarts every container several times, while a pod has a volume, and compares what is on the host.
pub(super) fn restart_all(shared: &TestCluster, node: &Node) -> Result<()> {
    shared.apply(&claim(POD, CLASS, SIZE, VolumeMode::Filesystem))?;
    shared.apply(&pod(POD, POD, VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{POD}"), "--timeout=180s"])?;
    restart(shared)?;
    let before = HostState::read(shared, node)?;
    for _ in 0..RESTARTS {
        restart(shared)?;
    }
    // Old pods take a moment to be gone for kubelet and containerd
    shared.cluster.ready("apiserver", || {
        let differences = before.differences(&HostState::read(shared, node)?);
        ensure!(differences.is_empty(), "after {RESTARTS} restarts:\n{}", differences.join("\n"));
        Ok(())
    })?;
    shared.kubectl(&["delete", &format!("pod/{POD}"), &format!("pvc/{POD}"), "--timeout=180s"]).map(drop)
}

/// Replaces the pods of all workloads, and waits until the new ones are ready.
fn restart(shared: &TestCluster) -> Result<()> {
    shared.kubectl(&[&["rollout", "restart", "-n", NAMESPACE][..], &WORKLOADS].concat())?;
    for workload in WORKLOADS {
        shared.kubectl(&["rollout", "status", "-n", NAMESPACE, workload, "--timeout=180s"])?;
    }
    super::wait_for_old_pods(shared, "app.kubernetes.io/name=topolvm")
}

/// Entries of each list, with how often each is there.
struct HostState(BTreeMap<String, BTreeMap<String, usize>>);

impl HostState {
    fn read(shared: &TestCluster, node: &Node) -> Result<Self> {
        let mut lists = BTreeMap::new();
        for (name, script) in LISTS {
            let said = node.script(&format!("{{ {script}; }} | {NORMALIZE}")).with_context(|| name.to_owned())?;
            lists.insert(name.to_owned(), count(said.lines()));
        }
        let mounts = shared.kubectl(&["exec", POD, "--", "cut", "-d", " ", "-f", "5", "/proc/self/mountinfo"])?;
        lists.insert("mounts in a pod with a volume".to_owned(), count(mounts.lines()));
        let annotations = shared.kubectl(&["get", "node", node.name(), "-o", "jsonpath={.metadata.annotations}"])?;
        let annotations: BTreeMap<String, Value> = serde_json::from_str(&annotations)?;
        lists.insert("annotations of the Node".to_owned(), count(annotations.keys().map(String::as_str)));
        Ok(Self(lists))
    }

    /// Returns what is there more or less often than before, a line each.
    fn differences(&self, after: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        for (name, before) in &self.0 {
            let (none, zero) = (BTreeMap::new(), 0);
            let after = after.0.get(name).unwrap_or(&none);
            for entry in before.keys().chain(after.keys().filter(|entry| !before.contains_key(*entry))) {
                let counts = [before, after].map(|list| list.get(entry).unwrap_or(&zero));
                if counts[0] != counts[1] {
                    differences.push(format!("{name}: {entry}: {} before, {} now", counts[0], counts[1]));
                }
            }
        }
        differences
    }
}

fn count<'a>(entries: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        *counts.entry(entry.to_owned()).or_default() += 1;
    }
    counts
}

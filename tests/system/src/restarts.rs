//! The host after restarts of every container of the product and of kubelet, and after failed publishes: as it was
//! after the first.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use topolvm_api::ApiFlavor;

use crate::manifests::{VolumeMode, claim, pod, storage_class};

/// The workloads of the product.
const WORKLOADS: [&str; 3] = ["daemonset/topolvm-lvmd", "daemonset/topolvm-node", "deployment/topolvm-controller"];
/// A pod whose volume is mounted all the time.
const POD: &str = "stays";
/// A StorageClass, claim and pod whose volume cannot be mounted.
const FAILING: &str = "fails-to-mount";
/// Duration in which the product may report nothing more.
const QUIET: Duration = Duration::from_mins(1);

/// Replaces names that are unique to each pod and container.
const NORMALIZE: &str = "sed -E -e 's/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/UID/g' -e 's/[0-9a-f]{64}/ID/g' \
                         -e 's#(kubelet/[a-z-]+)/[0-9]+$#\\1/NUMBER#' \
                         -e 's/kube-api-access-[a-z0-9]{5}/kube-api-access/g' \
                         -e 's/topolvm-[a-z]+-[a-z0-9-]+/POD/g' | sort";

/// Lists, each with the script that prints it on the node.
const LISTS: [(&str, &str); 11] = [
    ("mounts of the host", "cut -d ' ' -f 5 /proc/1/mountinfo"),
    ("mounts in the agent", "cut -d ' ' -f 5 /proc/$(pgrep -xo topolvm-node)/mountinfo"),
    ("mounts in lvmd", "cut -d ' ' -f 5 /proc/$(pgrep -xo lvmd)/mountinfo"),
    ("loop devices", "losetup --list --noheadings --output NAME,BACK-FILE"),
    ("device-mapper devices", "dmsetup ls"),
    ("listening sockets", "awk '$4 == \"00010000\" {print $8}' /proc/net/unix"),
    ("control groups", "find /sys/fs/cgroup -type d"),
    // Without the empty directory that kubelet leaves of each volume of a driver without STAGE_UNSTAGE_VOLUME
    (
        "files",
        "find /run/topolvm /var/lib/kubelet/plugins /var/lib/kubelet/plugins_registry /dev/topolvm \
         ! -path '*/csi/topolvm.io/*' 2>/dev/null || :",
    ),
    ("open files of the agent", "readlink /proc/$(pgrep -xo topolvm-node)/fd/* | grep ^/"),
    ("open files of lvmd", "readlink /proc/$(pgrep -xo lvmd)/fd/* | grep ^/"),
    ("zombies", "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | xargs -r grep -h ^Name: || :"),
];

/// Restarts every container and kubelet this number of times and fails to publish a volume each time, while another pod
/// has a volume of the StorageClass. Compares the state of the host after the first time and after the last.
pub fn check_host(cluster: &Cluster, node: &Node, class: &str, size: &str, rounds: u32) -> Result<()> {
    cluster.apply(&claim(POD, class, size, VolumeMode::Filesystem).to_string())?;
    cluster.apply(&pod(POD, POD, VolumeMode::Filesystem).to_string())?;
    cluster.kubectl_ok(["wait", "--for=condition=Ready", &format!("pod/{POD}"), "--timeout=180s"])?;
    let mut failing = storage_class(ApiFlavor::TopoLvm, FAILING, None, false);
    if let Some(class) = failing.as_object_mut() {
        class.insert("mountOptions".to_owned(), json!(["no-such-option"]));
    }
    cluster.apply(&failing.to_string())?;
    disturb(cluster, node, size)?;
    let before = HostState::read(cluster, node)?;
    for _ in 0..rounds {
        disturb(cluster, node, size)?;
    }
    // kubelet and containerd take a moment to remove old pods
    cluster.ready("apiserver", || {
        let differences = before.differences(&HostState::read(cluster, node)?);
        ensure!(differences.is_empty(), "after {rounds} restarts:\n{}", differences.join("\n"));
        Ok(())
    })?;
    cluster.kubectl_ok(["delete", &format!("pod/{POD}"), &format!("pvc/{POD}"), "--timeout=180s"]).map(drop)
}

/// Waits a minute in which the product sends no Event.
pub fn check_quiet(cluster: &Cluster) -> Result<()> {
    let before = count_events(cluster)?;
    sleep(QUIET);
    let differences = differences_of("Events", &before, &count_events(cluster)?);
    ensure!(differences.is_empty(), "in {QUIET:?} at rest:\n{}", differences.join("\n"));
    Ok(())
}

/// Returns the count of each Event of the product.
fn count_events(cluster: &Cluster) -> Result<BTreeMap<String, usize>> {
    let events: Value = cluster.get("/api/v1/events")?;
    let mut counts = BTreeMap::new();
    for event in events.pointer("/items").and_then(Value::as_array).into_iter().flatten() {
        let text = |path| event.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let number = |path| event.pointer(path).and_then(Value::as_u64);
        let is_ours = ["/source/component", "/reportingComponent"].iter().any(|path| text(path).contains("topolvm"));
        // Each sidecar reports once that it leads, up to a minute after the one before has ended
        if is_ours && text("/reason") != "LeaderElection" {
            let times = number("/series/count").or_else(|| number("/count")).unwrap_or(1);
            let of = format!("{} {}", text("/involvedObject/name"), text("/reason"));
            *counts.entry(of).or_default() += usize::try_from(times)?;
        }
    }
    Ok(counts)
}

/// Replaces the pods of all workloads and kubelet, and publishes a volume that cannot be mounted.
fn disturb(cluster: &Cluster, node: &Node, size: &str) -> Result<()> {
    cluster.kubectl_ok([&["rollout", "restart", "-n", NAMESPACE][..], &WORKLOADS].concat())?;
    for workload in WORKLOADS {
        cluster.kubectl_ok(["rollout", "status", "-n", NAMESPACE, workload, "--timeout=180s"])?;
    }
    wait_for_old_pods(cluster, "app.kubernetes.io/name=topolvm")?;
    cluster.apply(&claim(FAILING, FAILING, size, VolumeMode::Filesystem).to_string())?;
    cluster.apply(&pod(FAILING, FAILING, VolumeMode::Filesystem).to_string())?;
    let uid = cluster.kubectl_ok(["get", "pod", FAILING, "-o", "jsonpath={.metadata.uid}"])?;
    let selector = format!("involvedObject.uid={uid},reason=FailedMount");
    cluster.ready("apiserver", || {
        let events = cluster.kubectl_ok(["get", "events", "--field-selector", &selector, "-o", "name"])?;
        ensure!(!events.is_empty(), "pod {FAILING} has no event FailedMount");
        Ok(())
    })?;
    cluster.kubectl_ok(["delete", &format!("pod/{FAILING}"), &format!("pvc/{FAILING}"), "--timeout=180s"])?;
    cluster.ready("apiserver", || {
        let claims =
            cluster.kubectl_ok(["get", "persistentvolumes", "-o", "jsonpath={.items[*].spec.claimRef.name}"])?;
        ensure!(!claims.contains(FAILING), "the volume of {FAILING} is not gone");
        Ok(())
    })?;
    node.kill_kept("kubelet")?;
    cluster.ready("apiserver", || cluster.kubectl_ok(["exec", POD, "--", "true"]).map(drop))
}

/// Waits until the selected pods from before a roll-out have ended.
pub fn wait_for_old_pods(cluster: &Cluster, selector: &str) -> Result<()> {
    cluster.ready("apiserver", || {
        let path = "jsonpath={.items[*].metadata.deletionTimestamp}";
        let deleted = cluster.kubectl_ok(["get", "pods", "-n", NAMESPACE, "-l", selector, "-o", path])?;
        ensure!(deleted.is_empty(), "they have not ended");
        Ok(())
    })
}

/// Entries of each list, with their counts.
struct HostState(BTreeMap<String, BTreeMap<String, usize>>);

impl HostState {
    fn read(cluster: &Cluster, node: &Node) -> Result<Self> {
        let mut lists = BTreeMap::new();
        for (name, script) in LISTS {
            let said = node.script(&format!("{{ {script}; }} | {NORMALIZE}")).with_context(|| name.to_owned())?;
            lists.insert(name.to_owned(), count(said.lines()));
        }
        let mounts = cluster.kubectl_ok(["exec", POD, "--", "cut", "-d", " ", "-f", "5", "/proc/self/mountinfo"])?;
        lists.insert("mounts in a pod with a volume".to_owned(), count(mounts.lines()));
        let annotations = cluster.kubectl_ok(["get", "node", node.name(), "-o", "jsonpath={.metadata.annotations}"])?;
        let annotations: BTreeMap<String, Value> = serde_json::from_str(&annotations)?;
        lists.insert("annotations of the Node".to_owned(), count(annotations.keys().map(String::as_str)));
        Ok(Self(lists))
    }

    /// Returns the entries whose count has changed, a line each.
    fn differences(&self, after: &Self) -> Vec<String> {
        let none = BTreeMap::new();
        let all = self.0.iter();
        all.flat_map(|(name, before)| differences_of(name, before, after.0.get(name).unwrap_or(&none))).collect()
    }
}

/// Returns the entries of a list whose count has changed, a line each.
fn differences_of(list: &str, before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) -> Vec<String> {
    let entries = before.keys().chain(after.keys().filter(|entry| !before.contains_key(*entry)));
    let line = |entry: &String| {
        let [before, after] = [before, after].map(|list| list.get(entry).copied().unwrap_or_default());
        (before != after).then(|| format!("{list}: {entry}: {before} before, {after} now"))
    };
    entries.filter_map(line).collect()
}

fn count<'a>(entries: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for entry in entries {
        *counts.entry(entry.to_owned()).or_default() += 1;
    }
    counts
}

//! The product as users run it: pods of the image and the manifests, with the roles that ship.

mod copies;
mod overlays;
mod readiness;
mod rights;
mod sidecars;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::audit;
use system_tests::kustomization::{Kustomization, lvmd_config};
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::scenario::Scenario;
use system_tests::shared::TestCluster;
use system_tests::{product_images, restarts};
use testbed::failure::WithState as _;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use testbed::suite;
use testbed::topolvm::{
    self, LVMD, LVMD_SOCKET, THIN_CLASS, THIN_OVERPROVISION, THIN_POOL, THIN_VG, TopolvmSpec, manifests,
};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::job::SilentReporter;

/// Tag of the image to which the product is upgraded while a pod writes.
const NEXT_BUILD: &str = "next";
/// Name of the StorageClass in `deploy/manifests/base/storageclass.yaml`, which has XFS.
const CLASS: &str = "topolvm-provisioner";
/// Restarts of each container; a soak has more.
const RESTARTS: u32 = 1;
/// Size of the volumes: the smallest with XFS has 300 MiB.
const SIZE: &str = "320Mi";

/// Name of the test that a soak runs alone.
pub(crate) const MOVES: &str = "pods_follow_lvmd_the_extender_and_the_older_api_group";
/// The same.
pub(crate) const ROLL_OUTS: &str = "pods_survive_bad_roll_outs_and_run_the_lvm_of_their_node";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        suite::test("pods_with_the_roles_that_ship_do_the_whole_job", || with_pods(&with_thin_class(), do_whole_job)),
        suite::test("pods_with_sidecars_do_the_whole_job_and_hand_it_over", || {
            with_pods(&sidecars::with_sidecars(), sidecars::use_and_replace)
        }),
        suite::test(MOVES, || with_pods(&with_thin_class(), move_parts)),
        suite::test(ROLL_OUTS, || with_pods(&with_thin_class(), roll_out)),
    ]
}

/// Runs a test in a cluster with the pods of a kustomization and an audit log, and a directory.
fn with_pods(first: &Kustomization<'_>, test: fn(&TestCluster, &Node, &Path) -> Result<()>) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("topolvm-pods-").tempdir_in("/var/tmp")?;
    let first = first.write(&scratch.path().join("first"))?;
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(1)?.with_thin_class(), &first)?;
    spec.cluster.audit_policy = Some(audit::POLICY.to_owned());
    spec.cluster.images.push(product_images::product(&spec.programs, NEXT_BUILD)?);
    let shared = TestCluster::up("pods", &spec)?;
    let outcome = test(&shared, shared.node()?, scratch.path()).with_state(|| logs(&shared).unwrap_or_default());
    shared.down()?;
    outcome
}

fn do_whole_job(shared: &TestCluster, node: &Node, _: &Path) -> Result<()> {
    let before = filesystem_program_time(node)?;
    run_scenarios(shared, node)?;
    // The agent itself has only tried at its start that it can leave its container
    ensure!(filesystem_program_time(node)? > before, "mkfs has not run outside of the agent's container");
    copies::create_copies(shared, node)?;
    copies::delete_with_node(shared)?;
    restarts::check_host(&shared.cluster, node, CLASS, SIZE, RESTARTS)?;
    rights::check_none_missing(shared, None)?;
    rights::check_all_used(shared, &[])
}

fn move_parts(shared: &TestCluster, node: &Node, scratch: &Path) -> Result<()> {
    move_lvmd(shared, node)?;
    overlays::use_extender(shared, node, scratch)?;
    // The roles are others in the older API group
    rights::check_none_missing(shared, None)?;
    rights::check_explained(shared)?;
    overlays::use_older_group(shared, node)?;
    overlays::use_oldest_guide(shared, node)?;
    rights::check_none_missing(shared, Some(TopoLvm))
}

fn roll_out(shared: &TestCluster, _: &Node, _: &Path) -> Result<()> {
    readiness::break_configuration(shared)?;
    readiness::roll_out_with_surge(shared)?;
    readiness::check_lvm_commands(shared)?;
    rights::check_none_missing(shared, None)
}

/// Returns the overlay with lvmd as a DaemonSet, and a device class that supports snapshots.
fn with_thin_class() -> Kustomization<'static> {
    let classes = json!({
        "socket-name": LVMD_SOCKET,
        "device-classes": [
            {"name": "ssd", "volume-group": "myvg1", "default": true, "spare-gb": 10},
            {
                "name": THIN_CLASS, "volume-group": THIN_VG, "spare-gb": 0, "type": "thin",
                "thin-pool": {"name": THIN_POOL, "overprovision-ratio": THIN_OVERPROVISION},
            },
        ],
    });
    let patches = vec![lvmd_config(&classes.to_string())];
    Kustomization { base: "overlays/lvmd", patches, ..Kustomization::default() }
}

fn run_scenarios(shared: &TestCluster, node: &Node) -> Result<()> {
    Scenario { cluster: &shared.cluster, node, flavor: TopoLvm }.run(&mut SilentReporter)?;
    let owner = ".items[0].metadata.ownerReferences[0].kind";
    let owner =
        shared.kubectl(&["get", "csistoragecapacities", "-n", NAMESPACE, "-o", &format!("jsonpath={{{owner}}}")])?;
    // Not the ReplicaSet, with which they would go at each upgrade
    ensure!(owner == "Deployment", "the owner of CSIStorageCapacity objects is {owner:?}");
    // kubelet has created it with 0755
    let mode = node.script("stat -c %a /run/topolvm")?;
    ensure!(mode.trim() == "700", "lvmd's directory has mode {mode}");
    operate_on_disk(shared, node)
}

/// Returns the microseconds that programs of filesystems have run outside of the agent's container, whose control group
/// limits memory, in one without a limit.
fn filesystem_program_time(node: &Node) -> Result<u64> {
    let script = "
        agent=$(sed -n 's/^0:://p' /proc/$(pidof -s topolvm-node)/cgroup)
        cd /sys/fs/cgroup/topolvm-node.topolvm.io
        cat /sys/fs/cgroup$agent/memory.max memory.max
        sed -n 's/^usage_usec //p' cpu.stat";
    let said = node.script(script)?;
    let [limit, "max", used] = said.split_whitespace().collect::<Vec<_>>()[..] else { bail!("{said}") };
    ensure!(limit.parse::<u64>().is_ok(), "the memory of the agent has no limit: {limit}");
    Ok(used.parse()?)
}

/// Requests operations that are already done, and one that lvmd refuses, because it does not manage the volume group.
/// The agent writes the result of each, and deletes the operations after their time to live.
fn operate_on_disk(shared: &TestCluster, node: &Node) -> Result<()> {
    let object = format!("nodestorages.topolvm.io/{}", node.name());
    let uuid = ".status.volumeGroups[0].physicalVolumes[0].uuid";
    let uuid = shared.kubectl(&["get", &object, "-o", &format!("jsonpath={{{uuid}}}")])?;
    ensure!(!uuid.is_empty(), "the node does not report its disks");
    let operation = |name: &str, type_: &str, ttl: u32| {
        shared.apply(&json!({
            "apiVersion": "topolvm.io/v1", "kind": "DiskOperation", "metadata": {"name": name},
            "spec": {"nodeName": node.name(), "disk": uuid, "type": type_, "ttlSecondsAfterFinished": ttl},
        }))
    };
    operation("member", "Add", 3600)?;
    shared.wait_value("diskoperations.topolvm.io", "member", ".status.phase", "Succeeded")?;
    operation("refused", "Evacuate", 0)?;
    shared.kubectl(&["wait", "--for=delete", "diskoperations.topolvm.io/refused", "--timeout=180s"])?;
    let reasons = "-o=jsonpath={.items[*].reason}";
    shared.cluster.ready("apiserver", || {
        let reasons = shared.kubectl(&["get", "events", "-A", reasons])?;
        ensure!(reasons.contains("DiskOperationFailed"), "the failure is not published: {reasons}");
        Ok(())
    })?;
    shared.kubectl(&["delete", "diskoperations.topolvm.io", "member", "--timeout=180s"]).map(drop)
}

/// Moves lvmd from the DaemonSet into the agent, onto the host and back, as an administrator would, while a pod writes
/// continuously to a volume of the class that ships.
fn move_lvmd(shared: &TestCluster, node: &Node) -> Result<()> {
    shared.apply(&claim("writer", CLASS, SIZE, VolumeMode::Filesystem))?;
    let mut writer = pod("writer", "writer", VolumeMode::Filesystem);
    // It only prints errors. It syncs only its file and starts few programs, because it shares one CPU with the whole
    // product
    writer["spec"]["containers"][0]["command"] = json!([
        "sh",
        "-c",
        "trap 'exit 0' TERM; mount=$(stat -c %m-%d /data); \
         while :; do echo line >>/data/lines && sync /data/lines || echo failed; \
         [ \"$(stat -c %m-%d /data)\" = \"$mount\" ] || echo remounted; sleep 0.5; done"
    ]);
    shared.apply(&writer)?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=180s"])?;
    let delete_daemon_set =
        || shared.kubectl(&["delete", "daemonset", "topolvm-lvmd", "-n", NAMESPACE, "--timeout=180s"]);
    let go_on = |place: &str| -> Result<()> {
        let lines = || shared.kubectl(&["exec", "writer", "--", "wc", "-l", "/data/lines"]);
        let before = lines()?;
        create_volume(shared, place)?;
        ensure!(lines()? != before, "the writer does not continue");
        Ok(())
    };

    go_on("daemonset")?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/embedded-lvmd"))?;
    delete_daemon_set()?;
    go_on("embedded")?;
    start_lvmd_on_the_host(node)?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/systemd-lvmd"))?;
    go_on("host")?;
    node.stop_kept(LVMD)?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/lvmd"))?;
    go_on("back")?;
    upgrade(shared)?;
    go_on("upgraded")?;

    let said = shared.kubectl(&["logs", "writer"])?;
    ensure!(said.is_empty(), "the writer says: {said}");
    let restarts = shared.value("pod", "writer", ".status.containerStatuses[0].restartCount")?;
    ensure!(restarts == "0", "the writer was started again {restarts} times");
    shared.kubectl(&["delete", "pod/writer", "pvc/writer", "--timeout=180s"])?;
    shared.kubectl(&["wait", "--for=delete", "logicalvolumes.topolvm.io", "--all", "--timeout=180s"]).map(drop)
}

/// Waits until the pods of topolvm-controller from before a roll-out have ended.
fn wait_for_old_controllers(shared: &TestCluster) -> Result<()> {
    restarts::wait_for_old_pods(&shared.cluster, "app.kubernetes.io/component=controller")
}

/// Starts lvmd on the host as the systemd unit does.
pub(crate) fn start_lvmd_on_the_host(node: &Node) -> Result<()> {
    let program = TopolvmSpec::nodes(0)?.programs.join(LVMD).to_string_lossy().into_owned();
    let config =
        "printf 'device-classes:\\n- {name: ssd, volume-group: myvg1, default: true}\\n' >/etc/topolvm/lvmd.yaml";
    node.script(config)?;
    node.spawn_kept(LVMD, [program.as_str(), "--metrics-bind-address="], &BTreeMap::new())
}

/// Upgrades every container of the product to the image of the next build, and waits until the old pods are deleted.
fn upgrade(shared: &TestCluster) -> Result<()> {
    for (workload, container) in [
        ("deployment/topolvm-controller", "topolvm-controller"),
        ("daemonset/topolvm-node", "topolvm-node"),
        ("daemonset/topolvm-lvmd", LVMD),
    ] {
        let image = format!("{container}={}:{NEXT_BUILD}", images::NAME);
        shared.kubectl(&["set", "image", "-n", NAMESPACE, workload, &image])?;
        shared.kubectl(&["rollout", "status", "-n", NAMESPACE, workload, "--timeout=180s"])?;
    }
    Ok(())
}

fn create_volume(shared: &TestCluster, name: &str) -> Result<()> {
    shared.apply(&claim(name, CLASS, SIZE, VolumeMode::Filesystem))?;
    shared.apply(&pod(name, name, VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"])?;
    shared.kubectl(&["delete", &format!("pod/{name}"), &format!("pvc/{name}"), "--timeout=180s"]).map(drop)
}

/// Returns the logs of the product's pods.
fn logs(shared: &TestCluster) -> Result<String> {
    let selector = "--selector=app.kubernetes.io/name=topolvm";
    shared.kubectl(&[
        "logs",
        "-n",
        NAMESPACE,
        selector,
        "--all-containers",
        "--prefix",
        "--tail=-1",
        "--max-log-requests=40",
    ])
}

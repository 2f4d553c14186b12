//! `kubectl topolvm` from an empty cluster to an installation, to another version of it, and back.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, pod, virtual_node};
use system_tests::objects::Objects;
use system_tests::plugin::{self, Answer};
use system_tests::product_images;
use system_tests::shared::TestCluster;
use system_tests::workloads;
use testbed::failure::WithState as _;
use testbed::node::Node;
use testbed::suite;
use testbed::topolvm::TopolvmSpec;

/// Tag of another build: the same programs under another name.
const OTHER: &str = "9.9.9";
/// Timeout of deletions and waits.
const GONE: &str = "--timeout=180s";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "plugin_install_upgrade_and_uninstall_restore_the_cluster";
    vec![suite::test(name, run_in_fresh_cluster)]
}

fn run_in_fresh_cluster() -> Result<()> {
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(2)?, "overlays/lvmd")?;
    spec.cluster.images.push(product_images::product(&spec.programs, OTHER)?);
    let shared = TestCluster::without_product("install", &spec)?;
    let outcome = shared.node().and_then(|node| check_lifecycle(&shared, node)).with_state(|| state(&shared));
    shared.down()?;
    outcome
}

fn check_lifecycle(shared: &TestCluster, node: &Node) -> Result<()> {
    take_storage_away(shared)?;
    let before = Objects::list(shared)?;
    check_unfit_nodes(shared, node, &before)?;
    shared.apply(&virtual_node())?;

    let install = Commands::of("install.md", "With the plugin")?;
    let answer = install.answer(&mut install.command(&shared.cluster)?)?;
    ensure!(answer.text.contains("create  DaemonSet topolvm-system/topolvm-lvmd"), "{answer:?}");
    ensure!(answer.errors.contains("the volume was created, written to and removed"), "{answer:?}");
    let without =
        format!("no storage on {}: the volume group myvg1 does not exist there\n", other_node(shared)?.name());
    ensure!(answer.errors.contains(&without), "{answer:?}");
    for workload in ["topolvm-lvmd", "topolvm-node"] {
        let ready = workloads::wanted_and_ready(&shared.cluster, workload)?;
        ensure!(ready == "2 2", "of {workload} are wanted and ready: {ready}");
    }
    check_doctor(shared, node)?;
    shared.kubectl(&["delete", "node", "virtual", GONE])?;
    let again = install.run(&shared.cluster)?;
    ensure!(again.ends_with("nothing to change\n"), "{again}");

    shared.apply(&claim("kept", "topolvm-provisioner", "512Mi", VolumeMode::Filesystem))?;
    shared.apply(&pod("kept", "kept", VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/kept", GONE])?;
    shared.kubectl(&["exec", "kept", "--", "sh", "-c", "echo kept >/data/file && sync"])?;
    let refused = run(shared, &["uninstall"])?;
    ensure!(!refused.is_success && refused.errors.contains("PersistentVolumeClaim default/kept"), "{refused:?}");

    check_upgrade(shared)?;

    // The programs go and come again, and the volume stays
    plugin::run_successfully(&shared.cluster, &["uninstall", "--keep-volumes"])?;
    ensure!(shared.kubectl(&["get", "pods", "-n", "topolvm-system", "-o", "name"])?.is_empty(), "pods are left");
    plugin::run_successfully(&shared.cluster, &["install", "--lvmd=embedded", "--no-smoke-test"])?;
    ensure!(shared.kubectl(&["exec", "kept", "--", "cat", "/data/file"])?.trim() == "kept", "the file is lost");
    let restarts = shared.value("pod", "kept", ".status.containerStatuses[0].restartCount")?;
    ensure!(restarts == "0", "the pod was started again {restarts} times");

    let volume = shared.value("pvc", "kept", ".spec.volumeName")?;
    shared.kubectl(&["delete", "pod/kept", "pvc/kept", GONE])?;
    shared.kubectl(&["wait", "--for=delete", &format!("pv/{volume}"), GONE])?;
    let lvs = node.script("lvs --noheadings -o lv_name myvg1")?;
    ensure!(lvs.trim().is_empty(), "an LV is left: {lvs}");
    plugin::run_successfully(&shared.cluster, &["uninstall"])?;
    Objects::list(shared)?.ensure_same(&before)?;
    let groups = node.script("vgs --noheadings -o vg_name")?;
    ensure!(groups.contains("myvg1"), "the volume group is gone: {groups}");
    let nothing = plugin::run_successfully(&shared.cluster, &["uninstall"])?;
    ensure!(nothing.text == "nothing is installed\n", "{nothing:?}");
    Ok(())
}

/// Turns the second node into a control plane node, with its taint and without a volume group.
fn take_storage_away(shared: &TestCluster) -> Result<()> {
    let other = other_node(shared)?;
    other.script("vgremove -qy myvg1")?;
    let taint = "node-role.kubernetes.io/control-plane=:NoSchedule";
    shared.kubectl(&["taint", "node", other.name(), taint]).map(drop)
}

fn other_node(shared: &TestCluster) -> Result<&Node> {
    shared.nodes.get(1).context("the cluster has one node")
}

/// Checks that `doctor` finds nothing wrong, then a volume group that LVM does not see any more, and then nothing
/// again.
fn check_doctor(shared: &TestCluster, node: &Node) -> Result<()> {
    expect_of_doctor(shared, "ok", "storage", "pods are healthy")?;
    let without = format!("without a volume group: {}", other_node(shared)?.name());
    expect_of_doctor(shared, "ok", "node-agents", &without)?;
    // The controller has the same findings
    let condition = Commands::of("doctor.md", "Checks that the controller runs")?;
    shared.cluster.ready("apiserver", || {
        let said = condition.run(&shared.cluster)?;
        ensure!(
            said.starts_with("True: failed: none; warnings: none; unknown: none\n"),
            "the controller says {said:?}"
        );
        Ok(())
    })?;
    node.script("vgrename myvg1 hidden")?;
    let hidden = expect_of_doctor(shared, "fail", "node-agents", "no node has a volume group for a device class");
    node.script("vgrename hidden myvg1")?;
    hidden.and_then(|()| expect_of_doctor(shared, "ok", "storage", ""))
}

/// Waits until the worst result of `doctor` is this one, with this text in the findings of a check.
fn expect_of_doctor(shared: &TestCluster, result: &str, check: &str, words: &str) -> Result<()> {
    shared.cluster.ready("apiserver", || {
        let report = plugin::json(&shared.cluster, &["doctor"])?;
        ensure!(report["result"] == result, "{report:#}");
        let mut checks = report["checks"].as_array().into_iter().flatten();
        let found = checks.find(|found| found["name"] == check).context("no such check")?;
        ensure!(found["findings"].to_string().contains(words), "doctor says: {found:#}");
        Ok(())
    })
}

/// Checks that unfit nodes are refused with the reason, and that the cluster is as before.
fn check_unfit_nodes(shared: &TestCluster, node: &Node, before: &Objects) -> Result<()> {
    let name = node.name();
    let refused = |flags: &[&str], words: String| -> Result<()> {
        let answer = run(shared, &[&["install"], flags].concat())?;
        ensure!(!answer.is_success && answer.errors.contains(&words), "{words}: {answer:?}");
        Objects::list(shared)?.ensure_same(before)
    };
    refused(&["--volume-group=absent"], "no node has the volume group absent".to_owned())?;
    let kubelet = format!("node {name}: the kubelet's directory is /var/lib/kubelet and not /var/lib/other");
    refused(&["--kubelet-dir=/var/lib/other"], kubelet)?;
    refused(&["--lvmd=host"], format!("node {name}: lvmd does not listen on /run/topolvm/lvmd.sock"))?;
    refused(&["--node-selector=storage=none"], "no node with the labels storage=none is ready".to_owned())?;
    refused(&["--image=localhost/topolvm:absent"], format!("node {name}: pod check-"))?;
    node.script("mount --bind /dev/null \"$(readlink -f /sbin/lvm)\"")?;
    let outcome = refused(&[], format!("node {name}: LVM does not work"));
    node.script("umount \"$(readlink -f /sbin/lvm)\"")?;
    outcome
}

/// Upgrades to another build and to lvmd inside the agent, while a pod has its volume.
fn check_upgrade(shared: &TestCluster) -> Result<()> {
    let image = format!("localhost/topolvm:{OTHER}");
    let upgrade = Commands::of("kubectl-topolvm.md", "upgrade")?.with("registry.example/topolvm:0.2.0", &image)?;
    let said = upgrade.run(&shared.cluster)?;
    ensure!(said.contains("remove  DaemonSet topolvm-system/topolvm-lvmd"), "{said}");
    let sets = shared.kubectl(&["get", "daemonsets", "-n", "topolvm-system", "-o", "name"])?;
    ensure!(sets.trim() == "daemonset.apps/topolvm-node", "{sets}");
    let path = ".spec.template.spec.containers[0].image";
    let running = shared.kubectl(&[
        "get",
        "daemonset",
        "topolvm-node",
        "-n",
        "topolvm-system",
        "-o",
        &format!("jsonpath={{{path}}}"),
    ])?;
    ensure!(running == image, "{running}");
    // Settings that are not named stay
    let again = plugin::run_successfully(&shared.cluster, &["upgrade"])?;
    ensure!(again.text.ends_with("nothing to change\n"), "{again:?}");
    Ok(())
}

fn run(shared: &TestCluster, arguments: &[&str]) -> Result<Answer> {
    plugin::run(&shared.cluster, &shared.cluster.inner_kubeconfig(), arguments)
}

fn state(shared: &TestCluster) -> String {
    let pods = shared.kubectl(&["get", "pods,pvc,pv", "-A", "-o", "wide"]).unwrap_or_default();
    let logs = [
        "logs",
        "-n",
        "topolvm-system",
        "--selector=app.kubernetes.io/name=topolvm",
        "--all-containers",
        "--prefix",
        "--tail=15",
        "--max-log-requests=40",
    ];
    pods + &shared.kubectl(&logs).unwrap_or_default()
}

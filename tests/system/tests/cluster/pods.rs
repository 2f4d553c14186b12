//! The product as users run it: pods of the image and the manifests, with the roles that ship.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Failed, Trial};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use system_tests::product_images;
use system_tests::scenario::Scenario;
use system_tests::shared::TestCluster;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::{self, LVMD, TopolvmSpec, manifests};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::job::Silent;

pub(crate) fn trials() -> Vec<Trial> {
    let name = "pods_with_the_roles_that_ship_do_the_whole_job_and_lvmd_moves_under_a_pod_that_writes";
    vec![Trial::test(name, || pods().map_err(|error| Failed::from(format!("{error:#}"))))]
}

fn pods() -> Result<()> {
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    let shared = TestCluster::up("pods", &spec)?;
    let node = shared.node()?;
    let outcome = whole_job(&shared, node)
        .and_then(|()| lvmd_moves(&shared, node, &spec))
        .and_then(|()| nothing_was_forbidden(&shared))
        .with_context(|| logs(&shared).unwrap_or_default());
    shared.down()?;
    outcome
}

fn whole_job(shared: &TestCluster, node: &Node) -> Result<()> {
    Scenario { cluster: &shared.cluster, node, flavor: TopoLvm }.run(&mut Silent)?;
    let owner = ".items[0].metadata.ownerReferences[0].kind";
    let owner =
        shared.kubectl(&["get", "csistoragecapacities", "-n", NAMESPACE, "-o", &format!("jsonpath={{{owner}}}")])?;
    // Not the ReplicaSet, with which they would go at each upgrade
    ensure!(owner == "Deployment", "the owner of CSIStorageCapacity objects is {owner:?}");
    Ok(())
}

/// From the DaemonSet into the agent, onto the host and back, as an administrator would do it, while a pod writes all the time.
fn lvmd_moves(shared: &TestCluster, node: &Node, spec: &TopolvmSpec) -> Result<()> {
    shared.apply(&storage_class(TopoLvm, "moves", None, false))?;
    shared.apply(&claim("writer", "moves", "64Mi", VolumeMode::Filesystem))?;
    let mut writer = pod("writer", "writer", VolumeMode::Filesystem);
    // What it says is what went wrong
    writer["spec"]["containers"][0]["command"] = json!([
        "sh",
        "-c",
        "trap 'exit 0' TERM; stat -c %m-%d /data >/data/mount; while :; do echo line >>/data/lines && sync || echo failed; \
         [ \"$(stat -c %m-%d /data)\" = \"$(cat /data/mount)\" ] || echo mounted anew; sleep 0.1; done"
    ]);
    shared.apply(&writer)?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/writer", "--timeout=60s"])?;
    let delete_daemon_set =
        || shared.kubectl(&["delete", "daemonset", "topolvm-lvmd", "-n", NAMESPACE, "--timeout=60s"]);
    let go_on = |place: &str| -> Result<()> {
        let lines = || shared.kubectl(&["exec", "writer", "--", "wc", "-l", "/data/lines"]);
        let before = lines()?;
        makes_a_volume(shared, place)?;
        ensure!(lines()? != before, "the writer stands still");
        Ok(())
    };

    go_on("daemonset")?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/embedded-lvmd"))?;
    delete_daemon_set()?;
    go_on("embedded")?;
    let program = spec.programs.join(LVMD).to_string_lossy().into_owned();
    let config =
        "printf 'device-classes:\\n- {name: ssd, volume-group: myvg1, default: true}\\n' >/etc/topolvm/lvmd.yaml";
    node.script(config)?;
    node.spawn_kept(LVMD, [program.as_str(), "--metrics-bind-address="], &BTreeMap::new())?;
    topolvm::roll_out(&shared.cluster, &manifests().join("base"))?;
    go_on("host")?;
    node.stop_kept(LVMD)?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/lvmd"))?;
    go_on("back")?;

    let said = shared.kubectl(&["logs", "writer"])?;
    ensure!(said.is_empty(), "the writer says: {said}");
    let restarts = shared.value("pod", "writer", ".status.containerStatuses[0].restartCount")?;
    ensure!(restarts == "0", "the writer was started again {restarts} times");
    Ok(())
}

fn makes_a_volume(shared: &TestCluster, name: &str) -> Result<()> {
    shared.apply(&claim(name, "moves", "64Mi", VolumeMode::Filesystem))?;
    shared.apply(&pod(name, name, VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=90s"])?;
    shared.kubectl(&["delete", &format!("pod/{name}"), &format!("pvc/{name}"), "--timeout=60s"]).map(drop)
}

fn nothing_was_forbidden(shared: &TestCluster) -> Result<()> {
    let logs = logs(shared)?;
    let refused: Vec<_> = logs.lines().filter(|line| line.to_lowercase().contains("forbidden")).collect();
    ensure!(refused.is_empty(), "a right is missing in the manifests: {refused:#?}");
    Ok(())
}

/// All that the pods of the product have said.
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

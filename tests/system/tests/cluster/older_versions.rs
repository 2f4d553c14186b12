//! Switches from TopoLVM 0.8.3, 0.9 and 0.41 with the commands of the documentation, and back: on the objects that the
//! guide and the chart of these versions leave. TopoLVM's pods only sleep, so that its volumes are created by hand.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use system_tests::chart;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::shared::TestCluster;
use system_tests::{plugin, product_images};
use testbed::failure::WithState as _;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use testbed::suite;
use testbed::topolvm::{LVMD, TopolvmSpec};
use topolvm_api::ApiFlavor::{self, Legacy, TopoLvm};

use crate::old_objects::{AgentMetadata, OldObjects};
use crate::pods::start_lvmd_on_the_host;

const GUIDE: &str = include_str!("older_versions/guide.yaml");
const GUIDE_WEBHOOKS: &str = include_str!("older_versions/guide-webhooks.yaml");
/// StorageClass of the guide and of the chart, with XFS, and the size of its volumes.
const CLASS: &str = "topolvm-provisioner";
const SIZE: &str = "320Mi";

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name, cluster, body: Body| suite::test(name, move || run(cluster, body));
    vec![
        test("topolvm_0_8_3_and_0_9_are_switched_by_the_page_and_back", "guide", switch_guide),
        test("topolvm_0_41_is_switched_by_helm_and_kustomize_and_back", "chart", switch_chart),
    ]
}

/// Switches a cluster.
type Body = fn(&TestCluster, &Node) -> Result<()>;

/// Runs a test in a separate cluster, without the product.
fn run(name: &str, body: Body) -> Result<()> {
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    let shared = TestCluster::without_product(name, &spec)?;
    let outcome = shared.node().and_then(|node| body(&shared, node)).with_state(|| state(&shared));
    shared.down()?;
    outcome
}

/// Switches from 0.8.3 under the names of the guide, back to 0.9, and from that to the names of the chart.
fn switch_guide(shared: &TestCluster, node: &Node) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let old = OldObjects { shared, node, flavor: Legacy };
    start_lvmd_on_the_host(node)?;
    apply(shared, scratch.path(), &guide("true"))?;
    create_certificate(shared, scratch.path())?;
    create_old_volume(&old)?;
    apply(shared, scratch.path(), GUIDE_WEBHOOKS)?;
    mark_node(shared, node)?;
    shared.kubectl(&["rollout", "status", "-n", NAMESPACE, "daemonset/node", "--timeout=180s"])?;
    Commands::of("switching.md", "Before you switch")?.run_in(&shared.cluster, scratch.path())?;

    Commands::of("older-guides.md", "With the names of the guide")?.run(&shared.cluster)?;
    inject_authority(shared)?;
    use_volumes(shared, Legacy).context("0.8.3, under the names of the guide")?;
    let webhooks = webhooks(shared)?;
    ensure!(!webhooks.contains("pvc-hook") && webhooks.contains("inject-ca-from"), "webhooks: {webhooks}");
    check_marks(shared, node)?;

    Commands::of("older-guides.md", "Back to the guide")?.run(&shared.cluster)?;
    apply(shared, scratch.path(), &guide("false"))?;
    apply(shared, scratch.path(), GUIDE_WEBHOOKS)?;
    shared.kubectl(&["rollout", "status", "-n", NAMESPACE, "daemonset/node", "--timeout=180s"])?;
    check_bound(shared, Legacy).context("back under the guide")?;

    Commands::of("older-guides.md", "With the names of the chart")?.run(&shared.cluster)?;
    node.stop_kept(LVMD)?;
    use_volumes(shared, Legacy).context("0.9, under the names of the chart")?;
    let webhooks = self::webhooks(shared)?;
    ensure!(!webhooks.contains("inject-ca-from"), "cert-manager would change the authority: {webhooks}");
    delete_old_volume(shared, node, Legacy)
}

/// Switches from 0.41 with helm, rolls that back, and switches with kustomize.
fn switch_chart(shared: &TestCluster, node: &Node) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/older_versions/chart");
    let install = ["install", "topolvm", &theirs.to_string_lossy(), "--create-namespace", "--wait", "--timeout=180s"];
    chart::run(&shared.cluster, NAMESPACE, &install)?;
    create_old_volume(&OldObjects { shared, node, flavor: TopoLvm })?;
    Commands::of("switching.md", "Before you switch")?.run_in(&shared.cluster, scratch.path())?;

    let values = scratch.path().join("values.yaml");
    fs::write(&values, "controller: {replicaCount: 1}\n")?;
    let upgrade = Commands::of("helm.md", "From TopoLVM's chart")?.with("values.yaml", &values.to_string_lossy())?;
    run_with_helm(shared, scratch.path(), &upgrade)?;
    use_volumes(shared, TopoLvm).context("0.41, with helm")?;

    run_with_helm(shared, scratch.path(), &Commands::of("helm.md", "Back to TopoLVM's chart")?)?;
    let sets = shared.kubectl(&["get", "daemonsets", "-n", NAMESPACE, "-o", "name"])?;
    ensure!(sets == "daemonset.apps/topolvm-lvmd-0\ndaemonset.apps/topolvm-node\n", "after the rollback: {sets}");
    check_bound(shared, TopoLvm).context("back under the chart")?;

    Commands::of("switching.md", "Switch over")?.run(&shared.cluster)?;
    Commands::of("switching.md", "All steps with pods")?.run(&shared.cluster)?;
    use_volumes(shared, TopoLvm).context("0.41, with kustomize")?;
    delete_old_volume(shared, node, TopoLvm)
}

/// Returns the guide's objects, with a driver that requires an attacher or not.
fn guide(attach: &str) -> String {
    GUIDE.replace("ATTACH", attach)
}

/// Puts the authority of the cluster, which has signed the controller's certificate, into the webhook configuration as
/// cert-manager does.
fn inject_authority(shared: &TestCluster) -> Result<()> {
    let authority = ByteString(shared.cluster.pki().authority().as_bytes().to_vec());
    let patch = json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": authority}]).to_string();
    let patch = ["patch", "mutatingwebhookconfiguration", "topolvm-hook", "--type=json", "-p", &patch];
    shared.kubectl(&[&patch[..], &["--field-manager=cert-manager-cainjector"]].concat()).map(drop)
}

/// Applies objects with the command of the guide, not server-side.
fn apply(shared: &TestCluster, scratch: &Path, objects: &str) -> Result<()> {
    let file = scratch.join("guide.yaml");
    fs::write(&file, objects)?;
    shared.kubectl(&["apply", "-f", &file.to_string_lossy()])?;
    shared.kubectl(&["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"]).map(drop)
}

/// Creates the Secret that cert-manager keeps for the guide.
fn create_certificate(shared: &TestCluster, scratch: &Path) -> Result<()> {
    let host = format!("controller.{NAMESPACE}.svc");
    shared.cluster.pki().server("controller", None, &[&host], &[])?.write(scratch, "tls")?;
    let [certificate, key] = ["crt", "key"].map(|end| scratch.join(format!("tls.{end}")).display().to_string());
    let files = [format!("--cert={certificate}"), format!("--key={key}")];
    let create = ["create", "secret", "tls", "mutatingwebhook", "-n", NAMESPACE, &files[0], &files[1]];
    shared.kubectl(&create).map(drop)
}

/// Creates a volume with a file in it, and its bound claim.
fn create_old_volume(old: &OldObjects<'_>) -> Result<()> {
    let volume = old.volume_name("old");
    let id = old.create_logical_volume(&volume, &json!({"size": SIZE}), AgentMetadata::FinalizerAndLabel)?;
    old.node.script(&format!("lvcreate -qq -n {id} -L 335544320b -W y -y myvg1"))?;
    old.make_filesystem("xfs -f", &format!("myvg1/{id}"))?;
    old.patch_status(&volume, &json!({"volumeID": id, "currentSize": SIZE}))?;
    old.create_bound_claim("old", CLASS, SIZE, Some("xfs"), &id)?;
    check_bound(old.shared, old.flavor)
}

/// Marks the Node as TopoLVM's agent does.
fn mark_node(shared: &TestCluster, node: &Node) -> Result<()> {
    shared.kubectl(&["annotate", "node", node.name(), "capacity.topolvm.cybozu.com/00default=1"])?;
    let patch = json!({"metadata": {"finalizers": ["topolvm.cybozu.com/node"]}}).to_string();
    shared.kubectl(&["patch", "node", node.name(), "--type=merge", "-p", &patch]).map(drop)
}

/// Checks that the agent uses what TopoLVM has written to the Node.
fn check_marks(shared: &TestCluster, node: &Node) -> Result<()> {
    let free = shared.value("node", node.name(), r".metadata.annotations.capacity\.topolvm\.cybozu\.com/00default")?;
    ensure!(free.parse::<u64>()? > 1, "the Node has {free} bytes");
    shared.wait_value("node", node.name(), ".metadata.finalizers", r#"["topolvm.cybozu.com/node"]"#)
}

fn old_claim(flavor: ApiFlavor) -> &'static str {
    if flavor == Legacy { "legacy-old" } else { "old" }
}

fn check_bound(shared: &TestCluster, flavor: ApiFlavor) -> Result<()> {
    shared.wait_value("pvc", old_claim(flavor), ".status.phase", "Bound")
}

/// Checks that a pod finds the old volume with its file, and that a new claim becomes Bound and is mounted.
fn use_volumes(shared: &TestCluster, flavor: ApiFlavor) -> Result<()> {
    let old = old_claim(flavor);
    let names = [old, "new"];
    create_when_answered(shared, &claim("new", CLASS, SIZE, VolumeMode::Filesystem))?;
    for name in names {
        create_when_answered(shared, &pod(name, name, VolumeMode::Filesystem))?;
    }
    for name in names {
        shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"])?;
    }
    let text = shared.kubectl(&["exec", old, "--", "cat", "/data/file"])?;
    ensure!(text == "theirs\n", "the old volume has {text:?}");
    shared.kubectl(&["exec", "new", "--", "touch", "/data/file"])?;
    shared.kubectl(&["delete", &format!("pod/{old}"), "pod/new", "pvc/new", "--timeout=180s"])?;
    check_bound(shared, flavor)
}

/// Creates an object as soon as the webhooks are answered with the right certificate.
fn create_when_answered(shared: &TestCluster, object: &Value) -> Result<()> {
    shared.cluster.ready("apiserver", || shared.apply(object))
}

fn webhooks(shared: &TestCluster) -> Result<String> {
    let path = ".webhooks[*].name} {.metadata.annotations";
    shared.value("mutatingwebhookconfiguration", "topolvm-hook", path)
}

/// Deletes the old claim, whose volume goes with it.
fn delete_old_volume(shared: &TestCluster, node: &Node, flavor: ApiFlavor) -> Result<()> {
    shared.kubectl(&["delete", "pvc", old_claim(flavor), "--timeout=180s"])?;
    shared.kubectl(&["wait", "--for=delete", "pv", "--all", "--timeout=180s"])?;
    let left = node.script("lvs --noheadings -o lv_name myvg1")?;
    ensure!(left.trim().is_empty(), "LVs are left: {left}");
    Ok(())
}

/// Runs commands of a page with helm in the PATH.
fn run_with_helm(shared: &TestCluster, scratch: &Path, page: &Commands) -> Result<()> {
    let link = scratch.join("helm");
    if !link.exists() {
        symlink(chart::program()?, &link).context("link helm")?;
    }
    let path = format!("{}:{}", scratch.display(), plugin::search_path(&shared.cluster)?);
    page.answer(page.command(&shared.cluster)?.env("PATH", path)).map(drop)
}

fn state(shared: &TestCluster) -> String {
    let kubectl = |arguments: &[&str]| shared.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"));
    let logs = ["--all-containers", "--prefix", "--tail=15", "--max-log-requests=40", "--ignore-errors"];
    ["topolvm", "controller", "node"].into_iter().fold(
        kubectl(&["get", "pods,pvc,pv,csidrivers", "-A", "-o", "wide"])
            + &kubectl(&["get", "events", "-A", "--sort-by=.lastTimestamp"]),
        |text, name| {
            let selector = format!("--selector=app.kubernetes.io/name={name}");
            text + &kubectl(&[&["logs", "-n", NAMESPACE, &selector], &logs[..]].concat())
        },
    )
}

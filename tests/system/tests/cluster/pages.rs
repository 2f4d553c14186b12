//! Follows pages of the documentation literally: a shell runs the code blocks of their sections, as administrator of
//! the cluster or on the node.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim};
use system_tests::product_images;
use system_tests::shared::TestCluster;
use testbed::image::Image;
use testbed::node::{Node, NodeSpec};
use testbed::size::GIB;
use testbed::suite;
use testbed::topolvm::{self, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

/// Name of the example's image `busybox:1.37` in containerd.
const BUSYBOX: &str = "docker.io/library/busybox:1.37";
/// Arguments of kubectl that print the first date in the file of the example.
const DATES: [&str; 6] = ["exec", "deployment/example-deployment", "--", "head", "-n1", "/data/dates"];
/// Number of blank disks of a node, `/dev/ubdd` and so on. The pages call them sdb, sdc and sdd.
const DISKS: usize = 3;
/// Kinds of objects outside of namespaces that an installation creates.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,csidrivers,storageclasses,\
                     persistentvolumes,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,\
                     mutatingwebhookconfigurations,validatingwebhookconfigurations,volumesnapshotclasses";
/// Finalizers, labels and annotations of all nodes, each on a line.
const MARKS: &str = "{{range .items}}{{range .metadata.finalizers}}{{.}}{{\"\\n\"}}{{end}}\
                     {{range $name, $value := .metadata.labels}}{{$name}}={{$value}}{{\"\\n\"}}{{end}}\
                     {{range $name, $_ := .metadata.annotations}}{{$name}}{{\"\\n\"}}{{end}}{{end}}";

/// Name of the test that a soak runs alone.
pub(crate) const GETTING_STARTED: &str = "getting_started_and_node_maintenance_work_as_written";
/// The same.
pub(crate) const NODE_LABEL: &str = "nodes_with_the_label_get_volumes_until_it_is_removed";

pub(crate) fn tests() -> Vec<Trial> {
    let in_fresh_cluster =
        |name, check: fn(&TestCluster) -> Result<()>| suite::test(name, move || run_in_fresh_cluster(check));
    vec![
        in_fresh_cluster("installation_page_works_and_uninstalls_cleanly", follow_installation),
        in_fresh_cluster("trial_survives_a_reboot_and_is_removed_cleanly", crate::trial::check),
        in_fresh_cluster(NODE_LABEL, crate::node_label::check),
        in_fresh_cluster(GETTING_STARTED, follow_getting_started),
    ]
}

fn run_in_fresh_cluster(check: fn(&TestCluster) -> Result<()>) -> Result<()> {
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    spec.cluster.images.push(Image::with_programs(BUSYBOX, &["/bin/sh"], &[])?);
    for node in &mut spec.nodes {
        node.spare_disks = vec![20 * GIB; DISKS];
    }
    let shared = TestCluster::without_product("pages", &spec)?;
    let outcome = check(&shared).with_context(|| pods(&shared));
    shared.down()?;
    outcome
}

fn follow_installation(shared: &TestCluster) -> Result<()> {
    let before = state(shared)?;
    Commands::of("install.md", "With kustomize")?.run(&shared.cluster)?;
    Commands::of("install.md", "Check")?.run(&shared.cluster)?;
    let phase = shared.value("persistentvolumeclaim", "example-deployment", ".status.phase")?;
    ensure!(phase == "Bound", "the claim is {phase}");
    ensure!(state(shared)? != before, "the objects of an installation are not compared");
    Commands::of("install.md", "Uninstall")?.run(&shared.cluster)?;
    let after = state(shared)?;
    ensure!(after == before, "before the installation:\n{before}\nand after all was taken away:\n{after}");
    Ok(())
}

/// Goes from a blank disk to a pod with a volume, which keeps its data while its disks are exchanged, and back.
fn follow_getting_started(shared: &TestCluster) -> Result<()> {
    let node = shared.node()?;
    node.script("vgremove --yes myvg1 && wipefs --all /dev/ubdc")?;
    let cluster = &shared.cluster;
    Commands::of("getting-started.md", "1. Make a volume group")?.with("/dev/sdb", "/dev/ubdd")?.run_on(node)?;
    Commands::of("getting-started.md", "2. Install")?.run(cluster)?;
    Commands::of("getting-started.md", "3. Make the first volume")?.run(cluster)?;
    Commands::of("getting-started.md", "4. See where it is")?.run(cluster)?;
    Commands::of("troubleshooting.md", "Troubleshooting")?.run(cluster)?;
    Commands::of("getting-started.md", "5. Expand it while it is in use")?.run(cluster)?;
    crate::web_page::check(shared, "example-deployment").context("web page")?;
    exchange_disks(shared, node)?;
    maintain_nodes(shared)?;
    Commands::of("getting-started.md", "6. Remove everything")?.run(cluster)?;
    node.script("vgremove myvg1")?;
    Ok(())
}

/// Drains the node of the pod while another one runs the controller, and then removes the other one.
fn maintain_nodes(shared: &TestCluster) -> Result<()> {
    let spec = NodeSpec { vg_disks: vec![20 * GIB], ..NodeSpec::number(2) };
    let second = shared.cluster.add_node(&spec)?;
    let outcome = topolvm::wait_for_driver(&shared.cluster, &second, TopoLvm)
        .and_then(|()| drain_node(shared).context("drain a node"))
        .and_then(|()| remove_node(shared, &second).context("remove a node"))
        .with_context(|| pods(shared));
    second.down()?;
    outcome
}

/// The pod waits while its node is drained, and has its data afterwards.
fn drain_node(shared: &TestCluster) -> Result<()> {
    let first = shared.kubectl(&DATES)?;
    let waits = "kubectl wait pod --selector=app.kubernetes.io/name=example-deployment --timeout=180s \
                 --for=jsonpath='{.status.phase}'=Pending";
    let page = Commands::of("node-maintenance.md", "Reboot a node, or take it out of service for a while")?;
    page.with("# work on it, reboot it", waits)?.run(&shared.cluster)?;
    shared.kubectl(&["rollout", "status", "deployment/example-deployment", "--timeout=2m"])?;
    ensure!(shared.kubectl(&DATES)? == first, "the file of the pod begins with another date than {first}");
    Ok(())
}

/// Removes a node that has a volume, whose claim goes with it.
fn remove_node(shared: &TestCluster, node: &Node) -> Result<()> {
    shared.apply(&claim("leaving", "topolvm-provisioner", "512Mi", VolumeMode::Filesystem))?;
    let select = Commands::of("limits.md", "Pods with `spec.nodeName`, and claims without a pod")?;
    select.with("CLAIM=data NODE=node1", &format!("CLAIM=leaving NODE={}", node.name()))?.run(&shared.cluster)?;
    shared.kubectl(&["wait", "--for=jsonpath={.status.phase}=Bound", "pvc/leaving", "--timeout=2m"])?;
    let volumes = node.script("lvs --noheadings -o lv_name myvg1")?;
    ensure!(!volumes.trim().is_empty(), "the volume is elsewhere");
    Commands::of("node-maintenance.md", "Remove a node for good")?.with("node2", node.name())?.run(&shared.cluster)?;
    shared.kubectl(&["wait", "--for=delete", "pvc/leaving", "--timeout=2m"])?;
    shared.kubectl(&["get", "pvc", "example-deployment"]).map(drop)
}

/// Adds a disk to the volume group and replaces its first one, and the pod keeps its data.
fn exchange_disks(shared: &TestCluster, node: &Node) -> Result<()> {
    let first = shared.kubectl(&DATES)?;
    Commands::of("node-maintenance.md", "Grow a volume group")?.with("/dev/sdc", "/dev/ubde")?.run_on(node)?;
    let replace = Commands::of("node-maintenance.md", "Replace a disk that still works")?;
    replace.with("/dev/sdb", "/dev/ubdd")?.with("/dev/sdd", "/dev/ubdf")?.run_on(node)?;
    let disks = node.script("vgs --noheadings -o pv_name myvg1")?;
    ensure!(!disks.contains("ubdd") && disks.contains("ubdf"), "the group is on {disks}");
    ensure!(shared.kubectl(&DATES)? == first, "the file of the pod begins with another date than {first}");
    Ok(())
}

/// Returns the objects, and the marks on nodes, that according to the page an installation creates and a removal
/// deletes.
fn state(shared: &TestCluster) -> Result<String> {
    let objects = shared.kubectl(&["get", KINDS, "-o", "name"])?;
    let marks = shared.kubectl(&["get", "nodes", "-o", &format!("go-template={MARKS}")])?;
    // The others are kubelet's, which adds and removes them at any time
    let marks: Vec<_> = marks.lines().filter(|mark| mark.contains("topolvm.io")).collect();
    Ok(objects + &marks.join("\n"))
}

fn pods(shared: &TestCluster) -> String {
    let log = |container: &str| {
        let of_container = ["logs", "daemonset/topolvm-trial", "-n", "topolvm-system", "-c", container];
        shared.kubectl(&of_container).unwrap_or_default()
    };
    shared.kubectl(&["describe", "pods,pvc", "-A"]).unwrap_or_default() + &log("attach")
}

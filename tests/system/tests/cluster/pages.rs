//! Follows pages of the documentation literally: a shell runs the code blocks of their sections, as administrator of
//! the cluster or on the node.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use libtest_mimic::{Failed, Trial};
use system_tests::shared::TestCluster;
use system_tests::{plugin, product_images};
use testbed::image::Image;
use testbed::node::Node;
use testbed::size::GIB;
use testbed::topolvm::TopolvmSpec;

/// Name of the example's image `busybox:1.37` in containerd.
const BUSYBOX: &str = "docker.io/library/busybox:1.37";
/// Disks as the pages call them, and the bed.
const DISKS: [(&str, &str); 3] = [("/dev/sdb", "/dev/ubdd"), ("/dev/sdc", "/dev/ubde"), ("/dev/sdd", "/dev/ubdf")];
/// Kinds of objects outside of namespaces that an installation creates.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,csidrivers,storageclasses,\
                     persistentvolumes,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,\
                     mutatingwebhookconfigurations,validatingwebhookconfigurations,volumesnapshotclasses";
/// Finalizers, labels and annotations of all nodes, each on a line.
const MARKS: &str = "{{range .items}}{{range .metadata.finalizers}}{{.}}{{\"\\n\"}}{{end}}\
                     {{range $name, $value := .metadata.labels}}{{$name}}={{$value}}{{\"\\n\"}}{{end}}\
                     {{range $name, $_ := .metadata.annotations}}{{$name}}{{\"\\n\"}}{{end}}{{end}}";

pub(crate) fn trials() -> Vec<Trial> {
    let name = "who_follows_the_pages_or_tries_a_loop_file_gets_volumes_and_can_take_everything_away_again";
    vec![Trial::test(name, || run_in_fresh_cluster().map_err(|error| Failed::from(format!("{error:#}"))))]
}

fn run_in_fresh_cluster() -> Result<()> {
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    spec.cluster.images.push(Image::with_programs(BUSYBOX, &["/bin/sh"], &[])?);
    for node in &mut spec.nodes {
        node.spare_disks = DISKS.map(|_| 20 * GIB).into();
    }
    let shared = TestCluster::without_product("pages", &spec)?;
    let outcome = follow_installation(&shared)
        .and_then(|()| crate::trial::check(&shared))
        .and_then(|()| crate::node_label::check(&shared))
        .and_then(|()| follow_getting_started(&shared))
        .with_context(|| pods(&shared));
    shared.down()?;
    outcome
}

fn follow_installation(shared: &TestCluster) -> Result<()> {
    let page = Page::read("install.md")?;
    let before = state(shared)?;
    page.run(shared, "With kustomize")?;
    page.run(shared, "Check")?;
    let phase = shared.value("persistentvolumeclaim", "example-deployment", ".status.phase")?;
    ensure!(phase == "Bound", "the claim is {phase}");
    ensure!(state(shared)? != before, "what an installation makes is not looked at");
    page.run(shared, "Uninstall")?;
    let after = state(shared)?;
    ensure!(after == before, "before the installation:\n{before}\nand after all was taken away:\n{after}");
    Ok(())
}

/// Goes from a blank disk to a pod with a volume, which keeps its data while its disks are exchanged, and back.
fn follow_getting_started(shared: &TestCluster) -> Result<()> {
    let node = shared.node()?;
    node.script("vgremove --yes myvg1 && wipefs --all /dev/ubdc")?;
    let (page, maintenance) = (Page::read("getting-started.md")?, Page::read("node-maintenance.md")?);
    page.run_on(node, "1. Make a volume group")?;
    page.run(shared, "2. Install")?;
    page.run(shared, "3. Make the first volume")?;
    page.run(shared, "4. See where it is")?;
    Page::read("troubleshooting.md")?.run(shared, "")?;
    page.run(shared, "5. Expand it while it is in use")?;

    let dates = ["exec", "deployment/example-deployment", "--", "head", "-n1", "/data/dates"];
    let first = shared.kubectl(&dates)?;
    maintenance.run_on(node, "Grow a volume group")?;
    maintenance.run_on(node, "Replace a disk that still works")?;
    let disks = node.script("vgs --noheadings -o pv_name myvg1")?;
    ensure!(!disks.contains("ubdd") && disks.contains("ubdf"), "the group is on {disks}");
    ensure!(shared.kubectl(&dates)? == first, "the file of the pod begins with another date than {first}");

    page.run(shared, "6. Remove everything")?;
    node.script("vgremove myvg1")?;
    Ok(())
}

/// Returns the objects, and the marks on nodes, that according to the page an installation creates and a removal
/// deletes.
fn state(shared: &TestCluster) -> Result<String> {
    let objects = shared.kubectl(&["get", KINDS, "-o", "name"])?;
    let marks = shared.kubectl(&["get", "nodes", "-o", &format!("go-template={MARKS}")])?;
    // Others are kubelet's, which come and go when it likes
    let marks: Vec<_> = marks.lines().filter(|mark| mark.contains("topolvm.io")).collect();
    Ok(objects + &marks.join("\n"))
}

/// A page of the documentation.
pub(crate) struct Page {
    name: &'static str,
    pub(crate) text: String,
}

impl Page {
    pub(crate) fn read(name: &'static str) -> Result<Self> {
        let text = fs::read_to_string(repository().join("docs").join(name)).with_context(|| format!("read {name}"))?;
        Ok(Self { name, text })
    }

    /// Runs the blocks of a section in a shell, from the top of the repository, as administrator.
    fn run(&self, shared: &TestCluster, section: &str) -> Result<()> {
        let script = self.script(section)?;
        let output = plugin::shell(&shared.cluster, &script)?.current_dir(repository()).output().context("run sh")?;
        if !output.status.success() {
            let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).join("\n");
            let pods = shared.kubectl(&["describe", "pods", "-A"]).unwrap_or_default();
            bail!("{}, section {section:?}: {said}\n{pods}", self.name);
        }
        Ok(())
    }

    /// Runs the blocks of a section on the node, whose disks have other names.
    fn run_on(&self, node: &Node, section: &str) -> Result<()> {
        let mut script = self.script(section)?;
        for (page, bed) in DISKS {
            script = script.replace(page, bed);
        }
        node.script(&script).with_context(|| format!("{}, section {section:?}", self.name)).map(drop)
    }

    /// Returns the code blocks marked `sh` of a section in their order, or of what stands before the first section.
    pub(crate) fn script(&self, section: &str) -> Result<String> {
        let heading = if section.is_empty() { String::new() } else { format!("\n## {section}\n") };
        let (_, rest) = self.text.split_once(&heading).unwrap_or_default();
        let text = rest.split("\n## ").next().unwrap_or_default();
        let blocks = text.split("```sh\n").skip(1).filter_map(|block| Some(block.split_once("```")?.0));
        let script: String = blocks.collect();
        ensure!(!script.is_empty(), "section {section:?} of {} has no block for a shell", self.name);
        Ok(script)
    }
}

fn pods(shared: &TestCluster) -> String {
    let log = |container: &str| {
        let of_container = ["logs", "daemonset/topolvm-trial", "-n", "topolvm-system", "-c", container];
        shared.kubectl(&of_container).unwrap_or_default()
    };
    shared.kubectl(&["describe", "pods,pvc", "-A"]).unwrap_or_default() + &log("attach")
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

//! Follows the installation page literally: a shell runs the code blocks of its sections.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Failed, Trial};
use system_tests::product_images;
use system_tests::shared::TestCluster;
use testbed::image::Image;
use testbed::topolvm::TopolvmSpec;

/// Name of the example's image `busybox:1.37` in containerd.
const BUSYBOX: &str = "docker.io/library/busybox:1.37";
/// Kinds of objects outside of namespaces that an installation creates.
const KINDS: &str = "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,csidrivers,storageclasses,\
                     persistentvolumes,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,\
                     mutatingwebhookconfigurations,validatingwebhookconfigurations,volumesnapshotclasses";
/// Finalizers, labels and annotations of all nodes, each on a line.
const MARKS: &str = "{{range .items}}{{range .metadata.finalizers}}{{.}}{{\"\\n\"}}{{end}}\
                     {{range $name, $value := .metadata.labels}}{{$name}}={{$value}}{{\"\\n\"}}{{end}}\
                     {{range $name, $_ := .metadata.annotations}}{{$name}}{{\"\\n\"}}{{end}}{{end}}";

pub(crate) fn trials() -> Vec<Trial> {
    let name = "who_follows_the_installation_page_gets_a_volume_and_can_take_everything_away_again";
    vec![Trial::test(name, || run_in_fresh_cluster().map_err(|error| Failed::from(format!("{error:#}"))))]
}

fn run_in_fresh_cluster() -> Result<()> {
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    spec.cluster.images.push(Image::with_programs(BUSYBOX, &["/bin/sh"], &[])?);
    let shared = TestCluster::without_product("page", &spec)?;
    let outcome = follow_page(&shared);
    shared.down()?;
    outcome
}

fn follow_page(shared: &TestCluster) -> Result<()> {
    let page = fs::read_to_string(repository().join("docs/install.md")).context("read the page")?;
    let before = state(shared)?;
    run(shared, &page, "With kustomize")?;
    run(shared, &page, "Check")?;
    let phase = shared.value("persistentvolumeclaim", "example-deployment", ".status.phase")?;
    ensure!(phase == "Bound", "the claim is {phase}");
    ensure!(state(shared)? != before, "what an installation makes is not looked at");
    run(shared, &page, "Uninstall")?;
    let after = state(shared)?;
    ensure!(after == before, "before the installation:\n{before}\nand after all was taken away:\n{after}");
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

/// Runs the blocks of a section in a shell, from the top of the repository, as administrator.
fn run(shared: &TestCluster, page: &str, section: &str) -> Result<()> {
    let script = code_blocks(page, section).concat();
    ensure!(!script.is_empty(), "the section {section:?} has no block for a shell");
    let kubectl = shared.cluster.tool("kubectl");
    let tools = kubectl.parent().context("kubectl is in no directory")?;
    let mut command = shared.cluster.command("bash");
    command.args(["-euc", &script]).current_dir(repository()).stdin(Stdio::null());
    command.env("KUBECONFIG", shared.cluster.inner_kubeconfig());
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.display()));
    let output = command.output().context("run bash")?;
    if !output.status.success() {
        let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).join("\n");
        let pods = shared.kubectl(&["describe", "pods", "-A"]).unwrap_or_default();
        anyhow::bail!("section {section:?}: {said}\n{pods}");
    }
    Ok(())
}

/// Returns the code blocks marked `sh` of a section, in their order.
fn code_blocks<'a>(page: &'a str, section: &str) -> Vec<&'a str> {
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).unwrap_or_default();
    let text = rest.split("\n## ").next().unwrap_or_default();
    text.split("```sh\n").skip(1).filter_map(|block| Some(block.split_once("```")?.0)).collect()
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

//! Runs the examples for users with their script.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::assets;
use testbed::image::{Compression, Image, write_archive};

use crate::Body;
use crate::fixture::Fixture;

const NAMESPACE: &str = "try-examples";
/// Image with Debian's Redis in place of the one in the example: the test cluster has no registry.
const DATABASE: &str = "testbed.local/redis:1";
const DATABASE_PACKAGES: &[&str] = &[
    "redis-server",
    "redis-tools",
    "libatomic1",
    "libc6",
    "libcap2",
    "libgcc-s1",
    "libgcrypt20",
    "libgpg-error0",
    "libhiredis0.14",
    "libjemalloc2",
    "liblua5.1-0",
    "liblz4-1",
    "liblzf1",
    "liblzma5",
    "libssl3",
    "libstdc++6",
    "libsystemd0",
    "libzstd1",
    "lua-bitop",
    "lua-cjson",
];
/// The busybox image of the test bed.
const BUSYBOX: &str = "testbed.local/busybox:1";
/// Component with image names for a cluster without a public registry.
const IMAGES: &str = "\
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images:
- {name: busybox, newName: testbed.local/busybox, newTag: '1'}
- {name: redis, newName: testbed.local/redis, newTag: '1'}
";

pub(crate) fn tests() -> Vec<(String, Body)> {
    vec![("the_examples_run_as_they_are_and_leave_nothing_behind".to_owned(), run_examples)]
}

fn run_examples(fixture: &Fixture) -> Result<()> {
    let directory = tempfile::tempdir().context("create a directory for the examples")?;
    load_database(fixture, directory.path())?;
    let examples = directory.path().join("examples");
    let copied = fixture.cluster.command("cp").arg("-r").arg(shipped()).arg(&examples).status().context("run cp")?;
    ensure!(copied.success(), "the examples cannot be copied");
    fs::write(examples.join("images/kustomization.yaml"), IMAGES).context("write the names of images")?;
    let outcome = run_all(fixture, &examples);
    // Leftovers of a failure would affect the next test
    fixture.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=180s"])?;
    outcome
}

fn run_all(fixture: &Fixture, examples: &Path) -> Result<()> {
    let script = |arguments: &[&str]| -> Result<Output> {
        let kubectl = fixture.cluster.tool("kubectl");
        let kubectl = format!("{} --kubeconfig {}", kubectl.display(), fixture.cluster.inner_kubeconfig().display());
        let mut command = fixture.cluster.command(examples.join("test.sh"));
        command.args(arguments).env("KUBECTL", kubectl).env("NAMESPACE", NAMESPACE).env("TIMEOUT", "240s");
        command.stdin(Stdio::null()).output().context("run test.sh")
    };
    let run = |arguments: &[&str]| -> Result<String> {
        let output = script(arguments)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "test.sh {arguments:?}: {text}\n{errors}");
        Ok(text)
    };
    ensure!(run(&["--help"])?.contains("NAMESPACE"), "--help does not mention NAMESPACE");
    ensure!(script(&["instal"])?.status.code() == Some(64), "a wrong word is not refused");
    let early = String::from_utf8_lossy(&script(&["exec"])?.stderr).into_owned();
    ensure!(early.contains("install"), "exec before install says {early}");

    run(&["install"])?;
    fixture.check_volumes(7)?;
    run(&["exec"])?;
    run(&["expand"])?;
    run(&["scale"])?;
    fixture.check_volumes(8)?;
    let limits = run(&["limits"])?;
    ensure!(limits.contains("bytes written 5Mi/s") && limits.contains("bytes read 20Mi/s"), "{limits}");

    let written = read_all(fixture)?;
    let claims = list_claims(fixture)?;
    run(&["delete"])?;
    let pods = fixture.kubectl(&["get", "pods", "-n", NAMESPACE, "-o", "name"])?;
    ensure!(pods.is_empty(), "delete leaves {pods}");
    // All but the ephemeral volume, whose claim goes before it
    fixture.cluster.ready("apiserver", || fixture.check_volumes(7))?;
    run(&["install"])?;
    let (kept, claims_after) = (read_all(fixture)?, list_claims(fixture)?);
    ensure!(kept == written, "the volumes had {written:?} before delete, and have {kept:?} after install");
    ensure!(claims_after == claims, "the claims were {claims} before delete, and are {claims_after} after install");
    fixture.check_volumes(8)?;

    run(&["snapshot"])?;
    run(&["delete"])?;
    let snapshots = fixture.kubectl(&["get", "volumesnapshots", "-n", NAMESPACE, "-o", "name"])?;
    ensure!(snapshots.contains("/example-snapshot"), "delete leaves no snapshot: {snapshots:?}");
    choose_node(fixture, examples)?;
    run(&["uninstall"])?;
    fixture.wait_no_volumes()?;
    fixture.check_volumes(0)?;
    for kind in ["namespaces", "storageclasses", "volumesnapshotclasses"] {
        let left = fixture.kubectl(&["get", kind, "-l", "app.kubernetes.io/part-of=topolvm-examples", "-o", "name"])?;
        ensure!(left.is_empty(), "uninstall leaves {left}");
    }
    Ok(())
}

/// Reads what `test.sh exec` has written: to the file, to the block device and to the database.
fn read_all(fixture: &Fixture) -> Result<[String; 3]> {
    let read = |pod: &str, command: &[&str]| -> Result<String> {
        let arguments: [&[&str]; 2] = [&["exec", "-n", NAMESPACE, pod, "--"], command];
        let said = fixture.kubectl(&arguments.concat())?;
        ensure!(said.trim().starts_with("written-"), "{pod} reads {said:?}");
        Ok(said.trim().to_owned())
    };
    Ok([
        read("deployment/example-deployment", &["cat", "/data/word"])?,
        read("example-block", &["head", "-c", "512", "/dev/example"])?,
        read("example-database-0", &["redis-cli", "get", "word"])?,
    ])
}

/// Returns name, UID and size of each claim that outlives its pods.
fn list_claims(fixture: &Fixture) -> Result<String> {
    let format = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.capacity.storage}{\"\\n\"}{end}";
    let claims = fixture.kubectl(&["get", "persistentvolumeclaims", "-n", NAMESPACE, "-o", format])?;
    Ok(claims.lines().filter(|claim| !claim.starts_with("example-ephemeral-")).collect::<Vec<_>>().join("\n"))
}

/// Applies the example of a StorageClass for chosen nodes with the name of the node, and deletes it again.
fn choose_node(fixture: &Fixture, examples: &Path) -> Result<()> {
    let file = examples.join("allowed-topologies.yaml");
    let mut text = fs::read_to_string(&file).context("read the example")?;
    for (placeholder, value) in
        [("[node1]", format!("[{}]", fixture.node.name())), ("busybox:1.37", BUSYBOX.to_owned())]
    {
        ensure!(text.contains(placeholder), "the example does not contain {placeholder}");
        text = text.replace(placeholder, &value);
    }
    fs::write(&file, text).context("write the example")?;
    let file = file.to_string_lossy();
    let (pod, claim) = ("pod/example-allowed-topologies", "example-allowed-topologies");
    fixture.kubectl(&["apply", "-n", NAMESPACE, "-f", &file])?;
    fixture.kubectl(&["wait", "--for=condition=Ready", "-n", NAMESPACE, pod, "--timeout=240s"])?;
    let volume = fixture.kubectl(&["get", "pvc", claim, "-n", NAMESPACE, "-o", "jsonpath={.spec.volumeName}"])?;
    fixture.kubectl(&["delete", "-n", NAMESPACE, "-f", &file, "--timeout=180s"])?;
    fixture.kubectl(&["wait", "--for=delete", &format!("persistentvolume/{volume}"), "--timeout=180s"]).map(drop)
}

fn shipped() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))
}

fn load_database(fixture: &Fixture, directory: &Path) -> Result<()> {
    let root = assets::unpacked("amd64", DATABASE_PACKAGES)?;
    let files = images::programs(&root, &["redis-server", "redis-cli"])?;
    let config = json!({ "Env": ["PATH=/usr/bin:/bin"] });
    let archive = directory.join("database.tar");
    let image = Image::new(DATABASE, "amd64", config, vec![files.layer()?]);
    write_archive(&archive, &[image], Compression::None)?;
    fixture.cluster.load_images(&archive)
}

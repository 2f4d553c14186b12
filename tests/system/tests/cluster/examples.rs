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
/// Image with Debian's Redis in the place of the one that the example names: the bed has no registry.
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
/// Component with image names for a cluster without a public registry.
const IMAGES: &str = "\
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images:
- {name: busybox, newName: testbed.local/busybox, newTag: '1'}
- {name: redis, newName: testbed.local/redis, newTag: '1'}
";

pub(crate) fn trials() -> Vec<(String, Body)> {
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
    // What a failure leaves would be in the way of the next trial
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
    ensure!(run(&["--help"])?.contains("NAMESPACE"), "--help does not tell of NAMESPACE");
    ensure!(script(&["instal"])?.status.code() == Some(64), "a wrong word is not refused");
    let early = String::from_utf8_lossy(&script(&["exec"])?.stderr).into_owned();
    ensure!(early.contains("install"), "exec before install says {early}");

    run(&["install"])?;
    fixture.check_volumes(6)?;
    run(&["exec"])?;
    run(&["expand"])?;
    run(&["scale"])?;
    fixture.check_volumes(7)?;
    run(&["snapshot"])?;
    run(&["delete"])?;
    fixture.wait_no_volumes()?;
    fixture.check_volumes(0)?;
    run(&["uninstall"])?;
    for kind in ["namespaces", "storageclasses", "volumesnapshotclasses"] {
        let left = fixture.kubectl(&["get", kind, "-l", "app.kubernetes.io/part-of=topolvm-examples", "-o", "name"])?;
        ensure!(left.is_empty(), "uninstall leaves {left}");
    }
    Ok(())
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

//! Container images that the manifests name, built from the programs in cargo's target directory and the sidecars of
//! the test bed.

#![expect(clippy::disallowed_methods, reason = "starts kubectl and strip, and is no part of the product")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use images::{PROGRAMS, Product};
use serde_json::json;
use testbed::assets;
use testbed::image::{Files, Image};
use testbed::size::GIB;
use testbed::topolvm::{self, TopolvmSpec};

/// Returns the specification with the product as pods of a kustomization, by its path in the manifests or an absolute
/// path, and 20 GiB for the volume group of each node.
pub fn in_pods(spec: TopolvmSpec, overlay: impl AsRef<Path>) -> Result<TopolvmSpec> {
    let mut spec = spec.with_snapshots();
    spec.manifests = topolvm::manifests().join(overlay);
    spec.cluster.images = for_manifests(&spec.programs, &spec.manifests)?;
    spec.in_pods = true;
    for node in &mut spec.nodes {
        node.vg_disks = vec![20 * GIB];
    }
    Ok(spec)
}

/// Returns the images that a kustomization names: the product's, from the programs in a directory, and those of the
/// sidecars.
pub fn for_manifests(programs: &Path, manifests: &Path) -> Result<Vec<Image>> {
    let tools = assets::kubernetes_tools()?.bin;
    let rendered = run_command(Command::new(tools.join("kubectl")).arg("kustomize").arg(manifests))?;
    let names = rendered.lines().filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("image: "));
    let mut images = Vec::new();
    for name in names.collect::<BTreeSet<_>>() {
        let (repository, tag) = name.rsplit_once(':').with_context(|| format!("image {name} has no tag"))?;
        if repository == images::NAME {
            images.push(product(programs, tag)?);
        } else {
            images.push(sidecar(&tools, name, repository)?);
        }
    }
    Ok(images)
}

/// Returns the image of the product with a tag, from the programs in a directory. Debug information is stripped: it is
/// nine tenths of a debug build.
pub fn product(programs: &Path, tag: &str) -> Result<Image> {
    let stripped = tempfile::tempdir().context("create a directory for the programs of the image")?;
    for program in PROGRAMS {
        run_command(Command::new("strip").arg("-o").arg(stripped.path().join(program)).arg(programs.join(program)))?;
    }
    Ok(Product::build(stripped.path(), tag)?.image)
}

fn sidecar(tools: &Path, name: &str, repository: &str) -> Result<Image> {
    let program = repository.rsplit('/').next().unwrap_or(repository);
    let mut files = Files::root();
    files.add(&tools.join(program), program).with_context(|| format!("the test bed has no image {name}"))?;
    let config = json!({ "Entrypoint": [format!("/{program}")], "Env": ["PATH=/"] });
    Ok(Image::new(name, "amd64", config, vec![files.layer()?]))
}

fn run_command(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

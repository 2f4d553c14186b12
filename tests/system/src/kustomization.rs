//! Kustomizations that a test makes of the overlays and components that ship.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use testbed::topolvm;

/// The manifests that users apply, as a kustomization in this directory names them: it takes no absolute paths.
pub fn path_of_manifests(directory: &Path) -> Result<String> {
    let up: String = directory.canonicalize()?.components().skip(1).map(|_| "../").collect();
    let ours = topolvm::manifests().canonicalize()?;
    Ok(format!("{up}{}", ours.strip_prefix("/")?.display()))
}

/// Makes a directory a kustomization of an overlay with components.
pub fn write(directory: &Path, overlay: &str, components: &[&str]) -> Result<()> {
    fs::create_dir(directory).with_context(|| format!("create {}", directory.display()))?;
    let ours = path_of_manifests(directory)?;
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("{ours}/overlays/{overlay}")],
        "components": components.iter().map(|name| format!("{ours}/components/{name}")).collect::<Vec<_>>(),
    });
    let file = directory.join("kustomization.yaml");
    fs::write(&file, kustomization.to_string()).with_context(|| format!("write {}", file.display()))
}

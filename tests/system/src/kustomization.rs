//! Kustomizations that a test writes on top of those that ship.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use testbed::topolvm;

/// A kustomization as an administrator writes it, on top of one that ships.
#[derive(Debug, Default)]
pub struct Kustomization<'a> {
    /// Path of the kustomization that it is based on, in `deploy/manifests`.
    pub base: &'a str,
    /// Names of components that ship, in their order.
    pub components: &'a [&'a str],
    /// Further files of the directory, with objects.
    pub resources: &'a [&'a str],
    /// Patches in the format of kustomize, see [`patch`].
    pub patches: Vec<Value>,
}

impl Kustomization<'_> {
    /// Writes the kustomization into a directory, which is created if it is missing, and returns the directory.
    pub fn write(&self, directory: &Path) -> Result<PathBuf> {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let ours = path_of_manifests(directory)?;
        let mut resources = vec![format!("{ours}/{}", self.base)];
        resources.extend(self.resources.iter().map(|&file| file.to_owned()));
        let components: Vec<_> = self.components.iter().map(|name| format!("{ours}/components/{name}")).collect();
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": resources, "components": components, "patches": self.patches,
        });
        let file = directory.join("kustomization.yaml");
        fs::write(&file, kustomization.to_string()).with_context(|| format!("write {}", file.display()))?;
        Ok(directory.to_owned())
    }
}

/// Returns the relative path from a directory to the manifests that ship: kustomize takes no absolute paths.
fn path_of_manifests(directory: &Path) -> Result<String> {
    let up: String = directory.canonicalize()?.components().skip(1).map(|_| "../").collect();
    let ours = topolvm::manifests().canonicalize()?;
    Ok(format!("{up}{}", ours.strip_prefix("/")?.display()))
}

/// Returns a kustomize patch of all objects of a kind, or of the one with a name, from JSON patch operations.
pub fn patch(kind: &str, name: Option<&str>, operations: &Value) -> Value {
    let mut target = json!({ "kind": kind });
    if let (Some(name), Some(members)) = (name, target.as_object_mut()) {
        members.insert("name".to_owned(), name.into());
    }
    json!({ "target": target, "patch": operations.to_string() })
}

/// Returns a kustomize patch that replaces the lvmd.yaml of lvmd in pods.
pub fn lvmd_config(text: &str) -> Value {
    patch("ConfigMap", Some("topolvm-lvmd"), &json!([{"op": "replace", "path": "/data/lvmd.yaml", "value": text}]))
}

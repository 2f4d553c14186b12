//! The objects of an installation, rendered by the kustomize that is in kubectl: what the documented overlays make is
//! made here too.

use std::path::Path;
use std::process::Command;

use kube::api::DynamicObject;
use serde_json::Value;

use super::InstallError;
use super::manifests::{self, LVMD_CONFIG};
use super::object::ObjectId;
use super::options::{self, Options, VolumeGroups};

/// All objects of an installation.
#[derive(Clone, Debug)]
pub(crate) struct Rendering {
    /// As kustomize prints them.
    pub(crate) yaml: String,
    /// In the order in which they are applied.
    pub(crate) objects: Vec<DynamicObject>,
}

/// Renders the objects of an installation with these options, without a cluster.
pub(crate) fn render(options: &Options) -> Result<Rendering, InstallError> {
    let directory = tempfile::Builder::new().prefix("kubectl-topolvm-").tempdir().map_err(InstallError::Directory)?;
    let top = manifests::write(directory.path(), options).map_err(InstallError::Directory)?;
    Rendering::parse(kustomize(&top)?)
}

#[expect(clippy::disallowed_methods, reason = "a plugin of kubectl has kubectl beside it, and kustomize with it")]
fn kustomize(directory: &Path) -> Result<String, InstallError> {
    let output = Command::new("kubectl").arg("kustomize").arg(directory).output().map_err(InstallError::Kubectl)?;
    if !output.status.success() {
        return Err(InstallError::Kustomize(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    String::from_utf8(output.stdout).map_err(|error| InstallError::Rendered(error.to_string()))
}

impl Rendering {
    pub(super) fn parse(yaml: String) -> Result<Self, InstallError> {
        // Kustomize indents the contents of an object, so that this separator is between objects only
        let mut objects = yaml.split("\n---\n").map(parse_one).collect::<Result<Vec<_>, _>>()?;
        objects.sort_by_key(|object| ObjectId::of(object).rank());
        Ok(Self { yaml, objects })
    }

    pub(crate) fn ids(&self) -> Vec<ObjectId> {
        self.objects.iter().map(ObjectId::of).collect()
    }

    /// Returns the volume groups of lvmd's device classes; none if its configuration is on the host.
    pub(crate) fn volume_groups(&self) -> VolumeGroups {
        let config = self.objects.iter().find(|object| {
            let id = ObjectId::of(object);
            id.kind == "ConfigMap" && id.name == LVMD_CONFIG.0
        });
        let text = config.and_then(|config| config.data.get("data")?.get(LVMD_CONFIG.1)?.as_str());
        text.and_then(|text| options::volume_groups(text).ok()).unwrap_or_default()
    }

    /// Returns names and images of the containers of all workloads.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.objects.iter().filter_map(|object| object.data.pointer("/spec/template/spec/containers"));
        all.filter_map(Value::as_array).flatten().map(|container| (text(container, "name"), text(container, "image")))
    }

    /// Returns the image of the programs.
    pub(crate) fn image(&self) -> &str {
        self.containers().find(|(name, _)| *name == "topolvm-node").map(|(_, image)| image).unwrap_or_default()
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn parse_one(yaml: &str) -> Result<DynamicObject, InstallError> {
    let value: Value = serde_saphyr::from_str(yaml).map_err(|error| InstallError::Rendered(error.to_string()))?;
    serde_json::from_value(value).map_err(|error| InstallError::Rendered(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENDERED: &str = "\
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: topolvm-node
  namespace: topolvm-system
spec:
  template:
    spec:
      containers:
      - {name: topolvm-node, image: 'r/topolvm:1', env: [{name: USE_LEGACY, value: \"true\"}]}
---
apiVersion: v1
data:
  lvmd.yaml: |
    device-classes:
    - {name: ssd, volume-group: fast}
kind: ConfigMap
metadata:
  name: topolvm-lvmd
  namespace: topolvm-system
---
apiVersion: v1
kind: Namespace
metadata:
  name: topolvm-system
";

    #[test]
    fn objects_are_read_and_put_in_order() {
        let rendering = Rendering::parse(RENDERED.to_owned()).unwrap();
        let kinds: Vec<_> = rendering.ids().into_iter().map(|id| id.kind).collect();
        assert_eq!(kinds, ["Namespace", "ConfigMap", "DaemonSet"]);
        assert_eq!(rendering.image(), "r/topolvm:1");
        assert_eq!(rendering.volume_groups().required, ["fast"]);
        // Texts that look like something else stay texts
        let value = rendering.objects[2].data.pointer("/spec/template/spec/containers/0/env/0/value");
        assert_eq!(value.and_then(Value::as_str), Some("true"));
    }
}

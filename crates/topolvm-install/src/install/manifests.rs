//! The kustomizations of `deploy/manifests`, which are in this program, and the one that combines them according to the
//! options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::options::{Certificates, KUBELET, Lvmd, Options, Scheduling};

/// Path below `deploy/manifests`, and content.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

/// Namespace of the programs.
pub const NAMESPACE: &str = "topolvm-system";
/// ConfigMap with lvmd.yaml, and its key.
pub(super) const LVMD_CONFIG: (&str, &str) = ("topolvm-lvmd", "lvmd.yaml");
/// Name of the image in the manifests.
const IMAGE: &str = "localhost/topolvm";
const STORAGE_CLASS: &str = "base/storageclass.yaml";
const BASE: &str = "base";

/// Returns the names of all components.
pub(super) fn components() -> Vec<&'static str> {
    let file = |path: &'static str| path.strip_prefix("components/")?.strip_suffix("/kustomization.yaml");
    FILES.iter().filter_map(|&(path, _)| file(path)).collect()
}

/// Writes the files for `kubectl kustomize` below a directory, and returns the kustomization to render.
pub(super) fn write(directory: &Path, options: &Options) -> io::Result<PathBuf> {
    // Each overlay is made for the base, and gets in the place of it what the one before has made
    let mut below = None;
    for (number, overlay) in overlays(options).into_iter().enumerate() {
        write_tree(&directory.join(number.to_string()), below.as_deref())?;
        below = Some(format!("{number}/{overlay}"));
    }
    let top = directory.join("installation");
    fs::create_dir_all(&top)?;
    let mut resources = vec![format!("../{}", below.unwrap_or_default())];
    if let Some(name) = &options.storage_class {
        fs::write(top.join("storageclass.json"), storage_class(name, options).to_string())?;
        resources.push("storageclass.json".to_owned());
    }
    for (number, object) in
        options.trial.iter().flat_map(|trial| trial.objects(NAMESPACE, options.flavor())).enumerate()
    {
        let file = format!("trial-{number}.json");
        fs::write(top.join(&file), object.to_string())?;
        resources.push(file);
    }
    let mut all: Vec<String> = options.components.clone();
    // It rewrites what the others have made
    all.extend(options.legacy.then(|| "legacy".to_owned()));
    let components: Vec<_> = all.iter().map(|name| format!("../0/components/{name}")).collect();
    let mut kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": resources, "components": components, "patches": patches(options),
    });
    if let (Some(image), Some(object)) = (&options.image, kustomization.as_object_mut()) {
        object.insert("images".to_owned(), json!([image_entry(image)]));
    }
    // JSON is YAML, and needs no care for what names contain
    fs::write(top.join("kustomization.yaml"), kustomization.to_string())?;
    Ok(top)
}

/// Returns the overlays to apply, each on top of the one before.
fn overlays(options: &Options) -> Vec<&'static str> {
    let first = match options.lvmd {
        Lvmd::Daemonset => "overlays/lvmd",
        Lvmd::Embedded => "overlays/embedded-lvmd",
        Lvmd::Host => BASE,
    };
    let second = match (options.scheduling, options.certificates) {
        (Scheduling::Capacity, _) => None,
        (Scheduling::Extender, Certificates::SelfManaged) => Some("overlays/extender"),
        (Scheduling::Extender, Certificates::CertManager) => Some("overlays/extender-cert-manager"),
    };
    std::iter::once(first).chain(second).collect()
}

/// Writes all files of `deploy/manifests`, with another base if one is given.
fn write_tree(directory: &Path, base: Option<&str>) -> io::Result<()> {
    for (path, content) in FILES {
        let file = directory.join(path);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(file, content)?;
    }
    let Some(base) = base else { return Ok(()) };
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [format!("../../{base}")],
    });
    fs::write(directory.join(BASE).join("kustomization.yaml"), kustomization.to_string())
}

fn storage_class(name: &str, options: &Options) -> Value {
    let text = FILES.iter().find(|(path, _)| *path == STORAGE_CLASS).map(|(_, text)| *text).unwrap_or_default();
    // It is parsed in a test
    let mut class: Value = serde_saphyr::from_str(text).unwrap_or_default();
    if let Some(object) = class.as_object_mut() {
        object.insert("metadata".to_owned(), json!({ "name": name }));
        object.insert("provisioner".to_owned(), options.flavor().driver_name().into());
    }
    class
}

/// Returns the entry of kustomize's `images` for `NAME:TAG` or `NAME@DIGEST`.
fn image_entry(image: &str) -> Value {
    if let Some((name, digest)) = image.split_once('@') {
        return json!({ "name": IMAGE, "newName": name, "digest": digest });
    }
    match image.rsplit_once(':') {
        // A colon further left is that of a port
        Some((name, tag)) if !tag.contains('/') => json!({ "name": IMAGE, "newName": name, "newTag": tag }),
        Some(_) | None => json!({ "name": IMAGE, "newName": image, "newTag": "latest" }),
    }
}

fn patches(options: &Options) -> Vec<Value> {
    let mut patches = Vec::new();
    let mut patch = |kind: &str, name: &str, operations: Value| {
        patches.push(json!({ "target": { "kind": kind, "name": name }, "patch": operations.to_string() }));
    };
    if let (Some(text), true) = (options.lvmd_yaml(), options.lvmd != Lvmd::Host) {
        let path = format!("/data/{}", LVMD_CONFIG.1);
        patch("ConfigMap", LVMD_CONFIG.0, json!([{ "op": "replace", "path": path, "value": text }]));
    }
    if let Some(replicas) = options.replicas {
        let operation = json!([{ "op": "replace", "path": "/spec/replicas", "value": replicas }]);
        patch("Deployment", "topolvm-controller", operation);
    }
    if let Some(directory) = &options.kubelet_dir {
        patch("DaemonSet", "topolvm-node", kubelet_dir_patch(directory, options.flavor().driver_name()));
    }
    if !options.node_selector.is_empty() {
        // In addition to the operating system
        let operations = options.node_selector.iter().map(|(key, value)| {
            let key = key.replace('~', "~0").replace('/', "~1");
            json!({ "op": "add", "path": format!("/spec/template/spec/nodeSelector/{key}"), "value": value })
        });
        patch("DaemonSet", "topolvm-(node|lvmd)", operations.collect());
    }
    patches
}

/// Returns the JSON patch for another directory of kubelet. Its tests make another order in node.yaml an error.
fn kubelet_dir_patch(directory: &str, driver: &str) -> Value {
    let pod = "/spec/template/spec";
    let container = format!("{pod}/containers/0");
    let socket = |root: &str| format!("--csi-socket={root}/plugins/{driver}/node/csi-topolvm.sock");
    let mut operations = vec![
        json!({ "op": "test", "path": format!("{container}/args/0"), "value": socket(KUBELET) }),
        json!({ "op": "replace", "path": format!("{container}/args/0"), "value": socket(directory) }),
        json!({ "op": "add", "path": format!("{container}/args/1"), "value": format!("--kubelet-dir={directory}") }),
    ];
    let mounted = [
        ("plugin", format!("{directory}/plugins/{driver}/node")),
        ("registration", format!("{directory}/plugins_registry")),
        ("pods", format!("{directory}/pods")),
        ("csi", format!("{directory}/plugins/kubernetes.io/csi")),
    ];
    for (index, (name, path)) in mounted.iter().enumerate() {
        let (mount, volume) = (format!("{container}/volumeMounts/{index}"), format!("{pod}/volumes/{index}"));
        operations.extend([
            json!({ "op": "test", "path": format!("{mount}/name"), "value": name }),
            json!({ "op": "replace", "path": format!("{mount}/mountPath"), "value": path }),
            json!({ "op": "test", "path": format!("{volume}/name"), "value": name }),
            json!({ "op": "replace", "path": format!("{volume}/hostPath/path"), "value": path }),
        ]);
    }
    operations.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kustomizations_that_flags_can_name_are_in_the_program() {
        let has = |path: &str| FILES.iter().any(|(file, _)| *file == path);
        for overlay in
            ["overlays/lvmd", "overlays/embedded-lvmd", "overlays/extender", "overlays/extender-cert-manager"]
        {
            assert!(has(&format!("{overlay}/kustomization.yaml")), "{overlay}");
        }
        assert!(has(STORAGE_CLASS) && has("base/kustomization.yaml"));
        assert!(components().contains(&"legacy"));
        assert_eq!(storage_class("fast", &Options::default())["volumeBindingMode"], "WaitForFirstConsumer");
    }

    #[test]
    fn the_tag_of_an_image_is_not_the_port_of_its_registry() {
        assert_eq!(image_entry("r:5000/topolvm:1"), json!({"name": IMAGE, "newName": "r:5000/topolvm", "newTag": "1"}));
        assert_eq!(
            image_entry("r:5000/topolvm"),
            json!({"name": IMAGE, "newName": "r:5000/topolvm", "newTag": "latest"})
        );
        assert_eq!(image_entry("r/t@sha256:ab"), json!({"name": IMAGE, "newName": "r/t", "digest": "sha256:ab"}));
    }

    #[test]
    fn an_overlay_gets_what_the_one_before_it_has_made_for_its_base() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options { scheduling: Scheduling::Extender, ..Options::default() };
        let top = write(directory.path(), &options).unwrap();
        let read = |path: &str| fs::read_to_string(directory.path().join(path)).unwrap();
        assert!(fs::read_to_string(top.join("kustomization.yaml")).unwrap().contains("../1/overlays/extender"));
        assert!(read("1/base/kustomization.yaml").contains("../../0/overlays/lvmd"));
        assert!(read("0/base/kustomization.yaml").contains("node.yaml"));
    }
}

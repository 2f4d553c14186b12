//! No mount of a pod lies in another one: below a mount with the propagation `Bidirectional` it would reach the host at
//! each start of the container, and stay there.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use system_tests::chart::{self, LVM_MOUNTS};

use crate::equality::{known_values, render};
use crate::objects::Objects;

/// The directories of kubelet in which the agent works: its own socket, the registrar's, and the paths at which volumes
/// are published and staged.
const OF_KUBELET: [(&str, bool); 4] = [
    ("plugins/topolvm.io/node", false),
    ("plugins_registry", false),
    ("pods", true),
    ("plugins/kubernetes.io/csi", true),
];

const EMBEDDED: &str = "node.lvmdEmbedded=true,lvmd.managed=false";

pub(crate) fn check_mounts() -> Result<()> {
    for values in known_values() {
        let objects = render(values)?;
        for container in containers(&objects) {
            check_apart(container).with_context(|| values.to_owned())?;
        }
    }
    let other = chart::render("topolvm", "topolvm-system", &["--set", "node.kubeletWorkDirectory=/other"])?;
    let objects = Objects::parse(&other)?;
    let agent = &objects.find("DaemonSet", "topolvm-node")?["spec"]["template"]["spec"];
    for (directory, is_shared) in OF_KUBELET {
        let path = format!("/other/{directory}");
        let mounts = agent["containers"][0]["volumeMounts"].as_array().context("no mounts")?;
        let mount = mounts.iter().find(|mount| mount["mountPath"] == *path).with_context(|| format!("no {path}"))?;
        ensure!((mount["mountPropagation"] == "Bidirectional") == is_shared, "{mount}");
        let volumes = agent["volumes"].as_array().context("no volumes")?;
        ensure!(volumes.iter().any(|volume| volume["hostPath"]["path"] == *path), "{path} is not that of the host");
    }
    check_mounts_of_lvm()
}

/// LVM in the container has mounts for the paths that it writes to, in the agent and in lvmd's DaemonSet; with nsenter
/// none of them is mounted.
fn check_mounts_of_lvm() -> Result<()> {
    let prefixes = [(r#"["/sbin/lvm"]"#, LVM_MOUNTS.len()), (r#"["nsenter", "-t1", "-m", "/sbin/lvm"]"#, 0)];
    for (lvmd, daemon_set) in [("lvmd.managed=true", "topolvm-lvmd"), (EMBEDDED, "topolvm-node")] {
        for (prefix, expected) in prefixes {
            let content = format!(r#"lvmd.additionalLVMDYamlContent={{"lvm-command-prefix": {prefix}}}"#);
            let flags = ["--set", lvmd, "--set-json", &content];
            let objects = Objects::parse(&chart::render("topolvm", "topolvm-system", &flags)?)?;
            let container = &objects.find("DaemonSet", daemon_set)?["spec"]["template"]["spec"]["containers"][0];
            let mounts = container["volumeMounts"].as_array().context("no mounts")?;
            let found = mounts.iter().filter(|mount| LVM_MOUNTS.iter().any(|path| mount["mountPath"] == *path));
            ensure!(found.count() == expected, "{daemon_set} with {prefix}: {mounts:?}");
        }
    }
    Ok(())
}

/// Returns the containers of all workloads.
fn containers(objects: &Objects) -> impl Iterator<Item = &Value> {
    let lists = objects.all().filter_map(|object| object["spec"]["template"]["spec"]["containers"].as_array());
    lists.flatten()
}

fn check_apart(container: &Value) -> Result<()> {
    let mounts = container["volumeMounts"].as_array().map_or(&[][..], Vec::as_slice);
    let paths: Vec<&str> = mounts.iter().filter_map(|mount| mount["mountPath"].as_str()).collect();
    for outer in &paths {
        let inner = paths.iter().find(|inner| *inner != outer && Path::new(inner).starts_with(outer));
        ensure!(inner.is_none(), "{}: {inner:?} is mounted in {outer}", container["name"]);
    }
    Ok(())
}

//! Compares the chart, rendered with each set of values in its directory `ci`, with the kustomization of the same
//! objects.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use system_tests::chart::{self, run_command};
use system_tests::kustomization::Kustomization;
use testbed::assets;

use crate::objects::Objects;

/// A set of values, an overlay and its components.
type Pair = (&'static str, &'static str, &'static [&'static str]);

const PAIRS: [Pair; 19] = [
    ("default", "lvmd", &[]),
    ("sidecars", "lvmd", &["sidecars"]),
    ("group-snapshots", "lvmd", &["sidecars", "group-snapshots"]),
    ("node-label", "lvmd", &["node-label"]),
    ("ui", "lvmd", &["ui"]),
    ("rebuild", "lvmd", &["rebuild"]),
    ("extended-resources", "lvmd", &["extended-resources"]),
    ("inventory", "lvmd", &["inventory"]),
    ("without-pod-io-limits", "lvmd", &["without-pod-io-limits"]),
    ("embedded", "embedded-lvmd", &[]),
    ("host-lvmd", "systemd-lvmd", &[]),
    ("legacy", "legacy", &[]),
    ("extender-self-managed", "extender", &[]),
    ("extender-cert-manager", "extender-cert-manager", &[]),
    ("extender-secret", "extender-manual-secret", &[]),
    (
        "scheduler-daemonset",
        "lvmd",
        &["webhooks", "certificate-cert-manager", "scheduler-daemonset", "sidecars", "without-snapshots"],
    ),
    ("scheduler-deployment", "deployment-scheduler", &[]),
    ("legacy-scheduler", "daemonset-scheduler", &["legacy"]),
    ("monitoring", "lvmd", &["webhooks", "certificate-self-managed", "scheduler-deployment", "monitoring"]),
];
/// Sets of values that no kustomization corresponds to.
const ALONE: [&str; 2] = ["sidecar-capacity", "upstream"];

/// The taints that the kustomizations tolerate. The chart tolerates those that TopoLVM's chart does, which are none, so
/// that a release that is switched has its pods on the same nodes.
const TOLERATIONS: [&str; 4] = [
    "--set-json",
    r#"node.tolerations=[{"operator":"Exists"}]"#,
    "--set-json",
    r#"lvmd.tolerations=[{"operator":"Exists"}]"#,
];

/// Values with which the sidecars do all that they can do.
pub(crate) const SIDECARS: &str =
    "controller.provisioner=csi-provisioner,controller.resizer=csi-resizer,controller.snapshotter=csi-snapshotter";

/// Kinds that only kustomizations have. helm creates the namespace with `--create-namespace`; a StorageClass cannot be
/// changed, so that no kustomization has one.
const ONLY_IN_KUSTOMIZATIONS: [&str; 1] = ["Namespace"];
const ONLY_IN_THE_CHART: [&str; 1] = ["StorageClass"];

pub(crate) fn compare_with_kustomizations() -> Result<()> {
    let scratch = tempfile::tempdir().context("create a directory for kustomizations")?;
    let mut differences = Vec::new();
    for (values, overlay, components) in PAIRS {
        let directory = scratch.path().join(values);
        Kustomization { base: &format!("overlays/{overlay}"), components, ..Kustomization::default() }
            .write(&directory)?;
        let kubectl = assets::kubernetes_tools()?.bin.join("kubectl");
        let built = run_command(Command::new(kubectl).arg("kustomize").arg(&directory))?;
        let built = Objects::parse(&built)?.comparable(&ONLY_IN_KUSTOMIZATIONS)?;
        let rendered = render_with(values, &TOLERATIONS)?;
        ensure!(rendered.of_kind("StorageClass").count() == 1, "{values}: there is no StorageClass");
        for definition in rendered.of_kind("CustomResourceDefinition") {
            let policy = &definition["metadata"]["annotations"]["helm.sh/resource-policy"];
            ensure!(policy == "keep", "{values}: `helm uninstall` would remove every volume");
        }
        let rendered = rendered.comparable(&ONLY_IN_THE_CHART)?;
        differences.extend(built.differences(&rendered).into_iter().map(|line| format!("{values}: {line}")));
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

pub(crate) fn lint_all_values() -> Result<()> {
    let entries = fs::read_dir(chart::directory().join("ci"))?.collect::<Result<Vec<_>, _>>()?;
    let files: BTreeSet<_> = entries.iter().map(fs::DirEntry::path).collect();
    let known: BTreeSet<_> = known_values().map(chart::values).collect();
    ensure!(files == known, "a set of values is not compared with a kustomization: {files:?}");
    for file in files {
        let mut lint = Command::new(chart::program()?);
        lint.args(["lint", "--strict"]).arg(chart::directory()).arg("--values").arg(&file);
        run_command(&mut lint)?;
    }
    Ok(())
}

/// Returns the names of all sets of values.
pub(crate) fn known_values() -> impl Iterator<Item = &'static str> {
    PAIRS.iter().map(|(name, ..)| *name).chain(ALONE)
}

/// Renders the chart with a set of values.
pub(crate) fn render(values: &str) -> Result<Objects> {
    render_with(values, &[])
}

/// Renders the chart with a set of values and further flags.
pub(crate) fn render_with(values: &str, flags: &[&str]) -> Result<Objects> {
    let file = chart::values(values);
    let file = file.to_string_lossy();
    let flags = [&["--values", file.as_ref()], flags].concat();
    let rendered = chart::render("topolvm", "topolvm-system", &flags)?;
    Objects::parse(&rendered).with_context(|| values.to_owned())
}

//! Values of overlay tools and older charts: empty and null sections, and names that are no longer supported.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use system_tests::chart;

use crate::equality::SIDECARS;
use crate::objects::Objects;

pub(crate) fn check_tolerance() -> Result<()> {
    render_null_sections()?;
    render_some()?;
    let gone = ["--set", "node=null", "--set", "webhook=null"];
    let refusal = chart::render("topolvm", "topolvm-system", &gone).err().context("no section is taken")?;
    ensure!(refusal.to_string().contains("node, webhook: the section is null"), "{refusal}");
    let older = ["--set", "image.tag=0.38.0", "--set", "webhook.pvcMutatingWebhook.enabled=true"];
    let refusal = chart::render("topolvm", "topolvm-system", &older).err().context("older names are taken")?;
    let refusal = refusal.to_string();
    for name in ["image.tag: use image.reference", "webhook.pvcMutatingWebhook: finalizers"] {
        ensure!(refusal.contains(name), "{name} is not in {refusal}");
    }
    Ok(())
}

/// Renders the chart with null for each list and each empty section of its values, all at once.
fn render_null_sections() -> Result<()> {
    let defaults: Value = serde_saphyr::from_str(&fs::read_to_string(chart::directory().join("values.yaml"))?)?;
    let mut values = null_sections(defaults.as_object().context("no values")?);
    // Without a device class there is no lvmd
    values["lvmd"]["deviceClasses"] = defaults["lvmd"]["deviceClasses"].clone();
    values["storageClasses"] = json!([{"name": "a", "storageClass": {
        "annotations": null, "additionalParameters": null, "mountOptions": null, "reclaimPolicy": null,
        "volumeBindingMode": null, "allowVolumeExpansion": null, "isDefaultClass": null, "fsType": null,
    }}]);
    let directory = tempfile::tempdir()?;
    for mode in ["capacity", "extender"] {
        values["scheduling"]["mode"] = mode.into();
        let file = directory.path().join("values.yaml");
        fs::write(&file, values.to_string())?;
        let rendered = chart::render("topolvm", "topolvm-system", &["--values", &file.to_string_lossy()])?;
        Objects::parse(&rendered)?.find("StorageClass", "a")?;
    }
    Ok(())
}

/// Returns null for each list and for each section without values.
fn null_sections(section: &Map<String, Value>) -> Value {
    let null = |value: &Value| match value {
        Value::Object(inner)
            if !inner.is_empty() && inner.values().any(|value| value.is_object() || value.is_array()) =>
        {
            Some(null_sections(inner))
        }
        Value::Object(inner) => inner.is_empty().then_some(Value::Null),
        Value::Array(_) => Some(Value::Null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    section.iter().filter_map(|(name, value)| Some((name.clone(), null(value)?))).collect::<Map<_, _>>().into()
}

/// Renders values that are in use, and checks the effect of each.
fn render_some() -> Result<()> {
    let objects = |flags: &[&str]| Objects::parse(&chart::render("topolvm", "topolvm-system", flags)?);
    let host = objects(&["--set", "lvmd.managed=false", "--set-json", "lvmd.deviceClasses=[]"])?;
    ensure!(host.find("DaemonSet", "topolvm-lvmd").is_err(), "an lvmd that is not managed is rendered");
    let refusal = objects(&["--set-json", "lvmd.deviceClasses=[]"]).err().context("lvmd without classes is taken")?;
    ensure!(refusal.to_string().contains("lvmd.deviceClasses: "), "{refusal}");

    let flags = [
        "--set-json",
        r#"lvmd.additionalLVMDYamlContent={"lvm-command-prefix":["/sbin/lvm"]}"#,
        "--set-json",
        r#"args.csi_resizer=["--timeout=1m"]"#,
        "--set",
        SIDECARS,
        "--set-json",
        r#"node={"priorityClassName":"","nodeSelector":{"storage":"local"}}"#,
    ];
    let objects = objects(&flags)?;
    let agent = &objects.find("DaemonSet", "topolvm-node")?["spec"]["template"]["spec"];
    ensure!(agent["priorityClassName"].is_null(), "{agent}");
    ensure!(agent["nodeSelector"] == json!({"kubernetes.io/os": "linux", "storage": "local"}), "{agent}");
    ensure!(agent["tolerations"].is_null(), "taints are tolerated that TopoLVM's chart does not tolerate: {agent}");
    let lvmd = &objects.find("DaemonSet", "topolvm-lvmd")?["spec"]["template"]["spec"];
    let mounts = lvmd["containers"][0]["volumeMounts"].as_array().context("no mounts")?;
    let volumes = lvmd["volumes"].as_array().context("no volumes")?;
    for path in ["/run/lock/lvm", "/run/lvm", "/etc/lvm/archive", "/etc/lvm/backup", "/etc/lvm/cache"] {
        let mount = mounts.iter().find(|mount| mount["mountPath"] == path);
        let mount = mount.with_context(|| format!("LVM in the container cannot write to {path}"))?;
        ensure!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "no volume for {mount}");
    }
    let controller = objects.find("Deployment", "topolvm-controller")?["spec"]["template"]["spec"].clone();
    for (index, port) in [(1, 9809), (2, 9810), (3, 9811)] {
        ensure!(controller["containers"][index]["ports"][0]["containerPort"] == port, "{controller}");
    }
    let flags = controller["containers"][2]["args"].as_array().context("no flags")?;
    ensure!(flags.last() == Some(&json!("--timeout=1m")), "{flags:?}");
    Ok(())
}

//! Dependencies between the packages of the workspace.

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::tools::cargo;

/// Packages of the product and of images with those on which they may depend: the arrows of ARCHITECTURE.md.
const ALLOWED: [(&str, &[&str]); 39] = [
    ("block-device", &[]),
    ("device-mapper", &[]),
    ("memory", &[]),
    ("topolvm-api", &[]),
    ("topolvm-proto", &[]),
    ("linux-mount", &["topolvm-api"]),
    ("lvm", &["block-device", "device-mapper"]),
    ("topolvm-runtime", &["memory"]),
    ("topolvm-doctor", &["topolvm-api"]),
    ("topolvm-kube", &["topolvm-api", "topolvm-runtime"]),
    ("topolvm-capacity", &["topolvm-api", "topolvm-kube", "topolvm-runtime"]),
    ("cli-runtime", &["topolvm-api", "topolvm-doctor"]),
    ("topolvm-install", &["cli-runtime", "topolvm-api", "topolvm-doctor"]),
    ("kubectl-topolvm", &["cli-runtime", "topolvm-api", "topolvm-doctor", "topolvm-install"]),
    ("topolvm-scheduler", &["topolvm-api", "topolvm-capacity", "topolvm-kube", "topolvm-runtime"]),
    ("lvmd-config", &["block-device", "lvm", "topolvm-runtime"]),
    ("lvmd-engine", &["lvm", "lvmd-config", "topolvm-runtime"]),
    ("lvmd-discovery", &["block-device", "lvm", "lvmd-config", "lvmd-engine", "topolvm-runtime"]),
    (
        "lvmd",
        &["block-device", "lvm", "lvmd-config", "lvmd-discovery", "lvmd-engine", "topolvm-proto", "topolvm-runtime"],
    ),
    ("lvmd-client", &["linux-mount", "lvm", "topolvm-proto", "topolvm-runtime"]),
    (
        "topolvm-controller",
        &[
            "capacity-publisher",
            "claim-growth",
            "claim-rebuild",
            "cluster-inventory",
            "doctor-controller",
            "embedded-provisioner",
            "embedded-resizer",
            "embedded-snapshotter",
            "topolvm-api",
            "topolvm-capacity",
            "topolvm-doctor",
            "topolvm-kube",
            "topolvm-proto",
            "topolvm-runtime",
            "topolvm-ui",
            "topolvm-webhook",
        ],
    ),
    ("capacity-publisher", &["topolvm-api", "topolvm-capacity", "topolvm-kube", "topolvm-runtime"]),
    ("claim-growth", &["topolvm-api", "topolvm-capacity", "topolvm-kube", "topolvm-runtime"]),
    ("claim-rebuild", &["topolvm-api", "topolvm-kube", "topolvm-runtime"]),
    ("cluster-inventory", &["topolvm-kube", "topolvm-runtime"]),
    ("doctor-controller", &["topolvm-api", "topolvm-doctor", "topolvm-kube", "topolvm-runtime"]),
    ("csi-calls", &["topolvm-proto", "topolvm-runtime"]),
    ("embedded-provisioner", &["csi-calls", "topolvm-api", "topolvm-kube", "topolvm-proto", "topolvm-runtime"]),
    ("embedded-resizer", &["csi-calls", "topolvm-api", "topolvm-kube", "topolvm-proto", "topolvm-runtime"]),
    ("embedded-snapshotter", &["csi-calls", "topolvm-api", "topolvm-kube", "topolvm-proto", "topolvm-runtime"]),
    ("topolvm-ui", &["topolvm-api", "topolvm-capacity", "topolvm-doctor", "topolvm-kube", "topolvm-runtime"]),
    ("topolvm-webhook", &["topolvm-api", "topolvm-capacity", "topolvm-kube", "topolvm-runtime"]),
    ("node-inventory", &["lvmd-client", "topolvm-kube", "topolvm-proto", "topolvm-runtime"]),
    (
        "node-io-limits",
        &["linux-mount", "lvmd-client", "published-pods", "topolvm-api", "topolvm-kube", "topolvm-runtime"],
    ),
    (
        "node-orphans",
        &[
            "linux-mount",
            "lvm",
            "lvmd-client",
            "lvmd-config",
            "topolvm-api",
            "topolvm-kube",
            "topolvm-proto",
            "topolvm-runtime",
        ],
    ),
    ("published-pods", &["linux-mount", "topolvm-runtime"]),
    ("node-storage", &["lvmd-client", "topolvm-api", "topolvm-kube", "topolvm-proto", "topolvm-runtime"]),
    (
        "topolvm-node",
        &[
            "linux-mount",
            "lvm",
            "lvmd",
            "lvmd-config",
            "lvmd-client",
            "node-inventory",
            "node-io-limits",
            "node-orphans",
            "node-storage",
            "published-pods",
            "topolvm-api",
            "topolvm-kube",
            "topolvm-proto",
            "topolvm-runtime",
        ],
    ),
    ("topolvm-testkit", &["block-device", "lvm", "topolvm-api"]),
];

/// Checks what the packages in `crates` depend on; dependencies of tests are free.
pub(crate) fn check() -> anyhow::Result<()> {
    let output = cargo(&["metadata", "--format-version=1", "--no-deps", "--locked", "--quiet"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let wrong = find_wrong(&serde_json::from_slice(&output.stdout).context("cargo metadata")?);
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

fn find_wrong(metadata: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut wrong = Vec::new();
    for package in metadata.get("packages").map(list).unwrap_or_default() {
        let (name, manifest) = (text(package.get("name")), text(package.get("manifest_path")));
        if !manifest.contains("/crates/") {
            continue;
        }
        let allowed = ALLOWED.iter().find(|(package, _)| *package == name);
        let Some((_, allowed)) = allowed else {
            wrong.push(format!("{manifest}: name {name} and its dependencies in xtask/src/lint/dependencies.rs"));
            continue;
        };
        for dependency in package.get("dependencies").map(list).unwrap_or_default() {
            let is_ours = dependency.get("path").is_some_and(Value::is_string);
            let is_for_tests = dependency.get("kind").and_then(Value::as_str) == Some("dev");
            let other = text(dependency.get("name"));
            if is_ours && !is_for_tests && !allowed.contains(&other.as_str()) {
                wrong.push(format!(
                    "{manifest}: {name} may not depend on {other}; move what it needs down into a package of which \
                     both know, or draw the arrow in ARCHITECTURE.md and xtask/src/lint/dependencies.rs"
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn find(package: &str, dependency: &Value) -> Vec<String> {
        let manifest = format!("/crates/{package}/Cargo.toml");
        let package = json!({"name": package, "manifest_path": manifest, "dependencies": [dependency]});
        find_wrong(&json!({"packages": [package]}))
    }

    #[test]
    fn an_arrow_up_is_found() {
        let up = find("lvm", &json!({"name": "lvmd", "path": "/crates/lvmd", "kind": null}));
        assert!(matches!(up.as_slice(), [line] if line.contains("lvm may not depend on lvmd")), "{up:?}");
        let testbed = json!({"name": "testbed", "path": "/tests/testbed", "kind": "build"});
        assert_eq!(find("lvmd", &testbed).len(), 1);
        assert_eq!(find("new", &json!({"name": "serde", "kind": null})).len(), 1);
    }

    #[test]
    fn arrows_down_tests_and_published_packages_are_allowed() {
        assert_eq!(find("lvmd", &json!({"name": "lvm", "path": "/crates/lvm", "kind": null})), [""; 0]);
        let testkit = json!({"name": "topolvm-testkit", "path": "/crates/topolvm-testkit", "kind": "dev"});
        assert_eq!(find("lvm", &testkit), [""; 0]);
        assert_eq!(find("lvm", &json!({"name": "tokio", "kind": null})), [""; 0]);
    }
}

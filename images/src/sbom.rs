//! The bill of materials as CycloneDX 1.5: components of the image with supplier, version and licence.
#![expect(clippy::indexing_slicing, reason = "reading a member that a JSON value lacks gives null")]

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// A component of the image: a Debian package or a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Component {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Licence as an SPDX expression; `None` where a file in the image has it (`/usr/share/doc/PACKAGE/copyright`).
    pub licence: Option<String>,
    /// Package URL.
    pub purl: String,
}

impl Component {
    /// Returns the component of a Debian package, given as `package=version`.
    pub(crate) fn debian(pin: &str, architecture: &str) -> Option<Self> {
        let (name, version) = pin.split_once('=')?;
        // A colon of the version has a meaning in a URL
        let escaped = version.replace(':', "%3A").replace('+', "%2B");
        let purl = format!("pkg:deb/debian/{name}@{escaped}?arch={architecture}&distro=debian-12");
        Some(Self { name: name.to_owned(), version: version.to_owned(), licence: None, purl })
    }

    /// Returns the component of a crate, from an entry of `packages` of `cargo metadata`.
    pub(crate) fn cargo(package: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        // An old form of "or"
        let licence = package["license"].as_str().map(|licence| licence.replace('/', " OR "));
        Self { purl: format!("pkg:cargo/{name}@{version}"), name, version, licence }
    }
}

/// Returns the crates that are linked into these programs, from the output of `cargo metadata`, without those of the
/// workspace.
pub fn cargo_components(metadata: &Value, programs: &[&str]) -> Result<Vec<Component>> {
    Ok(find_linked_packages(metadata, programs)?.iter().map(Component::cargo).collect())
}

/// Returns the entries of `packages` of crates that are linked, by name and version.
fn find_linked_packages(metadata: &Value, programs: &[&str]) -> Result<Vec<Value>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: HashMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let nodes: HashMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let is_program = |package: &Value| programs.iter().any(|program| package["name"] == **program);
    let mut waiting: Vec<String> =
        packages.iter().filter(|(_, package)| is_program(package)).map(|(id, _)| id.clone()).collect();
    let mut linked = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        let node = nodes.get(&id).context("cargo metadata names a package and not what it needs")?;
        if !linked.insert(id) {
            continue;
        }
        for dependency in list(&node["deps"]) {
            // A kind is "dev" or "build"; null is what is linked
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                waiting.push(text(&dependency["pkg"]));
            }
        }
    }
    let mut foreign: Vec<Value> = linked.iter().filter_map(|id| packages.get(id)).cloned().collect();
    foreign.retain(|package| !package["source"].is_null());
    foreign.sort_by_key(Component::cargo);
    Ok(foreign)
}

/// Returns the document. It has no time and no serial number, so that it is the same every time.
pub(crate) fn cyclonedx<'a>(version: &str, components: impl Iterator<Item = &'a Component>) -> Value {
    let components: Vec<_> = components
        .map(|component| {
            let mut entry = json!({
                "type": "library",
                "name": component.name,
                "version": component.version,
                "purl": component.purl,
                "bom-ref": component.purl,
            });
            if let Some(licence) = &component.licence {
                entry["licenses"] = json!([{ "expression": licence }]);
            }
            entry
        })
        .collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "container", "name": "topolvm", "version": version, "bom-ref": "topolvm",
            "licenses": [{ "expression": "Apache-2.0" }],
        }},
        "components": components,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sbom_lists_linked_crates_and_no_build_dependencies() {
        let package = |name: &str, source: Value| {
            let licence = "MIT/Apache-2.0";
            json!({ "id": name, "name": name, "version": "1.0.0", "license": licence, "source": source })
        };
        let needs = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("lvmd", Value::Null), package("a", json!("registry")), package("b", json!("registry")),
                         package("c", json!("registry"))],
            "resolve": { "nodes": [
                { "id": "lvmd", "deps": [needs("a", Value::Null), needs("b", json!("build"))] },
                { "id": "a", "deps": [needs("c", Value::Null)] },
                { "id": "b", "deps": [] },
                { "id": "c", "deps": [] },
            ]},
        });
        let components = cargo_components(&metadata, &["lvmd"]).unwrap();
        let names: Vec<_> = components.iter().map(|component| component.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(components[0].licence.as_deref(), Some("MIT OR Apache-2.0"));
    }

    #[test]
    fn a_debian_package_has_a_url() {
        let component = Component::debian("zlib1g=1:1.2.13.dfsg-1", "amd64").unwrap();
        assert_eq!(component.purl, "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64&distro=debian-12");
    }
}

//! Licence texts of linked crates, in one file beside the programs, as the licences demand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::sbom::Component;

/// Prefixes of the names of files with licences and notices, in capitals.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Returns the licences of crates that are linked into these programs, each `name version`, with the texts that their
/// authors ship, from the output of `cargo metadata` and the sources that it names. Those of the workspace are left
/// out.
pub fn notices(metadata: &Value, programs: &[&str], linked: &BTreeSet<String>) -> Result<String> {
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let foreign = packages.iter().filter(|package| !package["source"].is_null());
    let crates = foreign.map(|package| (Component::cargo(package), package));
    let crates: BTreeMap<_, _> =
        crates.filter(|(component, _)| linked.contains(&format!("{} {}", component.name, component.version))).collect();
    ensure!(!crates.is_empty(), "cargo metadata knows no crate of {}", programs.join(", "));
    let mut list = String::new();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (Component { name, version, licence, .. }, package) in crates {
        let manifest = package["manifest_path"].as_str().context("cargo metadata does not say where a crate is")?;
        let directory = Path::new(manifest).parent().context("a crate is in no directory")?;
        let found = licence_texts(directory)?;
        let licence = licence.unwrap_or_else(|| "see below".to_owned());
        let remark = if found.is_empty() { " (its package has no file with the text)" } else { "" };
        writeln!(list, "{name} {version}: {licence}{remark}")?;
        for text in found {
            texts.entry(text).or_default().insert(format!("{name} {version}"));
        }
    }
    let mut document = format!(
        "Software of others in {}\n\n{PREFACE}\n{list}\n\
         The Rust standard library: MIT OR Apache-2.0, the Rust project's contributors\n",
        programs.join(", ")
    );
    // Those that are in most crates first
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(one, ones), (other, others)| others.len().cmp(&ones.len()).then_with(|| one.cmp(other)));
    for (text, crates) in texts {
        let crates: Vec<_> = crates.into_iter().collect();
        write!(document, "\n{RULE}\n{}\n{RULE}\n\n{}\n", crates.join(", "), text.trim_end())?;
    }
    Ok(document)
}

const PREFACE: &str = "\
The programs are made of the crates in this list, each under the licence beside it. Where two licences are joined by
OR, either may be chosen. The texts that the authors ship stand below the list, each once, with the names of the crates
that have it.
";
const RULE: &str = "--------------------------------------------------------------------------------";

/// Reads the licences and notices in the files of a crate, without white space at the end of lines, so that the same
/// texts are equal.
fn licence_texts(directory: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let path = entry.with_context(|| format!("list {}", directory.display()))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        if path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes).lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
            texts.push(text.trim_matches('\n').to_owned());
        }
    }
    texts.sort();
    texts.dedup();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_text_is_there_once_with_the_crates_that_have_it() {
        let directory = std::env::temp_dir().join(format!("notices-{}", std::process::id()));
        let package = |name: &str, files: &[(&str, &str)]| {
            let sources = directory.join(name);
            fs::create_dir_all(&sources).unwrap();
            for (file, text) in files {
                fs::write(sources.join(file), text).unwrap();
            }
            let source = if name == "lvmd" { Value::Null } else { json!("registry") };
            json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                    "manifest_path": sources.join("Cargo.toml") })
        };
        let packages = [
            package("lvmd", &[("LICENSE", "our own")]),
            package("a", &[("LICENSE-MIT", "may be used \n"), ("README", "no licence")]),
            package("b", &[("license.txt", "may be used"), ("NOTICE", "by B")]),
            package("c", &[]),
            package("d", &[("LICENSE", "of another version")]),
        ];
        let linked = ["lvmd 1.0.0", "a 1.0.0", "b 1.0.0", "c 1.0.0", "d 2.0.0"].map(str::to_owned).into();
        let text = notices(&json!({ "packages": packages }), &["lvmd"], &linked).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(text.matches("may be used").count(), 1, "{text}");
        assert!(
            text.contains("\na 1.0.0, b 1.0.0\n") && text.contains("\nb 1.0.0\n") && text.contains("by B"),
            "{text}"
        );
        assert!(text.contains("c 1.0.0: MIT (its package has no file"), "{text}");
        assert!(!text.contains("our own") && !text.contains("of another version"), "{text}");
    }

    #[test]
    fn an_unknown_program_is_a_mistake() {
        assert!(notices(&json!({ "packages": [] }), &["lvmd"], &BTreeSet::new()).is_err());
    }
}

//! The manifest by which krew, the plugin manager of kubectl, installs the plugin from a release.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};

use crate::dist::{PLUGIN, VERSION};
use crate::tools;

/// The architectures of krew, which are Go's.
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// Options of the manifest for krew: the archives, and the address from which people download them.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The directory with the archives of `make dist`, of one architecture or of all; krew.yaml is written there.
    directory: PathBuf,
    /// The address below which the release's files can be downloaded.
    #[arg(long)]
    url: String,
    /// The address of the project's page.
    #[arg(long)]
    homepage: String,
}

/// Writes `krew.yaml` with a platform for each archive of the plugin.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let template = tools::repository().join("crates/kubectl-topolvm/krew.yaml");
    let template = fs::read_to_string(&template).with_context(|| format!("read {}", template.display()))?;
    let manifest = manifest(&template, options)?;
    let path = options.directory.join("krew.yaml");
    fs::write(&path, manifest).with_context(|| format!("write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

fn manifest(template: &str, options: &Options) -> anyhow::Result<String> {
    let top: Vec<_> = template.lines().filter(|line| !line.starts_with('#')).collect();
    let mut manifest = top.join("\n").replace("VERSION", VERSION).replace("HOMEPAGE", &options.homepage) + "\n";
    let platforms = ARCHITECTURES.map(|architecture| platform(&options.directory, &options.url, architecture));
    let platforms: Vec<_> = platforms.into_iter().filter_map(Result::transpose).collect::<anyhow::Result<_>>()?;
    ensure!(
        !platforms.is_empty(),
        "{} has no archive of {PLUGIN} {VERSION}: run make dist",
        options.directory.display()
    );
    manifest.extend(platforms);
    Ok(manifest)
}

/// Returns the entry of an architecture, or nothing where the release has no archive for it.
fn platform(directory: &Path, url: &str, architecture: &str) -> anyhow::Result<Option<String>> {
    let name = format!("{PLUGIN}-{VERSION}-{architecture}.tar.gz");
    let path = directory.join(&name);
    if !path.exists() {
        return Ok(None);
    }
    let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let url = url.trim_end_matches('/');
    Ok(Some(format!(
        "  - selector:\n      matchLabels: {{os: linux, arch: {architecture}}}\n    uri: {url}/{name}\n    \
         sha256: {:x}\n    files:\n    - {{from: {PLUGIN}, to: .}}\n    - {{from: LICENSE, to: .}}\n    \
         bin: {PLUGIN}\n",
        Sha256::digest(content)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_has_a_platform_for_each_archive_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            directory: directory.path().into(),
            url: "https://example.com/download/".into(),
            homepage: "https://example.com".into(),
        };
        let template = fs::read_to_string(tools::repository().join("crates/kubectl-topolvm/krew.yaml")).unwrap();
        assert!(manifest(&template, &options).unwrap_err().to_string().contains("make dist"));

        fs::write(directory.path().join(format!("{PLUGIN}-{VERSION}-arm64.tar.gz")), "archive").unwrap();
        let text = manifest(&template, &options).unwrap();
        let manifest: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"), "{text}");
        assert_eq!(manifest["spec"]["homepage"], "https://example.com");
        let platforms = manifest["spec"]["platforms"].as_array().unwrap();
        assert_eq!(platforms.len(), 1, "{text}");
        assert_eq!(platforms[0]["selector"]["matchLabels"]["arch"], "arm64");
        assert_eq!(platforms[0]["uri"], format!("https://example.com/download/{PLUGIN}-{VERSION}-arm64.tar.gz"));
        assert_eq!(platforms[0]["sha256"], format!("{:x}", Sha256::digest("archive")));
        assert_eq!(platforms[0]["files"][0]["from"], PLUGIN);
    }
}

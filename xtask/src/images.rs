//! The container image of the product and what is said about it: archive, bill of materials, contents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use images::{PROGRAMS, Product};

use crate::tools::{cargo, repository};

/// What to build, from which programs, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The directory with the programs; `make build` puts them into target/release.
    #[arg(long, value_name = "DIR", default_value = "target/release")]
    programs: PathBuf,
    /// The directory for the archive and its papers.
    #[arg(long, value_name = "DIR", default_value = "target/images")]
    output: PathBuf,
    /// The tag of the image.
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// Build nothing; pin the packages that Debian has now, in images/debian-packages.
    #[arg(long)]
    newest: bool,
}

/// Builds the image, or pins other packages for it.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if options.newest {
        let path = repository().join("images/debian-packages");
        return fs::write(&path, images::newest_packages()?).with_context(|| format!("write {}", path.display()));
    }
    let product = Product::build(&options.programs, &options.tag)?;
    let crates = images::cargo_components(&metadata()?, &PROGRAMS)?;
    fs::create_dir_all(&options.output).with_context(|| format!("create {}", options.output.display()))?;
    let base = options.output.join(format!("topolvm-{}-{}", options.tag, product.architecture));
    let file = |ending: &str| PathBuf::from(format!("{}.{ending}", base.display()));
    let write = |path: &Path, text: String| fs::write(path, text).with_context(|| format!("write {}", path.display()));
    let archive = file("oci.tar");
    testbed::image::write_archive(&archive, std::slice::from_ref(&product.image))?;
    let sbom = serde_json::to_string_pretty(&product.sbom(&options.tag, &crates))?;
    write(&file("cdx.json"), sbom + "\n")?;
    let mut contents = product.contents;
    contents.sort_by_key(|(path, size)| (std::cmp::Reverse(*size), path.clone()));
    let total: usize = contents.iter().map(|(_, size)| size).sum();
    let lines: Vec<String> = contents.iter().map(|(path, size)| format!("{size:>9} /{path}")).collect();
    write(&file("contents.txt"), lines.join("\n") + "\n")?;
    println!("{}: {}:{}, {} files, {total} bytes", archive.display(), images::NAME, options.tag, contents.len());
    Ok(())
}

/// What cargo knows of the crates that are built for this machine.
fn metadata() -> anyhow::Result<serde_json::Value> {
    let host = cargo(&["-vV"]).output().context("run cargo")?;
    let host = String::from_utf8(host.stdout)?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo does not say its host")?;
    let output = cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", host]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

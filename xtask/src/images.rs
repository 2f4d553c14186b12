//! The container image of the product and what is said about it: archive, bill of materials, contents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use images::{PROGRAMS, Product};
use testbed::image::Compression;

use crate::notices;
use crate::tools::{self, repository};

/// Flags of `cargo xtask images`.
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
    build(&options.programs, &options.output, &options.tag)
}

/// Builds the image of programs, and writes the archive and its papers.
pub(crate) fn build(programs: &Path, output: &Path, tag: &str) -> anyhow::Result<()> {
    let mut product = Product::build(programs, tag)?;
    let target = target(product.architecture);
    let licence = fs::read_to_string(repository().join("LICENSE")).context("read LICENSE")?;
    let notices = notices::collect(&PROGRAMS, target)?;
    let documents =
        [("usr/share/doc/topolvm/LICENSE", licence.as_str()), ("usr/share/doc/topolvm/THIRD-PARTY-NOTICES", &notices)];
    product.add_documents(&documents)?;
    let crates = images::cargo_components(&tools::metadata(target)?, &PROGRAMS)?;
    fs::create_dir_all(output).with_context(|| format!("create {}", output.display()))?;
    let base = output.join(format!("topolvm-{tag}-{}", product.architecture));
    let file = |ending: &str| PathBuf::from(format!("{}.{ending}", base.display()));
    let write = |path: &Path, text: String| fs::write(path, text).with_context(|| format!("write {}", path.display()));
    let archive = file("oci.tar");
    testbed::image::write_archive(&archive, std::slice::from_ref(&product.image), Compression::Gzip)?;
    let sbom = serde_json::to_string_pretty(&product.sbom(tag, &crates))?;
    write(&file("cdx.json"), sbom + "\n")?;
    let mut contents = product.contents;
    contents.sort_by_key(|(path, size)| (std::cmp::Reverse(*size), path.clone()));
    let total: usize = contents.iter().map(|(_, size)| size).sum();
    let lines: Vec<String> = contents.iter().map(|(path, size)| format!("{size:>9} /{path}")).collect();
    write(&file("contents.txt"), lines.join("\n") + "\n")?;
    println!("{}: {}:{tag}, {} files, {total} bytes", archive.display(), images::NAME, contents.len());
    Ok(())
}

/// Returns Rust's target of an image's architecture.
fn target(architecture: &str) -> &'static str {
    if architecture == "arm64" { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" }
}

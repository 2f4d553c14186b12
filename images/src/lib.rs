//! The container image of the product, put together without a container engine and without root: the four programs, and
//! of Debian's pinned packages the tools that they start with the libraries that these need. The same programs make the
//! same bytes.
//!
//! It is one image, as upstream's is: a node needs the agent, lvmd and the tools anyway, and fetches them once.

mod debian;
mod elf;
mod notices;
mod sbom;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::image::{Files, Image};

pub use debian::{ARCHITECTURES, newest_packages, packages, programs};
pub use notices::notices;
pub use sbom::{Component, cargo_components};

use elf::Elf;

/// Name of the image without a registry.
pub const NAME: &str = "localhost/topolvm";
/// The programs, each at the top of the image under upstream's name.
pub const PROGRAMS: [&str; 4] = ["lvmd", "topolvm-controller", "topolvm-node", "topolvm-scheduler"];
/// Search path of containers.
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// The image, its contents and its packages.
#[derive(Debug)]
pub struct Product {
    /// The image: a layer of Debian's files, and one of the programs above it.
    pub image: Image,
    /// Architecture: `amd64` or `arm64`.
    pub architecture: &'static str,
    /// Path and size in bytes of every file.
    pub contents: Vec<(String, usize)>,
    /// Debian's packages that files are from.
    pub packages: Vec<Component>,
}

impl Product {
    /// Builds the image of the programs in a directory.
    pub fn build(programs: &Path, tag: &str) -> Result<Self> {
        let architecture = architecture(programs)?;
        let packages = packages(architecture);
        let names: Vec<&str> = packages.iter().map(String::as_str).collect();
        let root = testbed::assets::unpacked(architecture, &names)
            .context("cannot get the pinned packages; `cargo xtask images --newest` pins those that Debian has now")?;
        let mut tools = debian::tools(&root, &packages)?;
        let mut own = Files::default();
        for name in PROGRAMS {
            let program = programs.join(name);
            let elf = Elf::read(&program).context("build the programs first")?;
            ensure!(elf.architecture == architecture, "{name} is for {}, others for {architecture}", elf.architecture);
            own.add(&program, name)?;
            debian::add_libraries(&mut tools, &root, &elf)?;
        }
        let name = format!("{NAME}:{tag}");
        let contents = tools.sizes().chain(own.sizes()).map(|(path, size)| (path.to_owned(), size)).collect();
        let image = Image::new(&name, architecture, config(tag), vec![tools.layer()?, own.layer()?]);
        let packages = packages.iter().filter_map(|package| Component::debian(package, architecture)).collect();
        Ok(Self { image, architecture, contents, packages })
    }

    /// Adds texts, by path: licences.
    pub fn add_documents(&mut self, documents: &[(&str, &str)]) -> Result<()> {
        let mut files = Files::default();
        for (path, text) in documents {
            files.text(path, text);
        }
        self.contents.extend(files.sizes().map(|(path, size)| (path.to_owned(), size)));
        self.image.add_layer(files.layer()?);
        Ok(())
    }

    /// Returns the bill of materials in CycloneDX's JSON.
    pub fn sbom(&self, version: &str, crates: &[Component]) -> Value {
        sbom::cyclonedx(version, self.packages.iter().chain(crates))
    }
}

/// Returns the architecture that the programs in a directory are for: `amd64` or `arm64`.
pub fn architecture(programs: &Path) -> Result<&'static str> {
    Ok(Elf::read(&programs.join(PROGRAMS[0])).context("build the programs first")?.architecture)
}

/// Returns the default configuration of containers. There is no entry point: pods name the program.
fn config(version: &str) -> Value {
    json!({
        "Env": [PATH],
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": "topolvm",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    })
}

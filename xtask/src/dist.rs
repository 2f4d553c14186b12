//! A release: what people download, with checksums. The same tree with the same programs makes the same files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::CommandFactory as _;
use clap_complete::Shell;
use images::PROGRAMS;
use sha2::{Digest as _, Sha256};
use testbed::assets;

use crate::archive::Archive;
use crate::{deb, images as image, notices, tools};

/// The version of everything in a release.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The name of the kubectl plugin's program and archives.
pub(crate) const PLUGIN: &str = "kubectl-topolvm";
const CHECKSUMS: &str = "SHA256SUMS";

/// Flags of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The programs of the tests instead of those of `make build`, in target/dist-test.
    #[arg(long)]
    debug: bool,
    /// Leave out what is the same for every architecture: chart and manifests.
    #[arg(long)]
    programs_only: bool,
}

/// Makes all files of a release of programs that are built already.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (program, name) =
        if options.debug { (deb::Program::Debug, "dist-test") } else { (deb::Program::Release, "dist") };
    let target = tools::target_directory()?;
    let programs = target.join(program.profile());
    let architecture = images::architecture(&programs)?;
    let output = target.join(name);
    if output.exists() {
        fs::remove_dir_all(&output).with_context(|| format!("remove {}", output.display()))?;
    }
    fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;

    image::build(&programs, &output, VERSION)?;
    deb::package(program)?;
    let package = format!("lvmd_{VERSION}-1_{architecture}.deb");
    copy(&target.join(program.output()).join(&package), &output.join(package))?;
    let of = |what: &str| output.join(format!("{what}-{VERSION}-{architecture}.tar.gz"));
    pack_programs(&programs, &of("topolvm"))?;
    pack_plugin(&directory_of_plugin(program, &target), &of(PLUGIN))?;
    if !options.programs_only {
        render_manifests(&output)?;
        pack_chart(&tools::repository().join("charts/topolvm"), &output)?;
    }
    write_checksums(&output)?;
    println!("{}", output.display());
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).map(drop).with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// The programs with their licences and lvmd's unit, for those who run neither pods nor Debian.
fn pack_programs(programs: &Path, path: &Path) -> anyhow::Result<()> {
    let top = format!("topolvm-{VERSION}");
    let mut archive = Archive::new(tools::source_date_epoch()?)?;
    for program in PROGRAMS {
        archive.add_file(&programs.join(program), &format!("{top}/{program}"))?;
    }
    for file in ["CHANGELOG.md", "systemd/lvmd.service", "deploy/lvmd-config/lvmd.yaml"] {
        let name = file.rsplit('/').next().unwrap_or(file);
        archive.add_file(&tools::repository().join(file), &format!("{top}/{name}"))?;
    }
    add_licences(&mut archive, &top, &PROGRAMS)?;
    archive.write(path)
}

/// Returns where the plugin is: of a release the static one of `make plugin`.
fn directory_of_plugin(program: deb::Program, target: &Path) -> PathBuf {
    match program {
        deb::Program::Release => {
            target.join(format!("{}-unknown-linux-musl", std::env::consts::ARCH)).join(program.profile())
        }
        deb::Program::Debug => target.join(program.profile()),
    }
}

/// The plugin as krew takes it, with manual pages and completions.
fn pack_plugin(directory: &Path, path: &Path) -> anyhow::Result<()> {
    let mut archive = Archive::new(tools::source_date_epoch()?)?;
    archive.add_file(&directory.join(PLUGIN), PLUGIN)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut kubectl_topolvm::Args::command(), PLUGIN, &mut script);
        archive.add(&format!("completions/{PLUGIN}.{shell}"), script);
    }
    let pages = tools::target_directory()?.join("dist-pages");
    fs::create_dir_all(&pages).with_context(|| format!("create {}", pages.display()))?;
    clap_mangen::generate_to(kubectl_topolvm::Args::command(), &pages).context("write the manual pages")?;
    archive.add_tree(&pages, "man", &[])?;
    fs::remove_dir_all(&pages).with_context(|| format!("remove {}", pages.display()))?;
    add_licences(&mut archive, ".", &[PLUGIN])?;
    archive.write(path)
}

fn add_licences(archive: &mut Archive, top: &str, programs: &[&str]) -> anyhow::Result<()> {
    let path = |name: &str| format!("{top}/{name}").trim_start_matches("./").to_owned();
    archive.add_file(&tools::repository().join("LICENSE"), &path("LICENSE"))?;
    archive.add(&path("THIRD-PARTY-NOTICES"), notices::collect(programs, &tools::host()?)?);
    Ok(())
}

/// Each overlay as a file for `kubectl apply --server-side -f`, and the StorageClass, by the kubectl whose version the
/// test bed pins.
fn render_manifests(output: &Path) -> anyhow::Result<()> {
    let kubectl = assets::kubernetes_tools()?.bin.join("kubectl");
    let manifests = tools::repository().join("deploy/manifests");
    for entry in fs::read_dir(manifests.join("overlays")).context("list the overlays")? {
        let overlay = entry.context("list the overlays")?;
        let rendered = Command::new(&kubectl).arg("kustomize").arg(overlay.path()).output().context("run kubectl")?;
        let name = overlay.file_name().to_string_lossy().into_owned();
        ensure!(rendered.status.success(), "overlay {name}: {}", String::from_utf8_lossy(&rendered.stderr));
        let file = output.join(format!("topolvm-{name}.yaml"));
        fs::write(&file, rendered.stdout).with_context(|| format!("write {}", file.display()))?;
    }
    copy(&manifests.join("base/storageclass.yaml"), &output.join("topolvm-storageclass.yaml"))
}

/// The chart as `helm package` writes it: below a directory with its name, in an archive with its name and version.
fn pack_chart(chart: &Path, output: &Path) -> anyhow::Result<PathBuf> {
    let file = chart.join("Chart.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let description: serde_json::Value =
        serde_saphyr::from_str(&text).with_context(|| format!("{}", file.display()))?;
    let value = |name: &str| {
        let value = description.get(name).and_then(serde_json::Value::as_str);
        value.with_context(|| format!("{} does not say the {name} of the chart", file.display()))
    };
    let (name, version) = (value("name")?, value("version")?);
    let mut archive = Archive::new(tools::source_date_epoch()?)?;
    let ignore = fs::read_to_string(chart.join(".helmignore")).unwrap_or_default();
    let left_out: Vec<&str> = ignore.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    archive.add_tree(chart, name, &left_out)?;
    let path = output.join(format!("{name}-{version}.tgz"));
    archive.write(&path)?;
    Ok(path)
}

/// Writes the file for `sha256sum --check`, with all files of a directory.
fn write_checksums(directory: &Path) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))? {
        let path = entry.with_context(|| format!("list {}", directory.display()))?.path();
        let name = path.file_name().context("a file without a name")?.to_string_lossy().into_owned();
        let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        lines.push((name, format!("{:x}", Sha256::digest(content))));
    }
    lines.sort();
    let lines: Vec<_> = lines.into_iter().map(|(name, hash)| format!("{hash}  {name}")).collect();
    fs::write(directory.join(CHECKSUMS), lines.join("\n") + "\n").with_context(|| format!("write {CHECKSUMS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_packed_under_its_name_and_version() {
        let directory = tempfile::tempdir().unwrap();
        let chart = directory.path().join("chart");
        fs::create_dir_all(chart.join("templates")).unwrap();
        fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: topolvm\nversion: 1.2.3\n").unwrap();
        fs::write(chart.join("templates/node.yaml"), "kind: DaemonSet\n").unwrap();
        fs::write(chart.join(".helmignore"), "# For tests\nci/\n").unwrap();
        fs::create_dir(chart.join("ci")).unwrap();
        fs::write(chart.join("ci/values.yaml"), "").unwrap();
        let path = pack_chart(&chart, directory.path()).unwrap();
        assert!(path.ends_with("topolvm-1.2.3.tgz"), "{}", path.display());
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(path).unwrap()));
        let paths: Vec<_> =
            archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
        assert_eq!(paths, ["topolvm/Chart.yaml", "topolvm/templates/node.yaml"].map(PathBuf::from));
        assert!(pack_chart(&directory.path().join("none"), directory.path()).is_err());
    }

    #[test]
    fn checksums_are_those_of_sha256sum() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [("b", "two\n"), ("a", "one\n")] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        write_checksums(directory.path()).unwrap();
        let check = Command::new("sha256sum").args(["--check", CHECKSUMS]).current_dir(directory.path()).output();
        let said = String::from_utf8(check.unwrap().stdout).unwrap();
        assert_eq!(said, "a: OK\nb: OK\n");
    }
}

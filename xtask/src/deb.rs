//! The Debian package of lvmd, written by cargo-deb from `[package.metadata.deb]` in crates/lvmd/Cargo.toml and what is
//! made here.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::CommandFactory as _;

use crate::{notices, tools};

/// Path of lvmd when an administrator installs it by hand, as TopoLVM has it.
const PROGRAM_BY_HAND: &str = "/opt/sbin/lvmd";
const PROGRAM: &str = "/usr/sbin/lvmd";

/// Build of lvmd to package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// That of `make lvmd`, for target/debian.
    Release,
    /// That of the tests, in two revisions, so that one can be upgraded to the other, for target/debian-test.
    Debug,
}

impl Program {
    /// The directory in the target directory with the programs.
    pub(crate) fn profile(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Debug => "debug",
        }
    }

    /// The directory in the target directory for packages.
    pub(crate) fn output(self) -> &'static str {
        match self {
            Self::Release => "debian",
            Self::Debug => "debian-test",
        }
    }

    fn revisions(self) -> &'static [&'static str] {
        match self {
            Self::Release => &["1"],
            Self::Debug => &["1", "2"],
        }
    }
}

/// Packages an lvmd that is built already.
pub(crate) fn package(program: Program) -> anyhow::Result<()> {
    let cargo_deb = tools::cargo_deb()?;
    let target = tools::target_directory()?;
    let built = target.join(program.profile()).join("lvmd");
    ensure!(built.is_file(), "there is no {}: `make deb` builds it", built.display());
    // What cargo-deb takes for the target directory: it looks for everything that is made in its `release`
    let files = target.join("debian-files").join(program.profile());
    let made = files.join("release");
    fs::create_dir_all(&made).with_context(|| format!("create {}", made.display()))?;
    let write = |name: &str, text: &[u8]| {
        fs::write(made.join(name), text).with_context(|| format!("write {}", made.join(name).display()))
    };
    fs::copy(&built, made.join("lvmd")).with_context(|| format!("copy {}", built.display()))?;
    write("lvmd.service", render_unit()?.as_bytes())?;
    write("lvmd.8", &render_manual()?)?;
    gzip(&made.join("lvmd.8"))?;
    let pages = ["docs/lvmd.md", "docs/lvmd-config.md", "docs/lvmd-api.md"];
    write("lvmd.md", &pages.into_iter().map(read).collect::<anyhow::Result<Vec<_>>>()?.concat())?;
    gzip(&made.join("lvmd.md"))?;
    let notices = notices::collect(&["lvmd"], &tools::host()?)?;
    write("THIRD-PARTY-NOTICES", notices.as_bytes())?;
    gzip(&made.join("THIRD-PARTY-NOTICES"))?;

    let epoch = tools::source_date_epoch()?;
    let output = target.join(program.output());
    for revision in program.revisions() {
        write("changelog.Debian", render_changelog(revision, epoch)?.as_bytes())?;
        gzip(&made.join("changelog.Debian"))?;
        let mut command = Command::new(&cargo_deb);
        command.current_dir(tools::repository()).env("CARGO_TARGET_DIR", &files);
        command.env("SOURCE_DATE_EPOCH", epoch.to_string());
        command.args(["deb", "--package", "lvmd", "--locked", "--no-build", "--strip", "--quiet"]);
        command.args(["--deb-revision", revision]).arg("--output").arg(&output);
        if program == Program::Debug {
            command.arg("--fast");
        }
        fs::create_dir_all(&output).with_context(|| format!("create {}", output.display()))?;
        tools::run(&mut command)?;
    }
    Ok(())
}

fn read(name: &str) -> anyhow::Result<Vec<u8>> {
    fs::read(tools::repository().join(name)).with_context(|| format!("read {name}"))
}

/// The unit for where the package has the program.
fn render_unit() -> anyhow::Result<String> {
    let unit = String::from_utf8(read("systemd/lvmd.service")?).context("lvmd.service")?;
    ensure!(unit.contains(PROGRAM_BY_HAND), "systemd/lvmd.service no longer starts {PROGRAM_BY_HAND}");
    let unit = unit.replace(PROGRAM_BY_HAND, PROGRAM);
    Ok(unit.replace("[Unit]\n", "[Unit]\nDocumentation=man:lvmd(8) file:///usr/share/doc/lvmd/lvmd.md.gz\n"))
}

/// lvmd(8): what clap knows of the flags, and what it does not.
fn render_manual() -> anyhow::Result<Vec<u8>> {
    let program = lvmd::Args::command().disable_help_subcommand(true);
    let page = clap_mangen::Man::new(program).section("8").manual("System administration");
    let mut text = Vec::new();
    page.render(&mut text).context("write the manual page")?;
    let more = [
        ".SH FILES",
        ".TP",
        ".I /etc/topolvm/lvmd.yaml",
        "The configuration. Without a device class lvmd does not start.",
        ".TP",
        ".I /run/topolvm/lvmd.sock",
        "The socket for topolvm\\-node.",
        ".TP",
        ".I /usr/share/doc/lvmd/lvmd.md.gz",
        "All keys of the configuration, what lvmd guarantees, its metrics and errors.",
        ".SH EXIT STATUS",
        "0 after SIGTERM or SIGINT, 64 for bad flags or a bad configuration, 1 when it cannot start or go on.",
        ".SH SEE ALSO",
        ".BR lvm (8),",
        ".BR systemctl (1)",
    ];
    text.extend_from_slice(more.join("\n").as_bytes());
    text.push(b'\n');
    Ok(text)
}

/// The changelog of the packaging, which points at that of the program.
fn render_changelog(revision: &str, epoch: i64) -> anyhow::Result<String> {
    let manifest = fs::read_to_string(tools::repository().join("crates/lvmd/Cargo.toml")).context("read Cargo.toml")?;
    let maintainer = manifest.lines().find_map(|line| line.strip_prefix("maintainer = \"")?.strip_suffix('"'));
    let maintainer = maintainer.context("crates/lvmd/Cargo.toml names no maintainer of the package")?;
    let time = jiff::Timestamp::from_second(epoch).context("SOURCE_DATE_EPOCH")?.to_zoned(jiff::tz::TimeZone::UTC);
    let time = jiff::fmt::rfc2822::to_string(&time).context("SOURCE_DATE_EPOCH")?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!(
        "lvmd ({version}-{revision}) unstable; urgency=medium\n\n  \
         * lvmd {version}: see changelog.gz.\n\n -- {maintainer}  {time}\n"
    ))
}

/// Compresses a file as Debian's policy wants it: as small as can be, without name and time.
fn gzip(file: &Path) -> anyhow::Result<()> {
    tools::run(Command::new("gzip").arg("-9nf").arg(file))
}

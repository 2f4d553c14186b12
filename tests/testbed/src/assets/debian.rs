//! Debian's packages: installed when the machine lacks one, or unpacked from a newer suite without installation.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::progress;
use crate::cache::Cache;
use crate::machine::find_program;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Suite for a machine that is no Debian.
const OLDEST_SUITE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org/debian";

/// A mirror may fail for a moment.
const RETRIES: &str = "Acquire::Retries=5";

/// Suites without security updates.
const DEVELOPED: [&str; 2] = ["forky", "sid"];

/// Installs the packages of missing programs, given as (program, package).
pub(super) fn install_missing(cache: &Cache, wanted: &[(&str, &str)]) -> Result<()> {
    let missing = || -> Vec<&str> {
        wanted.iter().filter(|(program, _)| find_program(program).is_none()).map(|(_, package)| *package).collect()
    };
    if missing().is_empty() {
        return Ok(());
    }
    let lock = fs::File::create(cache.root().join(".apt.lock")).context("create a lock file in the cache")?;
    lock.lock().context("wait for another run that is installing packages")?;
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    let install = |what: &str| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "--no-install-recommends", "-o", RETRIES])
            .args(&packages);
        progress::run(&format!("{what} {}", packages.join(", ")), &mut command)
    };
    if install("installing").is_err() {
        // Perhaps the lists are old or were never fetched.
        progress::run("fetching package lists", Command::new("apt-get").args(["update", "-o", RETRIES]))?;
        install("installing, with new lists,")?;
    }
    let still = missing();
    if still.is_empty() { Ok(()) } else { bail!("installed {}, but its programs are not there", still.join(", ")) }
}

/// Unpacks packages for the architecture of User-Mode Linux: [`unpack_for`].
pub(super) fn unpack(directory: &Path, suite: &str, packages: &[&str]) -> Result<()> {
    unpack_for("amd64", directory, suite, packages)
}

/// Unpacks packages, with a version (`package=version`) or without, of a suite and an architecture, which need not be
/// the machine's, into `directory`; installs nothing. The file `packages` there lists them with their versions.
pub(super) fn unpack_for(architecture: &str, directory: &Path, suite: &str, packages: &[&str]) -> Result<()> {
    if !Path::new(KEYRING).exists() {
        bail!("{KEYRING} is missing: install debian-archive-keyring, which proves that packages are Debian's");
    }
    let work = directory.join("apt");
    configure_apt(&work, architecture, suite)?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("APT_CONFIG", work.join("apt.conf")).current_dir(work.join("debs")).args(["-o", RETRIES]);
        command.args(arguments);
        command
    };
    progress::run(&format!("fetching Debian {suite}'s package lists"), &mut apt(&["update", "-qq"]))?;
    progress::run(&format!("fetching {}", packages.join(", ")), apt(&["download", "-qq"]).args(packages))?;
    let versions = unpack_all(&work.join("debs"), directory)?;
    if versions.len() != packages.len() {
        bail!("wanted {}, got {}", packages.join(", "), versions.join(", "));
    }
    fs::write(directory.join("packages"), versions.join("\n") + "\n").context("write down the versions")?;
    crate::cache::remove(&work)
}

/// Writes a configuration of apt with separate lists, sources and caches: neither the machine's lists nor its installed
/// packages count.
fn configure_apt(work: &Path, architecture: &str, suite: &str) -> Result<()> {
    for part in ["lists/partial", "cache/archives/partial", "debs"] {
        fs::create_dir_all(work.join(part)).with_context(|| format!("create {}", work.join(part).display()))?;
    }
    let write =
        |name: &str, text: String| fs::write(work.join(name), text).with_context(|| format!("write {name} for apt"));
    write("status", String::new())?;
    let mirror = mirror();
    let source = |mirror: &str, suite: &str| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
    let mut sources = source(&mirror, suite);
    if !DEVELOPED.contains(&suite) {
        sources += &source(&format!("{mirror}-security"), &format!("{suite}-security"));
    }
    write("sources.list", sources)?;
    let at = work.display();
    write(
        "apt.conf",
        format!(
            "Dir::Etc::sourcelist \"{at}/sources.list\";\nDir::Etc::sourceparts \"-\";\n\
             Dir::State::lists \"{at}/lists\";\nDir::State::status \"{at}/status\";\n\
             Dir::Cache \"{at}/cache\";\nAPT::Sandbox::User \"root\";\n\
             APT::Architecture \"{architecture}\";\nAPT::Architectures {{\"{architecture}\";}};\n"
        ),
    )
}

/// Unpacks all packages in a directory, and returns their file names, sorted, which have their versions.
fn unpack_all(debs: &Path, to: &Path) -> Result<Vec<String>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(debs).context("list the packages")? {
        let file = entry.context("list the packages")?;
        let output = Command::new("dpkg-deb").arg("-x").arg(file.path()).arg(to).output().context("run dpkg-deb")?;
        if !output.status.success() {
            bail!("unpack {}: {}", file.path().display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        versions.push(file.file_name().to_string_lossy().into_owned());
    }
    versions.sort();
    Ok(versions)
}

/// Returns the suite whose programs run with the machine's libraries.
pub(super) fn suite_of_machine() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    Ok(suite_of(&release).unwrap_or(OLDEST_SUITE).to_owned())
}

fn suite_of(release: &str) -> Option<&str> {
    let value = |name: &str| release.lines().find_map(|line| line.strip_prefix(name));
    (value("ID=") == Some("debian")).then(|| value("VERSION_CODENAME=")).flatten()
}

/// Moves `/bin`, `/lib` and `/sbin` of unpacked packages below `/usr`, where links lead in an installed system.
pub(super) fn merge_usr(directory: &Path) -> Result<()> {
    for name in ["bin", "lib", "sbin"] {
        let from = directory.join(name);
        if from.is_dir() {
            merge(&from, &directory.join("usr").join(name))
                .with_context(|| format!("move {} below usr", from.display()))?;
        }
    }
    Ok(())
}

fn merge(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let place = to.join(entry.file_name());
        if entry.file_type()?.is_dir() { merge(&entry.path(), &place)? } else { fs::rename(entry.path(), place)? }
    }
    fs::remove_dir(from)
}

/// Returns the machine's own mirror when it is a Debian, which may be near or the only one that can be reached.
fn mirror() -> String {
    let sources = fs::read_to_string("/etc/apt/sources.list.d/debian.sources").unwrap_or_default();
    mirror_of(&sources).unwrap_or(MIRROR).to_owned()
}

fn mirror_of(sources: &str) -> Option<&str> {
    let uris = sources.lines().find_map(|line| line.strip_prefix("URIs:"))?;
    uris.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mirror_of_a_sources_file_is_taken() {
        let sources =
            "Types: deb\n# comment\nURIs: http://mirror.example/debian http://other.example/debian\nSuites: bookworm\n";
        assert_eq!(mirror_of(sources), Some("http://mirror.example/debian"));
        assert_eq!(mirror_of("Types: deb\n"), None);
    }

    #[test]
    fn the_suite_is_that_of_a_debian_and_of_nothing_else() {
        assert_eq!(suite_of("ID=debian\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(suite_of("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"), None);
    }

    #[test]
    fn files_of_packages_are_where_an_installed_system_has_them() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [("lib/systemd/a", "a"), ("usr/lib/systemd/b", "b"), ("usr/bin/c", "c")] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        merge_usr(root.path()).unwrap();
        let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
        assert_eq!([read("usr/lib/systemd/a"), read("usr/lib/systemd/b"), read("usr/bin/c")], ["a", "b", "c"]);
        assert!(!root.path().join("lib").exists());
    }
}

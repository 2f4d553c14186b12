//! The files of Debian's packages that the image needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use testbed::image::Files;

use crate::elf::Elf;

/// The pinned packages, one `package=version` a line.
const PACKAGES: &str = include_str!("../debian-packages");
/// Tools that the programs start: LVM and what LVM starts, mkfs and its like, and a shell, in which lvmd starts LVM.
/// Those at the end are for a person who repairs a volume from a container.
const TOOLS: &[&str] = &[
    "lvm",
    "dmsetup",
    "pdata_tools",
    "thin_check",
    "thin_dump",
    "thin_ls",
    "thin_repair",
    "nsenter",
    "sh", //
    "mke2fs",
    "mkfs.ext2",
    "mkfs.ext3",
    "mkfs.ext4",
    "e2fsck",
    "resize2fs", //
    "mkfs.xfs",
    "xfs_growfs",
    "mkfs.btrfs",
    "btrfs",
    "btrfstune",
    "blkid",
    "wipefs",
    "fstrim",
    "fsfreeze", //
    "fsck.ext4",
    "tune2fs",
    "dumpe2fs",
    "xfs_repair",
];
/// Commands of LVM that people run in a container, to look at the LVM of its node.
const LVM_COMMANDS: [&str; 6] = ["lvdisplay", "lvs", "pvdisplay", "pvs", "vgdisplay", "vgs"];
/// The script that each of them is.
const LVM_OF_HOST: &str = include_str!("../lvm-of-host");
/// Configuration of these tools.
const CONFIGURATION: &[&str] = &["etc/mke2fs.conf", "etc/lvm/lvm.conf", "etc/lvm/lvmlocal.conf"];
/// Directories for the programs of a package.
const PROGRAM_DIRECTORIES: [&str; 4] = ["usr/sbin", "sbin", "usr/bin", "bin"];

/// Architectures of the image, as Debian names them.
pub const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// Returns the packages that are pinned for an architecture, each `package=version`.
pub fn packages(architecture: &str) -> Vec<String> {
    pins(PACKAGES, architecture)
}

fn pins(text: &str, architecture: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let pin = |line: &str| match line.split_once(' ') {
        None => Some(line.to_owned()),
        Some((pin, only)) => (only == format!("[{architecture}]")).then(|| pin.to_owned()),
    };
    lines.filter_map(pin).collect()
}

/// Returns the file of pinned packages with the versions that Debian has now.
pub fn newest_packages() -> Result<String> {
    let mut versions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for architecture in ARCHITECTURES {
        let pins = packages(architecture);
        let names: Vec<&str> = pins.iter().filter_map(|pin| Some(pin.split_once('=')?.0)).collect();
        let root = testbed::assets::unpacked(architecture, &names)?;
        let unpacked = fs::read_to_string(root.join("packages")).context("read which packages were fetched")?;
        for file in unpacked.lines() {
            let pin = pin(file).with_context(|| format!("not the name of a package's file: {file}"))?;
            versions.entry(pin).or_default().push(architecture);
        }
    }
    let comment = PACKAGES.lines().filter(|line| line.starts_with('#')).map(str::to_owned);
    Ok(comment.chain(lines(&versions)).collect::<Vec<_>>().join("\n") + "\n")
}

/// Returns the lines of the file of pinned packages: a version that only one architecture has is marked with it.
fn lines(versions: &BTreeMap<String, Vec<&str>>) -> Vec<String> {
    let line = |(pin, architectures): (&String, &Vec<&str>)| match architectures.as_slice() {
        [one] => format!("{pin} [{one}]"),
        _ => pin.clone(),
    };
    versions.iter().map(line).collect()
}

/// Returns `package=version` of a file `package_version_architecture.deb`, in which the colon of a version is escaped.
fn pin(file: &str) -> Option<String> {
    let mut parts = file.split('_');
    let (package, version) = (parts.next()?, parts.next()?);
    Some(format!("{package}={}", version.replace("%3a", ":")))
}

/// Copies programs with the libraries that they need, from packages unpacked in `root`, in a tree where `/bin`, `/sbin`
/// and `/lib` are those below `/usr`.
pub fn programs(root: &Path, names: &[&str]) -> Result<Files> {
    let mut files = Files::root();
    for directory in ["bin", "sbin", "lib", "lib64"] {
        files.link(directory, &format!("usr/{directory}"));
    }
    for name in names {
        let source = find_program(root, name)?;
        let directory =
            if source.parent().is_some_and(|parent| parent.ends_with("sbin")) { "usr/sbin" } else { "usr/bin" };
        match fs::read_link(&source) {
            // Only to a program beside it, which is in the list itself
            Ok(target) if target.components().count() == 1 && names.iter().any(|name| target.as_os_str() == *name) => {
                files.link(&format!("{directory}/{name}"), &target.to_string_lossy());
            }
            _ => files.add(&source, &format!("{directory}/{name}"))?,
        }
        add_libraries(&mut files, root, &Elf::read(&source)?)?;
    }
    Ok(files)
}

/// Returns the tools with their libraries, configuration and licences.
pub(crate) fn tools(root: &Path, packages: &[String]) -> Result<Files> {
    let mut files = programs(root, TOOLS)?;
    for path in CONFIGURATION {
        files.add(&root.join(path), path)?;
    }
    for command in LVM_COMMANDS {
        files.script(&format!("usr/sbin/{command}"), LVM_OF_HOST);
    }
    // LVM writes there
    for directory in ["etc/lvm/archive", "etc/lvm/backup", "etc/lvm/cache", "run/lock/lvm", "run/lvm", "run/topolvm"] {
        files.directory(directory, 0o755);
    }
    add_licences(&mut files, root, packages)?;
    Ok(files)
}

/// Adds the dynamic linker and the libraries that a program needs, and those that they need.
pub(crate) fn add_libraries(files: &mut Files, root: &Path, elf: &Elf) -> Result<()> {
    let mut wanted = elf.libraries.clone();
    if let Some(interpreter) = &elf.interpreter {
        let name = file_name(interpreter)?;
        let (_, path) = find_library(root, name)?;
        let link = interpreter.trim_start_matches('/').replacen("lib", "usr/lib", 1);
        if link != path {
            files.link(&link, &format!("/{path}"));
        }
        wanted.push(name.to_owned());
    }
    while let Some(name) = wanted.pop() {
        let (source, path) = find_library(root, &name)?;
        if files.sizes().any(|(known, _)| known == path) {
            continue;
        }
        files.add(&source, &path)?;
        wanted.extend(Elf::read(&source)?.libraries);
    }
    Ok(())
}

fn file_name(path: &str) -> Result<&str> {
    path.rsplit('/').next().context("a path without a name")
}

fn find_program(root: &Path, name: &str) -> Result<PathBuf> {
    let places = PROGRAM_DIRECTORIES.iter().map(|directory| root.join(directory).join(name));
    places.into_iter().find(|path| path.exists()).with_context(|| format!("no program {name} in the pinned packages"))
}

/// Finds a library in the tree, and its place in the image.
fn find_library(root: &Path, name: &str) -> Result<(PathBuf, String)> {
    for above in ["usr/lib", "lib"] {
        let Ok(entries) = fs::read_dir(root.join(above)) else { continue };
        for entry in entries {
            let entry = entry.with_context(|| format!("list {above}"))?;
            let directory = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path().join(name);
            if directory.ends_with("-linux-gnu") && path.exists() {
                return Ok((path, format!("usr/lib/{directory}/{name}")));
            }
        }
    }
    anyhow::bail!("no library {name} in the pinned packages: add its package to images/debian-packages")
}

/// Adds the licence of every package, as most of them demand.
fn add_licences(files: &mut Files, root: &Path, packages: &[String]) -> Result<()> {
    let documents = root.join("usr/share/doc");
    for pin in packages {
        let package = pin.split('=').next().unwrap_or_default();
        let path = documents.join(package).join("copyright");
        ensure!(path.exists(), "package {package} has no copyright file");
        files.add(&path, &format!("usr/share/doc/{package}/copyright"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned_once_in_order() {
        for packages in ARCHITECTURES.map(packages) {
            let mut sorted = packages.clone();
            sorted.sort();
            sorted.dedup_by_key(|pin| pin.split('=').next().map(str::to_owned));
            assert_eq!(packages, sorted);
            assert!(packages.iter().all(|pin| pin.split('=').count() == 2), "{packages:?}");
        }
        assert_eq!(packages("amd64").len(), packages("arm64").len());
    }

    #[test]
    fn a_version_that_one_architecture_has_is_pinned_for_it() {
        let mut versions = BTreeMap::from([("dash=1".to_owned(), vec!["amd64", "arm64"])]);
        versions.extend([("xfs=2+b1".to_owned(), vec!["amd64"]), ("xfs=2+b2".to_owned(), vec!["arm64"])]);
        let text = lines(&versions).join("\n");
        assert_eq!(text, "dash=1\nxfs=2+b1 [amd64]\nxfs=2+b2 [arm64]");
        assert_eq!(pins(&text, "arm64"), ["dash=1", "xfs=2+b2"]);
    }

    #[test]
    fn a_package_is_known_by_the_name_of_its_file() {
        assert_eq!(pin("zlib1g_1%3a1.2.13.dfsg-1_amd64.deb").as_deref(), Some("zlib1g=1:1.2.13.dfsg-1"));
        assert_eq!(pin("packages"), None);
    }
}

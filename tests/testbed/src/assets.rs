//! Third-party programs that the test bed needs: fetched or built once, kept in the [`Cache`].

mod browser;
mod debian;
mod go_programs;
mod golang;
mod interpreter;
mod progress;

use std::path::PathBuf;

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

pub use self::browser::{Chromium, axe, chromium};
pub use self::go_programs::{
    CertManager, Helm, KubernetesTools, actionlint, cert_manager, csi_sanity, helm, is_oldest_kubernetes,
    kubernetes_tools, scheduler_config,
};
use crate::cache::Cache;
use crate::machine::find_program;

/// The oldest Debian suite whose User-Mode Linux works on every processor: earlier kernels panic at start on one with
/// AMX.
const SUITE: &str = "forky";

/// The Debian suite whose C library, or a newer one, the product's programs need.
const BUILD_SUITE: &str = "bookworm";

/// The kernel of guests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Kernel, a program of the machine.
    pub program: PathBuf,
    /// Directory of the C library that it needs. No other program may use it.
    pub libc: PathBuf,
    /// Directory of the modules: `RELEASE/kernel/...`
    pub modules: PathBuf,
}

/// The container runtime of a node guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Containerd {
    /// Directory of `containerd`, `containerd-shim-runc-v2`, `ctr`
    pub bin: PathBuf,
    /// Directory of the CNI plugins: `bridge`, `host-local`, `loopback`
    pub cni: PathBuf,
}

/// Returns the kernel of guests, and installs the programs that tests run in a guest (LVM, mkfs) on the machine, whose
/// files the guest sees.
pub fn kernel() -> Result<Kernel> {
    let cache = Cache::open()?;
    debian::install_missing(
        &cache,
        &[
            ("lvs", "lvm2"),
            ("thin_check", "thin-provisioning-tools"),
            ("insmod", "kmod"),
            ("mkfs.ext4", "e2fsprogs"),
            ("mkfs.xfs", "xfsprogs"),
            ("mkfs.btrfs", "btrfs-progs"),
            ("ip", "iproute2"),
        ],
    )?;
    let packages = ["user-mode-linux", "libc6"];
    let entry = cache.entry("kernel", &key(&[SUITE, &packages.join(" ")]), |directory| {
        debian::unpack(directory, SUITE, &packages)?;
        let (program, patched) = (directory.join("usr/bin/linux.uml"), directory.join("linux"));
        // The entry is renamed when it is complete; the link's name comes from where it will be then.
        interpreter::replace(&program, &patched, &interpreter_link(&cache, &packages)?)
    })?;
    let libc = entry.join("usr/lib/x86_64-linux-gnu");
    interpreter::make_link(&interpreter_link(&cache, &packages)?, &libc.join("ld-linux-x86-64.so.2"))?;
    Ok(Kernel { program: entry.join("linux"), libc, modules: entry.join("usr/lib/uml/modules") })
}

/// Returns the path of the one file outside the cache: a short name for the kernel's ELF interpreter, because the path
/// in an ELF header can only be replaced by one that is not longer. Each cache has its own.
fn interpreter_link(cache: &Cache, packages: &[&str]) -> Result<PathBuf> {
    let root = cache.root().to_str().context("the path of the cache is not text")?;
    let key = key(&[root, SUITE, &packages.join(" ")]);
    Ok(PathBuf::from(format!("/var/tmp/uml-ld-{}.so", key.get(..8).unwrap_or(&key))))
}

/// Returns a directory with the contents of Debian packages of the suite that the product is built on, each
/// `package=version` or `package`, for an architecture as Debian calls it. The file `packages` in it lists them.
pub fn unpacked(architecture: &str, packages: &[&str]) -> Result<PathBuf> {
    Cache::open()?.entry("debian-packages", &key(&[BUILD_SUITE, architecture, &packages.join(" ")]), |directory| {
        debian::unpack_for(architecture, directory, BUILD_SUITE, packages)
    })
}

/// Returns a directory with systemd and udevd of the machine's Debian, to be laid over the machine's files: containers
/// in which tests run have neither, and a test is not to install an init system.
pub(crate) fn systemd() -> Result<PathBuf> {
    let suite = debian::suite_of_machine()?;
    // Programs and libraries of one version, independent of those on the machine
    let packages = ["systemd", "udev", "libsystemd-shared", "libsystemd0", "libudev1"];
    let more = [
        "libapparmor1",
        "libargon2-1",
        "libcryptsetup12",
        "libfdisk1",
        "libip4tc2",
        "libjson-c5",
        "libkmod2",
        "libseccomp2",
    ];
    let packages = [&packages[..], &more[..]].concat();
    Cache::open()?.entry("systemd", &key(&[&suite, &packages.join(" ")]), |directory| {
        debian::unpack(directory, &suite, &packages)?;
        debian::merge_usr(directory)
    })
}

/// Returns containerd and the CNI plugins, and installs runc and a static busybox on the machine.
pub fn containerd() -> Result<Containerd> {
    let cache = Cache::open()?;
    debian::install_missing(&cache, &[("runc", "runc"), ("busybox", "busybox-static")])?;
    let packages = ["containerd", "containernetworking-plugins"];
    let entry = cache.entry("containerd", &key(&[SUITE, &packages.join(" ")]), |directory| {
        debian::unpack(directory, SUITE, &packages)
    })?;
    Ok(Containerd { bin: entry.join("usr/bin"), cni: entry.join("usr/lib/cni") })
}

/// Returns the program shellcheck, of Debian.
pub fn shellcheck() -> Result<PathBuf> {
    debian::install_missing(&Cache::open()?, &[("shellcheck", "shellcheck")])?;
    find_program("shellcheck").context("no shellcheck although the package is installed")
}

/// Returns the directory of `prometheus` and `promtool`, of Debian. That Prometheus finds no targets in Kubernetes: it
/// is built without the clients of clouds.
pub fn prometheus() -> Result<PathBuf> {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    Ok(unpacked(architecture, &["prometheus"])?.join("usr/bin"))
}

/// Returns a static busybox for images.
pub fn busybox() -> Result<PathBuf> {
    debian::install_missing(&Cache::open()?, &[("busybox", "busybox-static")])?;
    find_program("busybox").context("no busybox although the package busybox-static is installed")
}

/// Returns the key of a cache entry: 16 hexadecimal digits that change when any of the parts does.
fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let mut key = format!("{:x}", hash.finalize());
    key.truncate(16);
    key
}

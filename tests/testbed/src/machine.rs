//! Requirements of guests, clusters and Go programs on this machine, with a sentence about each that is missing.

use std::path::{Path, PathBuf};

use crate::cache::Cache;
use crate::size::GIB;

/// Free bytes that are required to start: the errors of a disk that becomes full later do not name the reason.
const LEAST_SPACE: u64 = 2 * GIB;

/// Returns the reason why no guest can be booted here; `None` when nothing is known to be missing.
pub fn missing_for_guests() -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some("guests need Linux on x86-64".to_owned());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("guests need root: run the tests with sudo".to_owned());
    }
    // Yama: 3 takes ptrace away even from root, and User-Mode Linux needs it.
    if std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").is_ok_and(|scope| scope.trim() == "3") {
        return Some("guests need ptrace: reboot with a kernel.yama.ptrace_scope below 3".to_owned());
    }
    if free_bytes(Path::new("/dev/shm")).is_none_or(|free| free < GIB) {
        return Some(
            "guests keep memory and disks in /dev/shm, which has less than 1 GiB free: enlarge it (docker: --shm-size)"
                .to_owned(),
        );
    }
    missing_space()
        .or_else(|| missing_programs(&["bash", "taskset", "setpriv", "setsid"], "packages bash and util-linux"))
        .or_else(|| {
            missing_programs(&["apt-get", "apt-cache", "dpkg-deb"], "guests boot a kernel from Debian's packages")
        })
}

/// Returns the reason why no cluster can be started here; `None` when nothing is known to be missing.
pub fn missing_for_clusters() -> Option<String> {
    if let Some(reason) = missing_for_guests() {
        return Some(reason);
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some(
            "clusters need /dev/net/tun for the network between host and nodes: load the module tun".to_owned(),
        );
    }
    let missing = missing_programs(&["nsenter", "unshare"], "package util-linux");
    missing.or_else(|| missing_go("clusters need Kubernetes", "its programs"))
}

/// Returns the reason why no Go programs can be built here; `None` when nothing is known to be missing.
pub fn missing_for_go_programs() -> Option<String> {
    missing_space().or_else(|| missing_go("helm is needed", "helm3 and helm4"))
}

/// Returns the reason why no packages of Debian can be unpacked here; `None` when nothing is known to be missing.
pub fn missing_for_packages() -> Option<String> {
    missing_programs(&["apt-get", "dpkg-deb"], "Prometheus is unpacked from Debian's package")
}

/// Returns a sentence about the disk of the cache or of /var/tmp, if it has too little free space for the tests.
fn missing_space() -> Option<String> {
    let cache = match Cache::open() {
        Ok(cache) => cache.root().to_owned(),
        Err(error) => return Some(format!("{error:#}")),
    };
    [cache.as_path(), Path::new("/var/tmp")].into_iter().find_map(|path| too_full(path, LEAST_SPACE))
}

fn too_full(path: &Path, least: u64) -> Option<String> {
    let free = free_bytes(path)?;
    (free < least).then(|| {
        let (path, free, least) = (path.display(), free >> 20, least >> 20);
        format!("{path} has {free} MiB free, and tests write more than {least}: delete files, or set TOPOLVM_CACHE")
    })
}

fn missing_go(need: &str, programs: &str) -> Option<String> {
    (std::env::var_os("TESTBED_BIN").is_none() && find_program("go").is_none())
        .then(|| format!("{need}: install Go 1.21 or newer, or set TESTBED_BIN to a directory with {programs}"))
}

/// Returns the free bytes of the filesystem of a file.
fn free_bytes(path: &Path) -> Option<u64> {
    let filesystem = rustix::fs::statvfs(path).ok()?;
    Some(filesystem.f_bavail.saturating_mul(filesystem.f_frsize))
}

fn missing_programs(programs: &[&str], hint: &str) -> Option<String> {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| find_program(program).is_none()).collect();
    (!missing.is_empty()).then(|| format!("{} not found ({hint})", missing.join(", ")))
}

/// Finds a program as a shell does, and where Debian keeps the administrator's.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_what_brings_it() {
        let reason = missing_programs(&["sh", "no-such-program"], "package xyz").unwrap();
        assert_eq!(reason, "no-such-program not found (package xyz)");
    }

    #[test]
    fn a_disk_that_is_too_full_is_named_with_what_is_free() {
        let path = Path::new("/var/tmp");
        assert_eq!(too_full(path, 0), None);
        let reason = too_full(path, u64::MAX).unwrap();
        assert!(reason.starts_with("/var/tmp has ") && reason.contains("delete files"), "{reason}");
    }
}

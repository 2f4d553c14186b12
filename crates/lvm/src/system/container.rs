//! Control groups of the host for programs that leave the one of their container: a container runtime kills whatever is
//! in the control group of a container (`cgroup.kill`), the kernel whatever is in its process namespace, and the limits
//! of its memory and CPU time are for the program that runs in it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{SHELL, command_to_end};

/// The first process of the host, where the container shares its process namespace (`hostPID`).
const HOST: &str = "/proc/1/root";
/// The host's control groups, all in one hierarchy (version 2).
const CONTROL_GROUPS: &str = "sys/fs/cgroup";

/// Placement of the programs that a process starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Next to that process on the host, where the service manager leaves them alone.
    Host,
    /// The process is in a container, and a program that writes 0 to this file of the host leaves it.
    Outside(PathBuf),
    /// They share the limits and the end of the container, and why.
    Inside(String),
}

impl Placement {
    /// Creates the control group of this name on the host, next to those of pods and services, if this process is in a
    /// container. The group has no limits.
    pub fn find(group: &str) -> Self {
        Self::seen_from(Path::new(HOST), group).unwrap_or_else(|error| Self::Inside(error.to_string()))
    }

    fn seen_from(host: &Path, group: &str) -> io::Result<Self> {
        let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
        if identity(Path::new("/"))? == identity(host)? {
            return Ok(if std::process::id() == 1 {
                Self::Inside("this is the first process of its container; set hostPID".to_owned())
            } else {
                Self::Host
            });
        }
        let root = host.join(CONTROL_GROUPS);
        if !root.join("cgroup.procs").exists() {
            return Ok(Self::Inside("the host has no cgroup v2 hierarchy".to_owned()));
        }
        let group = root.join(group);
        match fs::create_dir(&group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let processes = group.join("cgroup.procs");
        // A control group namespace or a security module may forbid to leave
        let tried =
            command_to_end(SHELL, &["-c".as_ref(), "echo 0 >\"$1\"".as_ref(), "sh".as_ref(), processes.as_ref()])?;
        Ok(if tried {
            Self::Outside(processes)
        } else {
            Self::Inside(format!("{} cannot be written", processes.display()))
        })
    }
}

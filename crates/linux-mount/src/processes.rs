//! Processes of the machine: one of each mount namespace, and the description of one for messages.

use std::collections::HashSet;
use std::fmt;
use std::fs::{DirEntry, ReadDir};
use std::path::{Path, PathBuf};

const PROCESSES: &str = "/proc";
/// Length of the short form of a container's id, which `crictl ps` prints.
const SHORT_ID: usize = 13;

/// A process, as a message names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessName {
    /// Its id.
    pub pid: u32,
    /// Name of its program.
    pub program: String,
    /// The container that it runs in, if it is one of a pod.
    pub container: Option<ContainerName>,
}

/// A container of a pod, according to the control group of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerName {
    /// UID of the pod.
    pub pod: String,
    /// Short id of the container; empty for a process of no container.
    pub id: String,
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.program)?;
        match &self.container {
            Some(ContainerName { pod, id }) if id.is_empty() => write!(f, " of the pod {pod}"),
            Some(ContainerName { pod, id }) => write!(f, " in container {id} of the pod {pod}"),
            None => Ok(()),
        }
    }
}

impl ProcessName {
    /// Reads the description of a process from /proc.
    pub(crate) fn read(pid: u32) -> Self {
        let process = directory_of(pid);
        let program = std::fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned();
        let cgroup = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        Self { pid, program, container: cgroup.lines().find_map(parse_cgroup) }
    }
}

/// Returns the directory of a process in /proc.
pub(crate) fn directory_of(pid: u32) -> PathBuf {
    Path::new(PROCESSES).join(pid.to_string())
}

/// Lists all processes but this one.
pub(crate) fn list() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let pids = read_entries(Path::new(PROCESSES)).filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(move |pid| *pid != own)
}

/// Lists one process of each mount namespace but ours. Processes may end at any time, and are skipped then.
pub(crate) fn list_other_namespaces() -> Vec<u32> {
    let namespace = |process: PathBuf| std::fs::read_link(process.join("ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace(Path::new(PROCESSES).join("self")).into_iter().collect();
    list().filter(|pid| namespace(directory_of(*pid)).is_some_and(|namespace| seen.insert(namespace))).collect()
}

/// Lists the links in /proc to what a process works in, runs and has open.
pub(crate) fn list_links(pid: u32) -> impl Iterator<Item = PathBuf> {
    let process = directory_of(pid);
    let files = read_entries(&process.join("fd")).map(|entry| entry.path());
    ["cwd", "root", "exe"].map(|name| process.join(name)).into_iter().chain(files)
}

/// Reads a directory; one that cannot be read is empty.
pub(crate) fn read_entries(directory: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    std::fs::read_dir(directory).into_iter().flat_map(ReadDir::flatten)
}

/// Finds the container of a pod in a line of /proc/PID/cgroup. Kubelet names the group of a pod `podUID` or, with
/// systemd, `...-podUID.slice`, with each `-` of the UID as `_`; the runtime has one below it for each container.
fn parse_cgroup(line: &str) -> Option<ContainerName> {
    let mut groups = line.split('/');
    let pod = groups.find_map(|group| {
        let (_, uid) = group.trim_end_matches(".slice").rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        // Static pods have the hash of their file
        (matches!(uid.len(), 32 | 36) && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-')).then_some(uid)
    })?;
    let id = groups.next().unwrap_or_default().trim_end_matches(".scope");
    let id = id.rsplit_once('-').map_or(id, |(_, id)| id);
    Some(ContainerName { pod, id: id.chars().take(SHORT_ID).collect() })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::cgroupfs("0::/kubepods/burstable/pod0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a/4e07408562bedb8b60ce05c1decfe3ad")]
    #[case::systemd(
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b5a2f4e_8d54_4f5c_9a0e_7d8f6f3c2b1a.slice\
         /cri-containerd-4e07408562bedb8b60ce05c1decfe3ad.scope"
    )]
    fn cgroup_names_pod_and_container(#[case] line: &str) {
        let expected =
            ContainerName { pod: "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a".to_owned(), id: "4e07408562bed".to_owned() };
        assert_eq!(parse_cgroup(line), Some(expected));
    }

    #[rstest]
    #[case("0::/system.slice/podman.service")]
    #[case("0::/")]
    #[case("")]
    fn cgroup_of_no_pod_names_none(#[case] line: &str) {
        assert_eq!(parse_cgroup(line), None);
    }
}

//! Mounts of the node itself, outside of the agent's container: whether the kubelet sees what the agent mounts, whether
//! anything is left that the agent does not see, and mounts that earlier versions of the DaemonSet have piled up.

use std::path::Path;
use std::time::Duration;

use procfs::process::{MountInfo, MountOptFields};

use super::MountError;
use super::command::{CommandLine, Programs};
use super::mount_table::{parse_lines, unescape_path};

/// The first process of the node, which a container sees with `hostPID`.
pub(crate) const HOST: &str = "/proc/1";
const OWN: &str = "/proc/self";
/// Deadline of an unmount.
const UNMOUNT: Duration = Duration::from_secs(30);

/// Checks that what is mounted at a path reaches the mount namespace of the process `host`.
pub(crate) fn check_shared(host: &Path, target: &Path) -> Result<(), MountError> {
    if is_elsewhere(host) && !is_shared(&read_table(Path::new(OWN))?, &read_table(host)?, target) {
        return Err(MountError::NotShared(target.to_owned()));
    }
    Ok(())
}

/// Checks that nothing is mounted at a path in the mount namespace of the process `host`.
pub(crate) fn check_unmounted(host: &Path, target: &Path) -> Result<(), MountError> {
    if is_elsewhere(host) && read_table(host)?.iter().any(|mount| mount.mount_point == target) {
        Err(MountError::NotVisible(target.to_owned()))
    } else {
        Ok(())
    }
}

/// Returns whether a process has other mounts than this one.
fn is_elsewhere(process: &Path) -> bool {
    let namespace = |process: &Path| std::fs::read_link(process.join("ns/mnt"));
    matches!((namespace(process), namespace(Path::new(OWN))), (Ok(theirs), Ok(ours)) if theirs != ours)
}

/// Returns whether a path is on a mount that other namespaces share, and not in the container's own filesystem.
fn is_shared(own: &[MountInfo], host: &[MountInfo], target: &Path) -> bool {
    let root = Path::new("/");
    let directory = |mount: &MountInfo| (mount.majmin.clone(), mount.root.clone());
    let is_shared = |field: &MountOptFields| matches!(field, MountOptFields::Shared(_));
    find_mount(own, target).is_some_and(|mount| {
        let is_of_container =
            mount.mount_point == root && find_mount(host, root).map(directory) != Some(directory(mount));
        !is_of_container && mount.opt_fields.iter().any(is_shared)
    })
}

/// Finds the mount on which a path is: the topmost one of those with the longest path.
fn find_mount<'a>(table: &'a [MountInfo], path: &Path) -> Option<&'a MountInfo> {
    let around = table.iter().filter(|mount| path.starts_with(&mount.mount_point));
    around.max_by_key(|mount| mount.mount_point.components().count())
}

/// Unmounts on the node what earlier versions have left at the directory of the agent's socket: their DaemonSet mounted
/// the directory below the kubelet's one, which is shared with the node. So it was mounted there, too, on all that was
/// mounted there already, twice as often with each start of the container. One mount is unmounted after the other, as
/// long as each unmount leaves fewer: mostly it takes half of them along.
pub async fn unmount_repeated(host: &Path, directory: &Path) -> Result<(), MountError> {
    if is_first_process() {
        return Ok(());
    }
    let count = || Ok::<_, MountError>(count_repeated(&read_table(host)?, directory));
    let found = count()?;
    let mut left = found;
    while left > 0 {
        let namespace = format!("--mount={}", host.join("ns/mnt").display());
        let unmount = CommandLine::new("nsenter", UNMOUNT, &[&namespace, "--", "umount"], directory);
        Programs::find(&["nsenter"]).run_ok(&unmount).await?;
        let now = count()?;
        if now >= left {
            tracing::warn!(path = %directory.display(), left, "an unmount on the node had no effect");
            return Ok(());
        }
        left = now;
    }
    if found > 0 {
        tracing::info!(path = %directory.display(), found, "unmounted mounts that earlier versions left on the node");
    }
    Ok(())
}

/// Counts the mounts at a directory in the mount namespace of the process `host` if they lie on each other; 0 if they
/// cannot be listed.
pub fn count_stacked_mounts(host: &Path, directory: &Path) -> usize {
    if is_first_process() { 0 } else { read_table(host).map_or(0, |table| count_stacked(&table, directory)) }
}

/// Returns whether this process is the first one that it sees, as in a container without hostPID, where it does not see
/// the mounts of the node.
fn is_first_process() -> bool {
    std::process::id() == 1
}

/// Counts the mounts at a path that show the directory that exists without them: the same directory of the same
/// filesystem. Zero if any other mount exists there, or below.
fn count_repeated(table: &[MountInfo], path: &Path) -> usize {
    let (at_or_below, others): (Vec<_>, Vec<_>) =
        table.iter().cloned().partition(|mount| mount.mount_point.starts_with(path));
    let Some(around) = find_mount(&others, path) else { return 0 };
    let Ok(relative) = path.strip_prefix(&around.mount_point) else { return 0 };
    let directory = unescape_path(Path::new(&around.root)).join(relative);
    let is_repeated = |mount: &MountInfo| {
        mount.mount_point == path && mount.majmin == around.majmin && unescape_path(Path::new(&mount.root)) == directory
    };
    if at_or_below.iter().all(is_repeated) { at_or_below.len() } else { 0 }
}

/// Counts the mounts at a path if they lie on each other: whatever they show, each start of an earlier version's
/// container doubles them.
fn count_stacked(table: &[MountInfo], path: &Path) -> usize {
    let count = table.iter().filter(|mount| mount.mount_point == path).count();
    if count > 1 { count } else { 0 }
}

/// Reads the mount table of a process.
fn read_table(process: &Path) -> Result<Vec<MountInfo>, MountError> {
    let path = process.join("mountinfo");
    let table = std::fs::read(&path).map_err(|error| MountError::io("read", &path, error))?;
    let plain = |mount: MountInfo| MountInfo { mount_point: unescape_path(&mount.mount_point), ..mount };
    parse_lines(&table).map(|mount| mount.map(plain)).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const NODE: &str = "/var/lib/kubelet/plugins/topolvm.io/node";
    const ROOT: &str = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw";
    const KUBELET: &str = "2 1 8:2 /data/kubelet /var/lib/kubelet rw shared:2 - xfs /dev/sdb rw";
    const REPEATED: &str = "3 1 8:1 /var/lib/kubelet/plugins/topolvm.io/node \
        /var/lib/kubelet/plugins/topolvm.io/node rw shared:1 - ext4 /dev/sda1 rw";

    fn table(lines: &[&str]) -> Vec<MountInfo> {
        parse_lines(lines.join("\n").as_bytes()).map(Result::unwrap).collect()
    }

    #[rstest]
    #[case::nothing(&[ROOT], 0)]
    #[case::on_the_root(&[ROOT, REPEATED, REPEATED, REPEATED], 3)]
    #[case::of_a_kubelet_elsewhere(
        &[ROOT, KUBELET, &REPEATED.replace("8:1 /var/lib/kubelet/plugins", "8:2 /data/kubelet/plugins")], 1
    )]
    #[case::of_another_filesystem(&[ROOT, REPEATED, &REPEATED.replace("8:1", "8:3")], 0)]
    #[case::of_another_directory(&[ROOT, &REPEATED.replace("8:1 /var", "8:1 /mnt")], 0)]
    #[case::of_the_filesystem_below_another(&[ROOT, KUBELET, REPEATED], 0)]
    #[case::with_a_mount_below(
        &[ROOT, REPEATED, "4 3 0:9 / /var/lib/kubelet/plugins/topolvm.io/node/a rw - tmpfs a rw"], 0
    )]
    #[case::at_a_path_that_begins_like_it(&[ROOT, &REPEATED.replace("node rw", "node2 rw")], 0)]
    fn only_repeated_mounts_of_the_same_directory_count(#[case] lines: &[&str], #[case] expected: usize) {
        assert_eq!(count_repeated(&table(lines), Path::new(NODE)), expected);
    }

    #[test]
    fn single_mount_is_not_stacked() {
        let stacked = |lines: &[&str]| count_stacked(&table(lines), Path::new(NODE));
        assert_eq!((stacked(&[ROOT]), stacked(&[ROOT, REPEATED]), stacked(&[ROOT, REPEATED, REPEATED])), (0, 0, 2));
    }

    #[rstest]
    #[case::shared("5 1 8:1 /var/lib/kubelet/pods /var/lib/kubelet/pods rw shared:7 - ext4 /dev/sda1 rw", true)]
    #[case::private("5 1 8:1 /var/lib/kubelet/pods /var/lib/kubelet/pods rw - ext4 /dev/sda1 rw", false)]
    #[case::only_to_the_container("5 1 8:1 /var/lib/kubelet/pods /var/lib/kubelet/pods rw master:7 - ext4 a rw", false)]
    #[case::of_the_node_itself(ROOT, true)]
    #[case::of_another_root("5 1 8:1 /data/pods /data/pods rw shared:7 - ext4 /dev/sda1 rw", false)]
    fn target_is_shared_on_a_shared_mount_alone(#[case] line: &str, #[case] expected: bool) {
        let container = "1 0 0:40 / / ro shared:9 - overlay overlay ro";
        let target = Path::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pvc-1/mount");
        assert_eq!(is_shared(&table(&[container, line]), &table(&[ROOT]), target), expected);
    }

    #[test]
    fn own_namespace_needs_no_propagation() {
        check_shared(Path::new(OWN), Path::new("/no/such/target")).unwrap();
        check_unmounted(Path::new(OWN), Path::new("/proc")).unwrap();
    }
}

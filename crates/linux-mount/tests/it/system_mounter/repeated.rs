//! Mounts that double with each start of a container, in a mount namespace of their own.

use std::path::{Path, PathBuf};

use linux_mount::{Filesystem, count_stacked_mounts, unmount_repeated};

use super::{container, device_for};

/// Counts the mounts at a path in the mount namespace of a process.
fn mounts_at(process: &Path, path: &Path) -> usize {
    let table = std::fs::read_to_string(process.join("mountinfo")).unwrap();
    table.lines().filter(|line| line.split(' ').nth(4) == path.to_str()).count()
}

#[tokio::test]
async fn repeated_mounts_are_unmounted_in_the_namespace_of_the_node() {
    // Where there are no devices there are no rights for mounts either
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let kubelet = device.dir.path().canonicalize().unwrap().join("kubelet");
    let [directory, foreign, other] = ["topolvm.io", "topolvm.cybozu.com", "other.example"]
        .map(|name| kubelet.join("plugins").join(name).join("node"));
    let bind = |path: &Path, times: usize| vec![format!("mount --bind {0} {0}", path.display()); times].join(" && ");
    let script = format!(
        "mkdir -p {} {} {} && {} && mount --make-shared {} && {} && {} && mount -t tmpfs a {2} && mount -t tmpfs b {2}",
        directory.display(),
        other.display(),
        foreign.display(),
        bind(&kubelet, 1),
        kubelet.display(),
        bind(&directory, 5),
        bind(&other, 1),
    );
    let mut node = container(&script);
    let process = PathBuf::from(format!("/proc/{}", node.id()));
    assert_eq!(mounts_at(&process, &directory), 31);
    // Other mounts stay, and are counted
    for path in [&directory, &foreign] {
        unmount_repeated(&process, path).await.unwrap();
    }
    assert_eq!([&directory, &foreign].map(|path| count_stacked_mounts(&process, path)), [0, 2]);
    let left = [&directory, &foreign, &other, &kubelet].map(|path| mounts_at(&process, path));
    drop(node.stdin.take());
    node.wait().unwrap();
    assert_eq!(left, [0, 2, 1, 1]);
}

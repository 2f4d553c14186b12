//! Frozen filesystems on a real device.

use std::path::Path;

use linux_mount::{Filesystem, MkfsOptions, MountError, Mounter as _, SystemMounter};
use rstest::rstest;

use super::{MIB, device_for, options, run, unmount};

/// Freezes the filesystem that is mounted at a path.
fn freeze(target: &Path) {
    run("fsfreeze", &["--freeze", &target.display().to_string()]).unwrap();
}

#[rstest]
#[case(Filesystem::Ext4)]
#[case(Filesystem::Xfs)]
#[case(Filesystem::Btrfs)]
#[tokio::test]
async fn frozen_filesystem_is_thawed_also_after_it_was_unmounted(#[case] filesystem: Filesystem) {
    let Some(device) = device_for(filesystem) else { return };
    let (machine, target, disk) = (SystemMounter::new(), device.target(), &device.path);
    machine.format(disk, filesystem, &MkfsOptions::default()).await.unwrap();
    let mount = async || machine.mount(disk, &target, filesystem, &options(filesystem, false)).await.unwrap();
    mount().await;
    assert!(!machine.thaw(&target).await.unwrap());
    freeze(&target);
    assert!(machine.thaw(&target).await.unwrap());
    assert!(!machine.thaw(&target).await.unwrap());
    freeze(&target);
    unmount(&machine, &target).await;
    assert!(machine.is_claimed(disk).await.unwrap());
    mount().await;
    assert!(machine.thaw(&target).await.unwrap());
    std::fs::write(target.join("file"), "written").unwrap();
    unmount(&machine, &target).await;
    assert!(!machine.is_claimed(disk).await.unwrap());
}

#[rstest]
#[case(Filesystem::Ext4)]
#[case(Filesystem::Xfs)]
#[case(Filesystem::Btrfs)]
#[tokio::test]
async fn growth_of_frozen_filesystem_names_the_thaw(#[case] filesystem: Filesystem) {
    let Some(device) = device_for(filesystem) else { return };
    let (machine, target, disk) = (SystemMounter::new(), device.target(), &device.path);
    machine.format(disk, filesystem, &MkfsOptions::default()).await.unwrap();
    machine.mount(disk, &target, filesystem, &options(filesystem, false)).await.unwrap();
    device.grow(640 * MIB);
    freeze(&target);
    let grown = machine.grow_filesystem(disk, &target, filesystem).await;
    assert!(machine.thaw(&target).await.unwrap());
    if !matches!(&grown, Err(MountError::Failed { stderr, .. }) if stderr.contains("Permission denied")) {
        assert!(matches!(grown, Err(MountError::Frozen { .. })), "{grown:?}");
        // What has waited goes on, and grows it
        let growing = async {
            while machine.filesystem_usage(&target).await.unwrap().total_bytes < 500 * MIB {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), growing).await.unwrap();
    }
    unmount(&machine, &target).await;
}

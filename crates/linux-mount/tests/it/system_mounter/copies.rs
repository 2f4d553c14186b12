//! Copies of filesystems, mounted beside their source: with an identity of their own, and with what was fsynced.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use linux_mount::{Filesystem, MkfsOptions, MountError, Mounter as _, SystemMounter};
use rstest::rstest;

use super::{LoopDevice, MIB, device_for, options, put, run, unmount};

#[rstest]
#[case(Filesystem::Ext4)]
#[case(Filesystem::Xfs)]
#[case(Filesystem::Btrfs)]
#[tokio::test]
async fn a_copy_is_mounted_beside_its_source(#[case] filesystem: Filesystem) {
    let Some(source) = device_for(filesystem) else { return };
    let machine = SystemMounter::new();
    machine.format(&source.path, filesystem, &MkfsOptions::default()).await.unwrap();
    machine.mount(&source.path, &source.target(), filesystem, &options(filesystem, false)).await.unwrap();
    std::fs::write(source.target().join("whose"), "source").unwrap();
    rustix::fs::sync();

    // As a snapshot of a mounted volume is, which LVM takes when nothing is half written
    let copy = source.copy().unwrap();
    for _ in 0..2 {
        machine.set_unique_uuid(&copy.path, filesystem, "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a").await.unwrap();
    }
    machine.mount(&copy.path, &copy.target(), filesystem, &options(filesystem, false)).await.unwrap();
    std::fs::write(copy.target().join("whose"), "copy").unwrap();
    assert_eq!(std::fs::read_to_string(source.target().join("whose")).unwrap(), "source");
    let number = machine.block_device(&copy.path).await.unwrap().number;
    assert_eq!(machine.mounts_at(&copy.target()).await.unwrap().first().unwrap().device, number);
    unmount(&machine, &copy.target()).await;
    unmount(&machine, &source.target()).await;
}

/// Returns whether a btrfs has a log tree, as "On-disk Format" of its documentation says.
fn has_log(device: &Path) -> bool {
    let mut log_root = [0; 8];
    std::fs::File::open(device).unwrap().read_exact_at(&mut log_root, (64 << 10) + 0x60).unwrap();
    u64::from_le_bytes(log_root) != 0
}

/// Writes a file and flushes it to the disk with fsync(2), which btrfs does by writing its log.
fn write_and_fsync(path: &Path, text: &str) {
    let mut file = std::fs::File::create(path).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

/// A copy on a device on which the kernel has seen a part of another btrfs, as when a pod had made one on the block
/// volume that had this device number before. The kernel goes on believing that it knows the device.
fn copy_to_used_device(source: &LoopDevice) -> LoopDevice {
    let [device, second] = [(); 2].map(|()| device_for(Filesystem::Btrfs).unwrap());
    let disk = std::fs::read(source.dir.path().join("disk")).unwrap();
    let paths = [&device, &second].map(|device| device.path.display().to_string());
    run("mkfs.btrfs", &["-q", &paths[0], &paths[1]]).unwrap();
    run("btrfs", &["device", "scan", &paths[0]]).unwrap();
    run("wipefs", &["-q", "-a", &paths[0]]).unwrap();
    for (number, piece) in (0..).zip(disk.chunks(1 << 20)).filter(|(_, piece)| piece.iter().any(|&byte| byte != 0)) {
        put(&device.path, number * MIB, piece);
    }
    device
}

/// Also in copies of copies, whose identity is another one than that with which they were made, and on a device that
/// the kernel has seen with something else.
#[tokio::test]
async fn what_was_fsynced_is_in_a_copy_of_a_btrfs_beside_its_source() {
    let Some(source) = device_for(Filesystem::Btrfs) else { return };
    let machine = SystemMounter::new();
    let plain = options(Filesystem::Btrfs, false);
    machine.format(&source.path, Filesystem::Btrfs, &MkfsOptions::default()).await.unwrap();
    machine.mount(&source.path, &source.target(), Filesystem::Btrfs, &plain).await.unwrap();
    // No other test mounts filesystems with these
    let ids = ["5d1c7a0e-3b7e-4c7b-8f43-0c1d2e3f4a5b", "5d1c7a0e-3b7e-4c7b-8f43-0c1d2e3f4a5c"];
    let mut devices = vec![source];
    for (number, id) in ids.into_iter().enumerate() {
        let source = &devices[number];
        rustix::fs::syncfs(std::fs::File::open(source.target()).unwrap()).unwrap();
        write_and_fsync(&source.target().join(format!("file-{number}")), id);
        let copy = copy_to_used_device(source);
        assert!(has_log(&copy.path), "this kernel writes no log");
        for _ in 0..2 {
            machine.set_unique_uuid(&copy.path, Filesystem::Btrfs, id).await.unwrap();
        }
        machine.mount(&copy.path, &copy.target(), Filesystem::Btrfs, &plain).await.unwrap();
        for (number, text) in ids.into_iter().enumerate().take(number + 1) {
            let file = copy.target().join(format!("file-{number}"));
            assert_eq!(std::fs::read_to_string(file).unwrap(), text);
        }
        devices.push(copy);
    }
    for device in devices {
        unmount(&machine, &device.target()).await;
    }
}

/// The kernel takes the copy of one of several devices for a part of the mounted filesystem, as it takes every copy
/// before Linux 6.7.
#[tokio::test]
async fn btrfs_copy_keeps_a_log_that_the_kernel_does_not_replay() {
    let (Some(source), Some(second)) = (device_for(Filesystem::Btrfs), device_for(Filesystem::Btrfs)) else { return };
    let machine = SystemMounter::new();
    let paths = [&source, &second].map(|device| device.path.display().to_string());
    run("mkfs.btrfs", &["-q", &paths[0], &paths[1]]).unwrap();
    let both = options(Filesystem::Btrfs, false).with(&format!("device={}", paths[1]));
    machine.mount(&source.path, &source.target(), Filesystem::Btrfs, &both).await.unwrap();
    rustix::fs::syncfs(std::fs::File::open(source.target()).unwrap()).unwrap();
    write_and_fsync(&source.target().join("file"), "text");
    let copy = source.copy().unwrap();
    let before = std::fs::read(copy.dir.path().join("disk")).unwrap();
    let error = machine
        .set_unique_uuid(&copy.path, Filesystem::Btrfs, "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a")
        .await
        .unwrap_err();
    assert!(matches!(error, MountError::SameIdentity { .. }), "{error:?}");
    assert!(error.to_string().contains("stop the pods that use the source"), "{error}");
    assert!(has_log(&copy.path));
    assert!(std::fs::read(copy.dir.path().join("disk")).unwrap() == before, "the copy has changed");
    unmount(&machine, &source.target()).await;
}

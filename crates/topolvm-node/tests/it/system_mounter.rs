//! The real machine: a sparse file behind a loop device, real programs and real mounts. Needs root and a loop device.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;
use topolvm_node::Filesystem;
use topolvm_node::mount::{Contents, MountOptions, Mounter as _, PathKind, SystemMounter};

const MIB: u64 = 1 << 20;

/// A loop device over a sparse file.
struct LoopDevice {
    dir: TempDir,
    path: PathBuf,
}

impl LoopDevice {
    /// A device of 32 MiB, or why there cannot be one.
    fn new() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = dir.path().join("disk");
        let sized = std::fs::File::create(&file).and_then(|disk| disk.set_len(32 * MIB));
        sized.map_err(|error| error.to_string())?;
        let path = losetup(&["--find", "--show", &file.display().to_string()])?;
        Ok(Self { dir, path: path.trim().into() })
    }

    fn grow(&self, bytes: u64) {
        let disk = std::fs::OpenOptions::new().write(true).open(self.dir.path().join("disk"));
        disk.unwrap().set_len(bytes).unwrap();
        losetup(&["--set-capacity", &self.path.display().to_string()]).unwrap();
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Only mounted when the test failed half-way
        let _ = rustix::mount::unmount(self.dir.path().join("target"), UnmountFlags::empty());
        drop(losetup(&["--detach", &self.path.display().to_string()]));
    }
}

#[expect(clippy::disallowed_methods, reason = "sets up the test's own device")]
fn losetup(args: &[&str]) -> Result<String, String> {
    let output = Command::new("losetup").args(args).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn options(readonly: bool) -> MountOptions {
    MountOptions::parse(readonly, &["noatime", "commit=30"]).unwrap()
}

fn can_mount(dir: &Path) -> bool {
    let there = dir.join("probe");
    std::fs::create_dir(&there).unwrap();
    let mounted = rustix::mount::mount("none", &there, "tmpfs", MountFlags::empty(), c"").is_ok();
    mounted && rustix::mount::unmount(&there, UnmountFlags::empty()).is_ok()
}

#[tokio::test]
async fn a_filesystem_is_made_mounted_grown_and_unmounted_on_a_real_device() {
    let device = match LoopDevice::new() {
        Ok(device) if can_mount(device.dir.path()) => device,
        Ok(_) => return println!("skipped: this process may not mount"),
        Err(why) => return println!("skipped: no loop device: {why}"),
    };
    let machine = SystemMounter::new();
    let target = device.dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let disk = &device.path;

    let before = machine.block_device(disk).await.unwrap();
    assert_eq!(before.size_bytes, 32 * MIB);
    assert_eq!(machine.inspect(disk).await.unwrap(), PathKind::BlockDevice(before.number));
    assert_eq!(machine.contents(disk).await.unwrap(), Contents::Blank);

    machine.format(disk, Filesystem::Ext4).await.unwrap();
    assert_eq!(machine.contents(disk).await.unwrap(), Contents::Filesystem("ext4".to_owned()));

    machine.mount(disk, &target, Filesystem::Ext4, &options(false)).await.unwrap();
    let [mount] = machine.mounts_at(&target).await.unwrap().try_into().unwrap();
    assert_eq!((mount.device, mount.filesystem.as_str(), mount.readonly), (before.number, "ext4", false));

    let small = machine.usage(&target).await.unwrap();
    machine.grow(disk, Filesystem::Ext4).await.unwrap();
    assert_eq!(machine.usage(&target).await.unwrap().total_bytes, small.total_bytes);
    device.grow(64 * MIB);
    match machine.grow(disk, Filesystem::Ext4).await {
        Ok(()) => {
            let large = machine.usage(&target).await.unwrap();
            assert!(large.total_bytes > small.total_bytes + 24 * MIB, "{small:?} {large:?}");
        }
        Err(error) if error.to_string().contains("Permission denied to resize") => {
            println!("skipped: growing needs CAP_SYS_RESOURCE");
        }
        Err(error) => panic!("{error}"),
    }

    machine.unmount(&target).await.unwrap();
    assert_eq!(machine.mounts_at(&target).await.unwrap(), []);
    machine.mount(disk, &target, Filesystem::Ext4, &options(true)).await.unwrap();
    assert!(machine.mounts_at(&target).await.unwrap().first().unwrap().readonly);
    machine.unmount(&target).await.unwrap();
}

#[tokio::test]
async fn a_real_device_is_bound_to_a_file() {
    let device = match LoopDevice::new() {
        Ok(device) if can_mount(device.dir.path()) => device,
        Ok(_) => return println!("skipped: this process may not mount"),
        Err(why) => return println!("skipped: no loop device: {why}"),
    };
    let machine = SystemMounter::new();
    let target = device.dir.path().join("target");
    std::fs::write(&target, "").unwrap();
    let number = machine.block_device(&device.path).await.unwrap().number;

    machine.bind(&device.path, &target).await.unwrap();
    assert_eq!(machine.inspect(&target).await.unwrap(), PathKind::BlockDevice(number));
    machine.make_readonly(&target).await.unwrap();
    let [mount] = machine.mounts_at(&target).await.unwrap().try_into().unwrap();
    assert!(mount.readonly);
    machine.unmount(&target).await.unwrap();
    assert_eq!(machine.inspect(&target).await.unwrap(), PathKind::Other);
}

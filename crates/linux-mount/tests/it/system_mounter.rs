//! The real machine: a sparse file behind a loop device, real programs and real mounts. Needs root and a loop device.

mod copies;
mod freeze;
mod holders;
mod repeated;

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use linux_mount::{
    Contents, DeviceUse, Filesystem, MkfsOptions, Mount, MountError, MountOptions, Mounter as _, PathKind,
    SystemMounter,
};
use rstest::rstest;
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A loop device over a sparse file.
struct LoopDevice {
    dir: TempDir,
    path: PathBuf,
}

impl LoopDevice {
    /// A device of so many bytes, or why there cannot be one.
    fn new(bytes: u64) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let sized = std::fs::File::create(dir.path().join("disk")).and_then(|disk| disk.set_len(bytes));
        sized.map_err(|error| error.to_string())?;
        Self::over(dir)
    }

    /// A second device with what is on this one.
    fn copy(&self) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        std::fs::copy(self.dir.path().join("disk"), dir.path().join("disk")).map_err(|error| error.to_string())?;
        Self::over(dir)
    }

    fn over(dir: TempDir) -> Result<Self, String> {
        let path = losetup(&["--find", "--show", &dir.path().join("disk").display().to_string()])?;
        std::fs::create_dir(dir.path().join("target")).map_err(|error| error.to_string())?;
        Ok(Self { path: path.trim().into(), dir })
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }

    fn disk(&self) -> std::fs::File {
        std::fs::OpenOptions::new().write(true).open(self.dir.path().join("disk")).unwrap()
    }

    fn grow(&self, bytes: u64) {
        self.disk().set_len(bytes).unwrap();
        losetup(&["--set-capacity", &self.path.display().to_string()]).unwrap();
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Only mounted when the test failed half-way
        let _ = rustix::mount::unmount(self.target(), UnmountFlags::empty());
        drop(losetup(&["--detach", &self.path.display().to_string()]));
    }
}

fn losetup(args: &[&str]) -> Result<String, String> {
    run("losetup", args)
}

#[expect(clippy::disallowed_methods, reason = "sets up the test's own device")]
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Also when a child that another test has just forked still has a file of ours open, which it has until it calls exec.
async fn unmount(machine: &SystemMounter, target: &Path) {
    let unmounting = async {
        while let Err(error) = machine.unmount(target).await {
            assert!(matches!(error, MountError::Busy { .. }), "{error}");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), unmounting).await.unwrap();
}

fn options(filesystem: Filesystem, readonly: bool) -> MountOptions {
    let options = MountOptions::parse(readonly, &["noatime"]).unwrap();
    filesystem.duplicate_uuid_option().map_or_else(|| options.clone(), |option| options.clone().with(option))
}

/// Returns the reason for which a test that needs a device with this filesystem cannot run here.
fn obstacle(device: &LoopDevice, filesystem: Filesystem) -> Option<String> {
    let there = device.dir.path().join("probe");
    std::fs::create_dir(&there).unwrap();
    let mounted = rustix::mount::mount("none", &there, "tmpfs", MountFlags::empty(), c"").is_ok();
    if !mounted || rustix::mount::unmount(&there, UnmountFlags::empty()).is_err() {
        return Some("this process may not mount".to_owned());
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap();
    if !known.split_whitespace().any(|word| word == filesystem.as_str()) {
        return Some(format!("this kernel has no {filesystem}"));
    }
    let mkfs = format!("mkfs.{filesystem}");
    let is_there = ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(&mkfs).exists());
    (!is_there).then(|| format!("{mkfs} is not installed"))
}

/// A device with room for the filesystem; `None`, and a line that says why, where there can be none.
#[expect(clippy::print_stdout, reason = "says why a test does nothing here")]
fn device_for(filesystem: Filesystem) -> Option<LoopDevice> {
    let mib = if filesystem == Filesystem::Ext4 { 32 } else { 320 };
    let device = LoopDevice::new(mib * MIB).map_err(|why| format!("no loop device: {why}"));
    match device.and_then(|device| obstacle(&device, filesystem).map_or(Ok(device), Err)) {
        Ok(device) => Some(device),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

#[rstest]
#[case(Filesystem::Ext4)]
#[case(Filesystem::Xfs)]
#[case(Filesystem::Btrfs)]
#[tokio::test]
async fn filesystem_is_formatted_mounted_grown_and_unmounted(#[case] filesystem: Filesystem) {
    let Some(device) = device_for(filesystem) else { return };
    let (machine, target, disk) = (SystemMounter::new(), device.target(), &device.path);
    let before = machine.block_device(disk).await.unwrap();
    assert_eq!(machine.inspect_path(disk).await.unwrap(), PathKind::BlockDevice(before.number));
    assert_eq!(machine.probe_contents(disk, None).await.unwrap(), Contents::Blank);

    let label = MkfsOptions::parse(filesystem.as_str(), "-L precious").unwrap();
    machine.format(disk, filesystem, &label).await.unwrap();
    assert_eq!(machine.probe_contents(disk, None).await.unwrap(), Contents::Filesystem(filesystem.to_string()));
    machine.check_filesystem(disk, filesystem).await.unwrap();

    machine.mount(disk, &target, filesystem, &options(filesystem, false)).await.unwrap();
    let [mount] = machine.mounts_at(&target).await.unwrap().try_into().unwrap();
    let expected = Mount {
        device: before.number,
        filesystem: filesystem.to_string(),
        readonly: false,
        filesystem_readonly: false,
    };
    assert_eq!(mount, expected);
    assert_eq!(
        machine.other_targets(before.number, Path::new("/elsewhere/target")).await.unwrap(),
        vec![target.clone()]
    );
    assert!(machine.other_targets(before.number, &target).await.unwrap().is_empty());

    let small = machine.filesystem_usage(&target).await.unwrap();
    machine.grow_filesystem(disk, &target, filesystem).await.unwrap();
    assert_eq!(machine.filesystem_usage(&target).await.unwrap().total_bytes, small.total_bytes);
    device.grow(before.size_bytes * 2);
    match machine.grow_filesystem(disk, &target, filesystem).await {
        Ok(()) => {
            let large = machine.filesystem_usage(&target).await.unwrap();
            assert!(large.total_bytes > small.total_bytes + before.size_bytes / 4 * 3, "{small:?} {large:?}");
        }
        Err(error) if error.to_string().contains("Permission denied to resize") => {
            println!("skipped: growing needs CAP_SYS_RESOURCE");
        }
        Err(error) => panic!("{error}"),
    }

    unmount(&machine, &target).await;
    assert_eq!(machine.mounts_at(&target).await.unwrap(), []);
    machine.mount(disk, &target, filesystem, &options(filesystem, true)).await.unwrap();
    let [mount] = machine.mounts_at(&target).await.unwrap().try_into().unwrap();
    assert!(mount.readonly && mount.filesystem_readonly);
    unmount(&machine, &target).await;
}

/// A file instead of a device, which is all the same to mkfs.
#[expect(clippy::disallowed_methods, reason = "looks at what was made")]
async fn format_file(filesystem: Filesystem, options: &str) -> Result<Contents, String> {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(512 * MIB).unwrap();
    let options = MkfsOptions::parse(filesystem.as_str(), options).map_err(|error| error.to_string())?;
    let machine = SystemMounter::new();
    machine.format(&disk, filesystem, &options).await.map_err(|error| error.to_string())?;
    let blkid = Command::new("blkid").args(["-p", "-o", "value", "-s", "TYPE"]).arg(&disk).output().unwrap();
    Ok(Contents::Filesystem(String::from_utf8(blkid.stdout).unwrap().trim().to_owned()))
}

#[rstest]
#[case(Filesystem::Ext4, "-m 0 -T largefile -q")]
#[case(Filesystem::Ext4, "-m0.5 -i 65536 -I 512 -b 4096 -v")]
#[case(Filesystem::Ext4, "-N 1000 -O ^has_journal,quota -K")]
#[case(Filesystem::Ext4, "-E lazy_itable_init=0,lazy_journal_init,nodiscard,stride=4,stripe_width=8 -e remount-ro")]
#[case(Filesystem::Ext4, "-E packed_meta_blocks=1,resize=1000000,quotatype=usrquota:grpquota")]
#[case(Filesystem::Ext4, "-E mmp_update_interval=10,num_backup_sb=1 -O mmp,sparse_super2")]
#[case(Filesystem::Ext4, "-E encoding=utf8,encoding_flags=strict -O casefold,encrypt,verity,project -I 256")]
#[case(Filesystem::Ext4, "-O bigalloc,inline_data,large_dir,ea_inode,stable_inodes -C 65536")]
#[case(Filesystem::Ext4, "-j -J size=8,location=0 -G 8 -g 8192 -L data-1 -U random")]
#[case(Filesystem::Ext4, "-U 0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a -O ext_attr,filetype,^resize_inode")]
#[case(Filesystem::Xfs, "-m reflink=0,crc=1,finobt=1,rmapbt=1,inobtcount=1,bigtime=1 -K -q")]
#[case(
    Filesystem::Xfs,
    "-i size=1024,maxpct=5,attr=2,projid32bit=1,sparse=1,nrext64=0 -n size=8192,version=ci -L data"
)]
#[case(Filesystem::Xfs, "-n ftype=1 -b size=4096 -s size=4096 -l internal,size=64m,version=2,su=4096,lazy-count=1")]
#[case(Filesystem::Xfs, "-d agcount=4,su=64k,sw=2 -m uuid=0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a")]
#[case(Filesystem::Xfs, "-d agsize=128m,noalign,extszinherit=4,projinherit=1 -l agnum=1 -m crc=0,finobt=0,reflink=0")]
#[case(Filesystem::Btrfs, "-m dup -d single -n 16k -s 4096 -K -q")]
#[case(Filesystem::Btrfs, "--metadata=single --csum xxhash -L data --nodesize 32k -v")]
#[case(Filesystem::Btrfs, "-M -O ^no-holes,extref -R free-space-tree --checksum=sha256")]
#[tokio::test]
async fn mkfs_takes_every_option_that_is_allowed(#[case] filesystem: Filesystem, #[case] options: &str) {
    let made = format_file(filesystem, options).await;
    assert_eq!(made, Ok(Contents::Filesystem(filesystem.to_string())));
}

#[tokio::test]
async fn data_without_a_signature_is_not_a_blank_device() {
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let (machine, disk) = (SystemMounter::new(), &device.path);
    let raw = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
    let end = machine.block_device(disk).await.unwrap().size_bytes - 1;
    for offset in [0, end] {
        raw.write_all_at(b"x", offset).unwrap();
        assert_eq!(machine.probe_contents(disk, None).await.unwrap(), Contents::Unrecognized);
        raw.write_all_at(&[0], offset).unwrap();
        assert_eq!(machine.probe_contents(disk, None).await.unwrap(), Contents::Blank);
    }
}

/// Writes bytes to a device and flushes them.
fn put(device: &Path, offset: u64, bytes: &[u8]) {
    let raw = std::fs::OpenOptions::new().write(true).open(device).unwrap();
    raw.write_all_at(bytes, offset).unwrap();
    raw.sync_all().unwrap();
}

/// A superblock of the Disk Data Format: its magic number in the last sector, and its version.
fn plant_ddf(device: &Path, bytes: u64) {
    put(device, bytes - 512, &[0xde, 0x11, 0xde, 0x11]);
    put(device, bytes - 512 + 32, b"01.00.00");
}

/// The superblock of a `HighPoint` 45x controller.
fn plant_hpt45x(device: &Path, bytes: u64) {
    put(device, bytes - 11 * 512, &[0xfd, 0x16, 0x78, 0x5a]);
}

/// An `md` superblock, version 1.0, which says itself in which sector it lies.
fn plant_md(device: &Path, bytes: u64) {
    let sector = (bytes / 512 - 16) / 8 * 8;
    put(device, sector * 512, &[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
    put(device, sector * 512 + 144, &sector.to_le_bytes());
}

/// Writes what makes a device of so many bytes look like something.
type Plant = fn(&Path, u64);

/// Writers of bytes at the end of a device that make it look like a member of a RAID.
const RAIDS: [(&str, Plant); 3] = [("ddf", plant_ddf), ("hpt45x", plant_hpt45x), ("md", plant_md)];

/// A file can hold any bytes, and those at the end of the device can look like a member of a RAID.
#[rstest]
#[case(Filesystem::Ext4)]
#[case(Filesystem::Xfs)]
#[case(Filesystem::Btrfs)]
#[tokio::test]
async fn a_filesystem_is_found_whatever_its_files_look_like(#[case] filesystem: Filesystem) {
    let Some(device) = device_for(filesystem) else { return };
    let (machine, disk) = (SystemMounter::new(), &device.path);
    let end = machine.block_device(disk).await.unwrap().size_bytes;
    machine.format(disk, filesystem, &MkfsOptions::default()).await.unwrap();
    let whole = Contents::Filesystem(filesystem.to_string());
    let raid = |found: Contents| matches!(found, Contents::Other(found) if found.ends_with("_raid_member"));
    for (name, plant) in RAIDS {
        plant(disk, end);
        for recorded in [None, Some(filesystem)] {
            assert_eq!(machine.probe_contents(disk, recorded).await.unwrap(), whole, "{name}");
        }
        // On a device without a filesystem it says whose the device is
        let blank = LoopDevice::new(end).unwrap();
        plant(&blank.path, end);
        let found = machine.probe_contents(&blank.path, None).await.unwrap();
        assert!(raid(found.clone()), "{name}: {found:?}");
        put(disk, end - 16 * 1024, &vec![0; 16 * 1024]);
    }
}

/// Within an ext4 there are files where other filesystems have their superblock.
#[tokio::test]
async fn recorded_filesystem_is_found_despite_a_foreign_superblock() {
    const BTRFS: u64 = 64 << 10;
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let Some(other) = device_for(Filesystem::Btrfs) else { return };
    let (machine, disk) = (SystemMounter::new(), &device.path);
    machine.format(disk, Filesystem::Ext4, &MkfsOptions::default()).await.unwrap();
    machine.format(&other.path, Filesystem::Btrfs, &MkfsOptions::default()).await.unwrap();
    let mut superblock = [0; 4096];
    std::fs::File::open(&other.path).unwrap().read_exact_at(&mut superblock, BTRFS).unwrap();
    put(disk, BTRFS, &superblock);
    let found = machine.probe_contents(disk, None).await.unwrap();
    assert!(matches!(found, Contents::Other(_)), "two filesystems are possible: {found:?}");
    let recorded = machine.probe_contents(disk, Some(Filesystem::Ext4)).await.unwrap();
    assert_eq!(recorded, Contents::Filesystem("ext4".to_owned()));
    // What the record says need not be there
    put(disk, 0, &[0; 4096]);
    let found = machine.probe_contents(disk, Some(Filesystem::Ext4)).await.unwrap();
    assert_eq!(found, Contents::Filesystem("btrfs".to_owned()));
}

/// mkfs.xfs writes the superblock first, with a flag that it takes away at its end. No kernel mounts what has it.
#[tokio::test]
async fn an_xfs_whose_mkfs_was_broken_off_is_blank() {
    const IN_PROGRESS: u64 = 126;
    let Some(device) = device_for(Filesystem::Xfs) else { return };
    let (machine, disk) = (SystemMounter::new(), &device.path);
    machine.format(disk, Filesystem::Xfs, &MkfsOptions::default()).await.unwrap();
    let raw = std::fs::OpenOptions::new().write(true).open(disk).unwrap();
    raw.write_all_at(&[1], IN_PROGRESS).unwrap();
    raw.sync_all().unwrap();
    let mounted = machine.mount(disk, &device.target(), Filesystem::Xfs, &options(Filesystem::Xfs, false)).await;
    assert!(mounted.is_err());
    assert_eq!(machine.probe_contents(disk, None).await.unwrap(), Contents::Blank);
    machine.format(disk, Filesystem::Xfs, &MkfsOptions::default()).await.unwrap();
    assert_eq!(machine.probe_contents(disk, None).await.unwrap(), Contents::Filesystem("xfs".to_owned()));
}

#[rstest]
#[case(Filesystem::Ext4, 1024 + 0x68, 8)]
#[case(Filesystem::Xfs, 64, 4)]
#[case(Filesystem::Btrfs, (64 << 10) + 0x50, 8)]
#[tokio::test]
async fn a_damaged_filesystem_is_not_mounted(
    #[case] filesystem: Filesystem,
    #[case] offset: u64,
    #[case] length: usize,
) {
    use std::os::unix::fs::FileExt as _;

    let Some(device) = device_for(filesystem) else { return };
    let machine = SystemMounter::new();
    machine.format(&device.path, filesystem, &MkfsOptions::default()).await.unwrap();
    // Through the device, which stays: its number would be another test's at once
    let written = std::fs::OpenOptions::new().write(true).open(&device.path).unwrap();
    written.write_all_at(&vec![0xa5; length], offset).unwrap();
    written.sync_all().unwrap();
    drop(written);

    let checked = machine.check_filesystem(&device.path, filesystem).await;
    let mounted = match checked {
        Ok(()) => machine.mount(&device.path, &device.target(), filesystem, &options(filesystem, false)).await,
        error => error,
    };
    let error = mounted.unwrap_err();
    let says_so = ["damaged", "checksum"].iter().any(|word| error.to_string().contains(word));
    assert!(says_so, "{error}");
}

#[tokio::test]
async fn unclean_ext4_is_repaired_and_keeps_its_files() {
    let Some(source) = device_for(Filesystem::Ext4) else { return };
    let machine = SystemMounter::new();
    machine.format(&source.path, Filesystem::Ext4, &MkfsOptions::default()).await.unwrap();
    machine.mount(&source.path, &source.target(), Filesystem::Ext4, &options(Filesystem::Ext4, false)).await.unwrap();
    std::fs::write(source.target().join("file"), "text").unwrap();
    rustix::fs::sync();
    let copy = source.copy().unwrap();
    unmount(&machine, &source.target()).await;

    machine.check_filesystem(&copy.path, Filesystem::Ext4).await.unwrap();
    machine.mount(&copy.path, &copy.target(), Filesystem::Ext4, &options(Filesystem::Ext4, false)).await.unwrap();
    assert_eq!(std::fs::read_to_string(copy.target().join("file")).unwrap(), "text");
    unmount(&machine, &copy.target()).await;
}

#[tokio::test]
async fn a_mounted_filesystem_is_bound_for_reading_beside_its_writer() {
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let machine = SystemMounter::new();
    let second = device.dir.path().join("second");
    std::fs::create_dir(&second).unwrap();
    machine.format(&device.path, Filesystem::Ext4, &MkfsOptions::default()).await.unwrap();
    machine.mount(&device.path, &device.target(), Filesystem::Ext4, &options(Filesystem::Ext4, false)).await.unwrap();
    machine.bind(&device.target(), &second).await.unwrap();
    machine.make_readonly(&second, &options(Filesystem::Ext4, true)).await.unwrap();
    let [reader] = machine.mounts_at(&second).await.unwrap().try_into().unwrap();
    assert_eq!((reader.readonly, reader.filesystem_readonly), (true, false));
    std::fs::write(second.join("file"), "text").unwrap_err();
    std::fs::write(device.target().join("file"), "text").unwrap();
    unmount(&machine, &second).await;
    unmount(&machine, &device.target()).await;
}

#[tokio::test]
async fn a_real_device_is_bound_to_a_file() {
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let machine = SystemMounter::new();
    let target = device.dir.path().join("file");
    std::fs::write(&target, "").unwrap();
    let number = machine.block_device(&device.path).await.unwrap().number;

    machine.bind(&device.path, &target).await.unwrap();
    assert_eq!(machine.inspect_path(&target).await.unwrap(), PathKind::BlockDevice(number));
    machine.make_readonly(&target, &MountOptions::default()).await.unwrap();
    let [mount] = machine.mounts_at(&target).await.unwrap().try_into().unwrap();
    assert!(mount.readonly);
    let elsewhere = Path::new("/elsewhere/file");
    assert_eq!(machine.other_targets(number, elsewhere).await.unwrap(), vec![target.clone()]);
    unmount(&machine, &target).await;
    assert_eq!(machine.inspect_path(&target).await.unwrap(), PathKind::Other);
}

/// A process with mounts of its own, as a container has them, that ends with its standard input.
fn container(script: &str) -> std::process::Child {
    process(&["unshare", "--mount", "sh", "-c"], script)
}

/// A process that ends with its standard input, after it has run a script in this shell.
#[expect(clippy::disallowed_methods, reason = "stands for other programs of the node")]
fn process(shell: &[&str], script: &str) -> std::process::Child {
    use std::io::Read as _;
    use std::process::Stdio;

    let script = format!("{script} && echo && exec cat");
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(&script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut ready = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    child
}

#[tokio::test]
async fn device_is_in_use_while_bind_mounted_or_in_a_container() {
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let machine = SystemMounter::new();
    let number = machine.block_device(&device.path).await.unwrap().number;
    let uses = async || machine.find_device_uses(number, &device.path).await.unwrap();
    assert_eq!(uses().await, []);

    let target = device.dir.path().join("file");
    std::fs::write(&target, "").unwrap();
    machine.bind(&device.path, &target).await.unwrap();
    assert!(uses().await.contains(&DeviceUse::Mounted(target.clone())));
    unmount(&machine, &target).await;

    // What sees the devices of the machine, as other programs of the node do, keeps none
    let mut privileged = container("true");
    assert_eq!(uses().await, []);
    let node = format!("mknod /dev/disks/xvda b {} {}", number.major, number.minor);
    let mut pod = container(&format!("mount -t tmpfs none /dev && mkdir /dev/disks && {node}"));
    let found = uses().await;
    let [DeviceUse::Container { path, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(path, Path::new("/dev/disks/xvda"));
    for child in [&mut pod, &mut privileged] {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    assert_eq!(uses().await, []);
}

#[tokio::test]
async fn open_device_refuses_a_link_that_changed_or_is_gone() {
    let (Some(device), Some(other)) = (device_for(Filesystem::Ext4), device_for(Filesystem::Ext4)) else { return };
    let machine = SystemMounter::new();
    let link = device.dir.path().join("link");
    std::os::unix::fs::symlink(&device.path, &link).unwrap();
    let number = machine.block_device(&link).await.unwrap().number;
    let held = machine.open_device(&link, number).await.unwrap();
    assert_eq!((&held.node, held.device.number), (&device.path, number));
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&other.path, &link).unwrap();
    let error = machine.open_device(&link, number).await.unwrap_err();
    assert!(matches!(error, MountError::WrongDevice { .. }), "{error}");
    std::fs::remove_file(&link).unwrap();
    assert!(matches!(machine.open_device(&link, number).await, Err(MountError::NoDevice(_))));
}

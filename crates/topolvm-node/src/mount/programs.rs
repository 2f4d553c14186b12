//! Which program does what for which filesystem, and how long it may take.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use super::tools::{Tool, failure};
use super::{Error, MkfsOptions};
use crate::Filesystem;

/// All that may be started. `btrfstune` and `btrfs` come with mkfs.btrfs, `xfs_growfs` with mkfs.xfs.
pub(super) const PROGRAMS: [&str; 10] = [
    "blkid",
    "wipefs",
    "mkfs.ext4",
    "e2fsck",
    "resize2fs",
    "mkfs.xfs",
    "xfs_growfs",
    "mkfs.btrfs",
    "btrfs",
    "btrfstune",
];

const LOOK: Duration = Duration::from_secs(30);
/// mkfs discards the whole device first, and growing writes a bitmap per 128 MiB.
const WRITE: Duration = Duration::from_mins(10);
/// A filesystem on which the kernel has found an error is read as a whole.
const CHECK: Duration = Duration::from_mins(30);

/// Exit status of e2fsck(8): bits that say that errors were found, and repaired.
const E2FSCK_REPAIRED: i32 = 1 | 2;
/// The bit for errors that are left.
const E2FSCK_DAMAGED: i32 = 4;

/// Says what lies on a device.
pub(super) fn look(device: &Path) -> Tool {
    Tool::new("blkid", LOOK, &["-p", "-o", "export"], device)
}

/// Says which filesystem lies on a device, and takes no signature of RAID, swap or encryption for one: files can look
/// like those, above all near the end of the device.
pub(super) fn look_for_filesystems(device: &Path) -> Tool {
    Tool::new("blkid", LOOK, &["-p", "-u", "filesystem", "-o", "export"], device)
}

/// Says whether this filesystem lies on a device, whatever else can be seen there.
pub(super) fn look_for(device: &Path, filesystem: Filesystem) -> Tool {
    Tool::new("blkid", LOOK, &["-p", "-n", filesystem.as_str(), "-o", "export"], device)
}

/// Removes all signatures.
pub(super) fn wipe(device: &Path) -> Tool {
    Tool::new("wipefs", LOOK, &["-a"], device)
}

/// Makes a filesystem. Only mkfs.ext4 would ask back; the others refuse a device that holds something, as they should.
pub(super) fn make(device: &Path, filesystem: Filesystem, options: &MkfsOptions) -> Tool {
    let (program, own): (_, &[&str]) = match filesystem {
        // No blocks are kept for root: the volume is for one application
        Filesystem::Ext4 => ("mkfs.ext4", &["-F", "-m0"]),
        Filesystem::Xfs => ("mkfs.xfs", &[]),
        Filesystem::Btrfs => ("mkfs.btrfs", &[]),
    };
    let args: Vec<&str> = own.iter().copied().chain(options.as_slice().iter().map(String::as_str)).collect();
    Tool::new(program, WRITE, &args, device)
}

/// Checks a filesystem that is not mounted. xfs and btrfs check themselves when they are mounted; their own programs are
/// for damage that the kernel has found.
pub(super) fn check(device: &Path, filesystem: Filesystem) -> Option<Tool> {
    match filesystem {
        Filesystem::Ext4 => Some(Tool::new("e2fsck", CHECK, &["-p"], device)),
        Filesystem::Xfs | Filesystem::Btrfs => None,
    }
}

/// What the check has found.
pub(super) fn verdict(tool: &Tool, output: &Output, device: &Path, filesystem: Filesystem) -> Result<(), Error> {
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) if code & !E2FSCK_REPAIRED == 0 => {
            let report = report(output);
            tracing::warn!(device = %device.display(), report, "the check has repaired the filesystem");
            Ok(())
        }
        Some(code) if code & E2FSCK_DAMAGED != 0 => {
            Err(Error::Damaged { device: device.to_owned(), filesystem, report: report(output) })
        }
        _ => Err(failure(tool, output)),
    }
}

/// The last words of a program, in one line.
fn report(output: &Output) -> String {
    const LINES: usize = 4;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join(" / ")
}

/// What a person does about a damaged filesystem.
pub(super) const fn repair_hint(filesystem: Filesystem) -> &'static str {
    match filesystem {
        Filesystem::Ext4 => "repair it on the node with e2fsck -f, or restore the volume from a copy",
        Filesystem::Xfs => "repair it on the node with xfs_repair, or restore the volume from a copy",
        Filesystem::Btrfs => {
            "look at it on the node with btrfs check, mount it with -o rescue=all to save data, or restore the volume from a copy"
        }
    }
}

/// What a person does about a filesystem whose signature is gone.
pub(crate) const fn recovery_hint(filesystem: Filesystem) -> &'static str {
    match filesystem {
        Filesystem::Ext4 => {
            "e2fsck -b 32768 -B 4096, or -b 8193 -B 1024 for a small one, uses a backup of its superblock"
        }
        Filesystem::Xfs => "xfs_repair looks for a backup of its superblock",
        Filesystem::Btrfs => "btrfs rescue super-recover uses a backup of its superblock",
    }
}

/// Gives a btrfs another UUID, in its superblock only, which takes no time.
pub(super) fn change_btrfs_id(device: &Path, id: &str) -> Tool {
    Tool::new("btrfstune", LOOK, &["-f", "-M", id], device)
}

/// Has the kernel forget which btrfs it has seen on a device that is not mounted. It fails where the kernel has seen none.
pub(super) fn forget_btrfs(device: &Path) -> Tool {
    Tool::new("btrfs", LOOK, &["device", "scan", "--forget"], device)
}

/// Grows a mounted filesystem to the size of its device.
pub(super) fn grow(device: &Path, target: &Path, filesystem: Filesystem) -> Tool {
    match filesystem {
        Filesystem::Ext4 => Tool::new("resize2fs", WRITE, &[], device),
        Filesystem::Xfs => Tool::new("xfs_growfs", WRITE, &["-d"], target),
        Filesystem::Btrfs => Tool::new("btrfs", WRITE, &["filesystem", "resize", "max"], target),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use rstest::rstest;

    use super::*;

    fn e2fsck(code: i32) -> Result<(), Error> {
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: b"/dev/x: recovering journal\n\n/dev/x: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.\n".into(),
            stderr: Vec::new(),
        };
        let device = Path::new("/dev/x");
        verdict(&check(device, Filesystem::Ext4).unwrap(), &output, device, Filesystem::Ext4)
    }

    #[rstest]
    #[case::clean(0)]
    #[case::repaired(1)]
    #[case::repaired_and_wants_a_reboot(3)]
    fn what_the_check_repairs_is_mounted(#[case] code: i32) {
        e2fsck(code).unwrap();
    }

    #[rstest]
    #[case(4)]
    #[case(4 | 1)]
    #[case(4 | 8)]
    fn what_the_check_cannot_repair_is_damaged_and_the_message_names_the_remedy(#[case] code: i32) {
        let error = e2fsck(code).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        let expected = "the ext4 filesystem on /dev/x is damaged and is not mounted: /dev/x: recovering journal / \
                        /dev/x: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.; repair it on the node with e2fsck -f, or \
                        restore the volume from a copy";
        assert_eq!(error.to_string(), expected);
    }

    #[rstest]
    #[case::operational_error(8)]
    #[case::cancelled(32)]
    fn a_check_that_did_not_work_is_no_verdict(#[case] code: i32) {
        let error = e2fsck(code).unwrap_err();
        assert!(matches!(error, Error::Failed { .. }), "{error}");
    }

    #[rstest]
    #[case(Filesystem::Ext4, "mkfs.ext4 -F -m0 -L a /dev/x")]
    #[case(Filesystem::Xfs, "mkfs.xfs -L a /dev/x")]
    #[case(Filesystem::Btrfs, "mkfs.btrfs -L a /dev/x")]
    fn options_come_before_the_device(#[case] filesystem: Filesystem, #[case] expected: &str) {
        let options = MkfsOptions::parse(filesystem.as_str(), "-L a").unwrap();
        assert_eq!(make(Path::new("/dev/x"), filesystem, &options).to_string(), expected);
    }
}

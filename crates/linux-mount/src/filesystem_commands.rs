//! Command lines of blkid, wipefs, mkfs, e2fsck and the programs that grow a filesystem, with their deadlines.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use super::command::{CommandLine, failed_command};
use super::{MkfsOptions, MountError};
use crate::Filesystem;

/// Programs that are run. `btrfstune` and `btrfs` come with mkfs.btrfs, `xfs_growfs` with mkfs.xfs.
pub(crate) const PROGRAMS: [&str; 12] = [
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
    "fstrim",
    "fsfreeze",
];

/// Deadline of a command that reads or writes a superblock.
const SHORT: Duration = Duration::from_secs(30);
/// Deadline of a thaw, which writes little, and for which an unmount waits.
const THAW: Duration = Duration::from_secs(10);
/// Deadline of mkfs, which may discard the whole device first, and of growing, which writes a bitmap per 128 MiB.
const LONG: Duration = Duration::from_mins(10);
/// Deadline of discarding all free blocks, which runs in the background.
const DISCARD: Duration = Duration::from_hours(1);
/// Deadline of a check. A filesystem on which the kernel has found an error is read as a whole.
const CHECK: Duration = Duration::from_mins(30);

/// Exit status of e2fsck(8): bits of errors that were repaired.
const E2FSCK_REPAIRED: i32 = 1 | 2;
/// Exit status of e2fsck(8): bit of errors that are left.
const E2FSCK_DAMAGED: i32 = 4;

/// Prints the signature on a device.
pub(crate) fn blkid(device: &Path) -> CommandLine {
    CommandLine::new("blkid", SHORT, &["-p", "-o", "export"], device)
}

/// Prints the filesystem on a device, and no signature of RAID, swap or encryption: files can resemble those, above all
/// near the end of the device.
pub(crate) fn blkid_filesystems(device: &Path) -> CommandLine {
    CommandLine::new("blkid", SHORT, &["-p", "-u", "filesystem", "-o", "export"], device)
}

/// Prints the filesystem of this type on a device, whatever other signatures there are.
pub(crate) fn blkid_type(device: &Path, filesystem: Filesystem) -> CommandLine {
    CommandLine::new("blkid", SHORT, &["-p", "-n", filesystem.as_str(), "-o", "export"], device)
}

/// Removes all signatures from a device.
pub(crate) fn wipefs(device: &Path) -> CommandLine {
    CommandLine::new("wipefs", SHORT, &["-a"], device)
}

/// Makes a filesystem. Only mkfs.ext4 would ask back; the others refuse a device that holds something, as they
/// should.
pub(crate) fn mkfs(device: &Path, filesystem: Filesystem, options: &MkfsOptions) -> CommandLine {
    let (program, own): (_, &[&str]) = match filesystem {
        // No blocks are kept for root: the volume is for one application
        Filesystem::Ext4 => ("mkfs.ext4", &["-F", "-m0"]),
        Filesystem::Xfs => ("mkfs.xfs", &[]),
        Filesystem::Btrfs => ("mkfs.btrfs", &[]),
    };
    let own = own.iter().chain(nodiscard_options(filesystem, options)).copied();
    let args: Vec<&str> = own.chain(options.as_slice().iter().map(String::as_str)).collect();
    CommandLine::new(program, LONG, &args, device)
}

/// Returns the options with which mkfs does not discard the device first; none if those of the StorageClass may set it.
fn nodiscard_options(filesystem: Filesystem, options: &MkfsOptions) -> &'static [&'static str] {
    let (theirs, own): (&[&str], &[&str]) = match filesystem {
        // mke2fs(8): of several -E the last one counts
        Filesystem::Ext4 => (&["-E", "-K"], &["-E", "nodiscard"]),
        Filesystem::Xfs => (&["-K"], &["-K"]),
        Filesystem::Btrfs => (&["-K", "--nodiscard"], &["-K"]),
    };
    if options.as_slice().iter().any(|option| theirs.contains(&option.as_str())) { &[] } else { own }
}

/// Returns whether mkfs with these options leaves it to fstrim to discard free blocks.
pub fn leaves_discard(filesystem: Filesystem, options: &MkfsOptions) -> bool {
    !nodiscard_options(filesystem, options).is_empty()
}

/// Discards the free blocks of a mounted filesystem. That a device cannot discard is no failure.
pub(crate) fn fstrim(target: &Path) -> CommandLine {
    CommandLine::new("fstrim", DISCARD, &["--quiet-unsupported"], target)
}

/// Thaws the filesystem that is mounted at a path.
pub(crate) fn thaw(target: &Path) -> CommandLine {
    CommandLine::new("fsfreeze", THAW, &["--unfreeze"], target)
}

/// Returns whether a filesystem was frozen that [`thaw`] was run on: the kernel returns EINVAL (`FITHAW`) for one that
/// is not frozen, and EOPNOTSUPP for one that cannot be.
pub(crate) fn check_thaw_output(command: &CommandLine, output: &Output) -> Result<bool, MountError> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(true)
    } else if stderr.contains("Invalid argument") || stderr.contains("Operation not supported") {
        Ok(false)
    } else {
        Err(failed_command(command, output))
    }
}

/// Checks and repairs a filesystem that is not mounted. xfs and btrfs check themselves when they are mounted; their
/// own programs are for damage that the kernel has found.
pub(crate) fn fsck(device: &Path, filesystem: Filesystem) -> Option<CommandLine> {
    match filesystem {
        Filesystem::Ext4 => Some(CommandLine::new("e2fsck", CHECK, &["-p"], device)),
        Filesystem::Xfs | Filesystem::Btrfs => None,
    }
}

/// Turns the exit status of a check into a result: [`MountError::Damaged`] for errors that are left.
pub(crate) fn check_fsck_output(
    command: &CommandLine,
    output: &Output,
    device: &Path,
    filesystem: Filesystem,
) -> Result<(), MountError> {
    match output.status.code() {
        Some(0) => Ok(()),
        Some(code) if code & !E2FSCK_REPAIRED == 0 => {
            let report = last_lines(output);
            tracing::warn!(device = %device.display(), report, "the check repaired the filesystem");
            Ok(())
        }
        Some(code) if code & E2FSCK_DAMAGED != 0 => {
            Err(MountError::Damaged { device: device.to_owned(), filesystem, report: last_lines(output) })
        }
        _ => Err(failed_command(command, output)),
    }
}

/// Returns the last lines that a program printed, as one line.
fn last_lines(output: &Output) -> String {
    const LINES: usize = 4;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join(" / ")
}

/// Changes the UUID of a btrfs, in its superblock only, which takes no time.
pub(crate) fn set_btrfs_uuid(device: &Path, id: &str) -> CommandLine {
    CommandLine::new("btrfstune", SHORT, &["-f", "-M", id], device)
}

/// Has the kernel forget the btrfs that it has seen on a device that is not mounted. Fails if it has seen none.
pub(crate) fn forget_btrfs_device(device: &Path) -> CommandLine {
    CommandLine::new("btrfs", SHORT, &["device", "scan", "--forget"], device)
}

/// Grows a mounted filesystem to the size of its device.
pub(crate) fn grow(device: &Path, target: &Path, filesystem: Filesystem) -> CommandLine {
    match filesystem {
        Filesystem::Ext4 => CommandLine::new("resize2fs", LONG, &[], device),
        Filesystem::Xfs => CommandLine::new("xfs_growfs", LONG, &["-d"], target),
        Filesystem::Btrfs => CommandLine::new("btrfs", LONG, &["filesystem", "resize", "max"], target),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use rstest::rstest;

    use super::*;

    fn e2fsck(code: i32) -> Result<(), MountError> {
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: b"/dev/x: recovering journal\n\n/dev/x: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.\n".into(),
            stderr: Vec::new(),
        };
        let device = Path::new("/dev/x");
        check_fsck_output(&fsck(device, Filesystem::Ext4).unwrap(), &output, device, Filesystem::Ext4)
    }

    #[rstest]
    #[case::clean(0)]
    #[case::repaired(1)]
    #[case::repaired_and_wants_a_reboot(3)]
    fn a_filesystem_that_the_check_repairs_is_mounted(#[case] code: i32) {
        e2fsck(code).unwrap();
    }

    #[rstest]
    #[case(4)]
    #[case(4 | 1)]
    #[case(4 | 8)]
    fn ext4_damage_that_e2fsck_cannot_repair_is_an_error_with_a_fix(#[case] code: i32) {
        let error = e2fsck(code).unwrap_err();
        assert!(matches!(error, MountError::Damaged { .. }), "{error}");
        let expected = "the ext4 filesystem on /dev/x is damaged and is not mounted: /dev/x: recovering journal / \
                        /dev/x: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.; repair it on the node with e2fsck -f, or \
                        restore the volume from a backup";
        assert_eq!(error.to_string(), expected);
    }

    #[rstest]
    #[case::operational_error(8)]
    #[case::cancelled(32)]
    fn a_check_that_could_not_run_reports_no_damage(#[case] code: i32) {
        let error = e2fsck(code).unwrap_err();
        assert!(matches!(error, MountError::Failed { .. }), "{error}");
    }

    #[rstest]
    #[case(Filesystem::Ext4, "mkfs.ext4 -F -m0 -E nodiscard -L a /dev/x")]
    #[case(Filesystem::Xfs, "mkfs.xfs -K -L a /dev/x")]
    #[case(Filesystem::Btrfs, "mkfs.btrfs -K -L a /dev/x")]
    fn options_come_before_the_device(#[case] filesystem: Filesystem, #[case] expected: &str) {
        let options = MkfsOptions::parse(filesystem.as_str(), "-L a").unwrap();
        assert_eq!(mkfs(Path::new("/dev/x"), filesystem, &options).to_string(), expected);
        assert!(leaves_discard(filesystem, &options));
    }

    #[rstest]
    #[case(Filesystem::Ext4, "-E stride=16", "mkfs.ext4 -F -m0 -E stride=16 /dev/x")]
    #[case(Filesystem::Xfs, "-K", "mkfs.xfs -K /dev/x")]
    #[case(Filesystem::Btrfs, "-K", "mkfs.btrfs -K /dev/x")]
    fn options_of_the_storage_class_decide_what_is_discarded(
        #[case] filesystem: Filesystem,
        #[case] theirs: &str,
        #[case] expected: &str,
    ) {
        let options = MkfsOptions::parse(filesystem.as_str(), theirs).unwrap();
        assert_eq!(mkfs(Path::new("/dev/x"), filesystem, &options).to_string(), expected);
        assert!(!leaves_discard(filesystem, &options));
    }
}

//! Freezes filesystems from a process that outlives lvmd and its container, because a process that writes to a frozen
//! filesystem waits.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::{SHELL, SystemRunner};
use crate::freeze::DONE;
use crate::{Output, RunError};

/// Freezes the filesystems on devices, prints a line, and thaws them when its input ends or the time is over.
/// Arguments: the time limit in seconds, the input after which nothing was written too early, and the devices.
///
/// A mount point may be hidden by another mount, whose filesystem must not be frozen. btrfs has a device number of its
/// own. A directory whose name findmnt escapes is passed over. Filesystems that another program has frozen are not
/// thawed: freezing them fails. All mounts are found before the first filesystem is frozen, and checked again right
/// before, because `fsfreeze` would freeze what is below a mount point that is not one any more.
const SCRIPT: &str = r#"set -f; limit=$1 done=$2; shift 2
end=$(($(date +%s) + limit)) mounts= frozen= closed= status=0
left() { echo $((end > $(date +%s) ? end - $(date +%s) : 1)); }
is_closed() { [ "$(dmsetup info -c --noheadings -o open "$1")" = 0 ]; }
is_mounted() { [ "$(findmnt -nro ID -T "${1#*:}")" = "${1%%:*}" ]; }
find_mount() {
    number=$(dmsetup info -c --noheadings --separator : -o major,minor "$1")
    { findmnt -nro ID,TARGET -S "$number"; findmnt -nro ID,TARGET -S "/dev/mapper/$1"; } |
        while read -r id directory; do
            case $directory in *\\*) continue ;; esac
            is_mounted "$id:$directory" || continue
            echo "$id:$directory"
            break
        done
}
for name; do
    mount=$(find_mount "$name")
    if [ -n "$mount" ]; then
        mounts="$mounts $mount"
    elif is_closed "$name"; then
        closed="$closed $name"
    else
        echo "$name is in use, and its filesystem is not mounted on the host: it is a raw block volume" >&2
        exit 1
    fi
done
for mount in $mounts; do
    directory=${mount#*:}
    if is_mounted "$mount"; then
        timeout "$(left)" fsfreeze --freeze "$directory"
        case $? in
            0) frozen="$directory $frozen" ;;
            124) frozen="$directory $frozen" status=1; echo "freezing $directory did not end in $limit s" >&2 ;;
            *) status=1 ;;
        esac
    else
        echo "$directory was unmounted meanwhile" >&2
        status=1
    fi
    [ "$status" = 0 ] || break
done
if [ "$status" = 0 ]; then
    echo frozen
    [ "$(timeout "$(left)" cat)" = "$done" ] || status=1
    for name in $closed; do is_closed "$name" || status=1; done
fi
for directory in $frozen; do fsfreeze --unfreeze "$directory" || status=1; done
exit "$status""#;

/// Timeout for the start of the process, and for finding the mounts.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Freezes filesystems; see [`CommandRunner::freeze`](crate::CommandRunner::freeze).
pub(super) async fn freeze(
    runner: &SystemRunner,
    devices: &[String],
    limit: Duration,
) -> Result<Result<crate::Freeze, Output>, RunError> {
    let script = ["-c", SCRIPT, "freeze", &limit.as_secs().to_string(), DONE].map(str::to_owned);
    // The shell takes the place of LVM in the prefix, to run where LVM runs
    let (program, before) = match runner.prefix.split_last() {
        Some((_lvm, between)) => (runner.program.as_path(), [between, &[SHELL.to_owned()]].concat()),
        None => (Path::new(SHELL), Vec::new()),
    };
    let words: Vec<_> = before.into_iter().chain(script).chain(devices.iter().cloned()).collect();
    let mut child = runner.spawn_detached(program, &words, Stdio::piped())?;
    let (Some(stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Ok(Err(Output::default()));
    };
    // The line, or the end when what was frozen is thawed again
    let mut line = [0; 16];
    let Ok(read) = timeout(limit + START_TIMEOUT, stdout.read(&mut line)).await else {
        // Without its input it thaws at once
        let stderr = "the programs that freeze did not end in time".to_owned();
        return Ok(Err(Output { stderr, ..Output::default() }));
    };
    if read.map_err(RunError::Read)? > 0 {
        return Ok(Ok(crate::Freeze::of_process(child, stdin)));
    }
    drop(stdin);
    let ended = child.wait_with_output().await.map_err(RunError::Read)?;
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    Ok(Err(Output { code: ended.status.code(), stdout: Vec::new(), stderr, processes: 1 }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rstest::rstest;
    use tempfile::TempDir;

    use super::*;

    /// Programs of a machine with `vg-a` and `vg-b` mounted at `/a` and `/b`, and `vg-c`, which is not in use. A mount
    /// at `/hidden` is below another one. They write to the file `calls`.
    const PROGRAMS: [(&str, &str); 3] = [
        (
            "dmsetup",
            r#"case "$*" in
*"-o open vg-c") cat "${0%/*}/opened" 2>/dev/null || echo 0 ;;
*"-o open "*) echo 1 ;;
*" vg-a") echo 254:1 ;;
*" vg-b") echo 254:2 ;;
*) echo 254:3 ;;
esac"#,
        ),
        (
            "findmnt",
            r#"case "$*" in
*"-S 254:1") echo 10 /hidden; echo 11 /a ;;
*"-S /dev/mapper/vg-b") echo 12 /b ;;
*"-T /hidden") echo 99 ;;
*"-T /a") echo 11 ;;
*"-T /b") echo 12 ;;
esac"#,
        ),
        ("fsfreeze", r#"echo "$*" >>"${0%/*}/calls"; [ "$*" != "$(cat "${0%/*}/refused" 2>/dev/null)" ]"#),
    ];

    fn runner(dir: &TempDir) -> SystemRunner {
        let path = dir.path().display().to_string();
        for (name, body) in PROGRAMS {
            fs::write(dir.path().join(name), format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        SystemRunner::new(&["/usr/bin/env", &format!("PATH={path}:/usr/bin:/bin"), "lvm"]).unwrap()
    }

    async fn frozen(dir: &TempDir, names: &[&str], limit: u64) -> Result<crate::Freeze, Output> {
        let devices: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        freeze(&runner(dir), &devices, Duration::from_secs(limit)).await.unwrap()
    }

    fn calls(dir: &TempDir) -> Vec<String> {
        let calls = fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
        calls.lines().map(|call| call.replace("--", "")).collect()
    }

    async fn until_thawed(dir: &TempDir) {
        let thawing = async {
            while !calls(dir).contains(&"unfreeze /a".to_owned()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_mins(1), thawing).await.unwrap();
    }

    #[tokio::test]
    async fn freeze_covers_all_mounted_devices_until_it_is_thawed() {
        let dir = tempfile::tempdir().unwrap();
        let freeze = frozen(&dir, &["vg-a", "vg-b", "vg-c"], 600).await.unwrap();
        assert_eq!(calls(&dir), ["freeze /a", "freeze /b"], "no mount that hides another one");
        assert!(freeze.thaw().await);
        assert_eq!(calls(&dir)[2..], ["unfreeze /b", "unfreeze /a"]);
    }

    #[tokio::test]
    async fn freeze_ends_when_its_owner_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        drop(frozen(&dir, &["vg-a"], 600).await.unwrap());
        until_thawed(&dir).await;
    }

    #[tokio::test]
    async fn freeze_that_ended_at_its_time_limit_proves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let freeze = frozen(&dir, &["vg-a"], 1).await.unwrap();
        until_thawed(&dir).await;
        assert!(!freeze.thaw().await);
    }

    #[rstest]
    #[case::thawed_by_another_program("refused", "--unfreeze /a")]
    #[case::device_without_filesystem_opened("opened", "1")]
    #[tokio::test]
    async fn freeze_that_may_not_have_kept_everything_proves_nothing(#[case] file: &str, #[case] contents: &str) {
        let dir = tempfile::tempdir().unwrap();
        let freeze = frozen(&dir, &["vg-a", "vg-c"], 600).await.unwrap();
        fs::write(dir.path().join(file), contents).unwrap();
        assert!(!freeze.thaw().await);
    }

    #[rstest]
    #[case::frozen_by_another_program(&["vg-a", "vg-b"], "--freeze /b", "", &["freeze /a", "freeze /b", "unfreeze /a"])]
    #[case::raw_block_volume_in_use(&["vg-a", "vg-d"], "", "vg-d is in use", &[])]
    #[tokio::test]
    async fn freeze_that_fails_leaves_nothing_frozen(
        #[case] names: &[&str],
        #[case] refused: &str,
        #[case] message: &str,
        #[case] expected: &[&str],
    ) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("refused"), refused).unwrap();
        let output = frozen(&dir, names, 600).await.unwrap_err();
        assert_eq!(output.code, Some(1));
        assert!(output.stderr.contains(message), "{}", output.stderr);
        assert_eq!(calls(&dir), expected);
    }
}

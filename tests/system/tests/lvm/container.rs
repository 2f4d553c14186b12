//! LVM in the container of a pod: the root file system is read-only except for the mounts of the chart.

use crate::daemon::{CLASSES, Lvmd, SOCKET, signed};
use crate::fixture::{EXTENT, Groups, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("lvm_in_a_container_writes_only_to_mounts_of_the_chart", writes_only_to_mounts_of_the_chart)];

/// Remounts all file systems read-only, except the first directory and empty ones at the others, up to `--`, and runs
/// the following command.
const READ_ONLY: &str = r#"
writable=
mount --make-rprivate /
mkdir -p "$1" && mount --bind "$1" "$1" && shift
while [ "$1" != -- ]; do mkdir -p "$1" && mount -t tmpfs lvm "$1" && writable="$writable|$1|" && shift; done
shift
findmnt -rno TARGET | while read -r target; do
  case "$target" in
    /dev|/dev/*|/proc|/proc/*|/sys|/sys/*|/run/topolvm-test) ;;
    *) case "$writable" in *"|$target|"*) ;; *) mount -o remount,bind,ro "$target" ;; esac ;;
  esac
done
for place in / /run /etc/lvm /tmp; do
  ! touch "$place/written" 2>/dev/null || { echo "$place can be written" >&2; exit 1; }
done
exec "$@"
"#;

fn writes_only_to_mounts_of_the_chart() {
    let _group = Groups::one();
    let mut launcher = vec!["unshare", "--mount", "sh", "-euc", READ_ONLY, "sh", "/run/topolvm-test"];
    launcher.extend(system_tests::chart::LVM_MOUNTS);
    launcher.push("--");
    let config = format!("lvm-command-prefix: [/sbin/lvm]\n{CLASSES}");
    let mut lvmd = Lvmd::start_by(&launcher, SOCKET, &config, |_| {});
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 2 * EXTENT).await.unwrap();
        assert_eq!(client.resize("a", 3 * EXTENT).await.unwrap(), signed(3 * EXTENT));
        assert_eq!(run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg1"]).trim(), "a");
        client.remove("ssd", "a").await.unwrap();
    });
    let log = lvmd.end();
    assert!(!log.iter().any(|line| line.contains("Read-only")), "{log:?}");
}

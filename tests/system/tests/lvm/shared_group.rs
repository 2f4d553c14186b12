//! A volume group on a disk that two machines have, while one of them works in it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use libtest_mimic::Trial;
use testbed::suite;
use tonic::Code;

use crate::daemon::{Lvmd, SOCKET, code};
use crate::evacuation::until_reported;
use crate::fixture::{EXTENT, Groups, MIB, run_ok, wait};
use crate::scsi_disks::until;
use crate::two_machines::{Marks, OWN, SHARED, Work, boot, run_command_of, shared_contents};
use crate::wiping::{count_secrets, write_secret};

pub(crate) const WORKS: &[Work] = &[("in-shared-group", work_in_group), ("next-to-shared-group", leave_alone)];

const OWNER: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0, wipe: zero}]";
const OTHER: &str = "device-classes: [{name: hdd, volume-group: myvg2, default: true, spare-gb: 0}]";
const BOTH: &str = "device-classes: [{name: hdd, volume-group: myvg2, default: true, spare-gb: 0}, \
                    {name: ssd, volume-group: myvg1, spare-gb: 0}]";
const WORD: &[u8] = b"precious";
/// An `lvm` that completes no volume while the first file exists, and suspends the device of a volume that is to be
/// wiped. Commands come as lines for LVM's shell.
const HELD_UP: &str = r#"#!/bin/sh
if [ $# -gt 0 ]; then exec lvm "$@"; fi
while IFS= read -r line; do
    case $line in
        "lvchange "*topolvm.io/making=*)
            if [ -e /run/hold ]; then : >/run/held; fi
            while [ -e /run/hold ]; do sleep 0.1; done ;;
    esac
    printf '%s\n' "$line" | lvm
    case $line in
        "lvrename "*) dmsetup ls | cut -f 1 | grep topolvm.wiping | xargs dmsetup suspend --noflush --nolockfs ;;
    esac
done
"#;

pub(crate) fn tests() -> Vec<Trial> {
    vec![suite::panicking_test("machine_leaves_the_group_of_another_machine_alone", || {
        boot(["in-shared-group", "next-to-shared-group"]);
    })]
}

fn work_in_group(marks: &Marks) {
    let _groups = Groups::on("myvg1", &[SHARED]);
    let lvm = Path::new("/run/lvm-held-up");
    fs::write(lvm, HELD_UP).unwrap();
    fs::set_permissions(lvm, fs::Permissions::from_mode(0o755)).unwrap();
    let mut lvmd = Lvmd::start(&format!("lvm-command-prefix: [{}]\n{OWNER}", lvm.display()));
    wait(async {
        let client = lvmd.connect().await;
        let free = client.free().await;
        client.create("kept", EXTENT).await.unwrap();
        let mut kept = OpenOptions::new().write(true).open("/dev/myvg1/kept").unwrap();
        kept.write_all(WORD).and_then(|()| kept.sync_all()).unwrap();
        drop(kept);
        client.create("secret", 4 * EXTENT).await.unwrap();
        write_secret("/dev/myvg1/secret");
        client.remove("ssd", "secret").await.unwrap();
        fs::write("/run/hold", "").unwrap();
        let (making, name) = (client.clone(), "made");
        let making = tokio::spawn(async move { making.create(name, 2 * EXTENT).await });
        until("an unfinished volume", || Path::new("/run/held").exists().then_some(()));
        let wiping =
            run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "name,suspended", "-S", "suspended=Suspended"]);
        assert_eq!(wiping.lines().count(), 1, "{wiping}");
        let before = run_ok("lvs", &["-a", "-o+lv_tags", "myvg1"]);
        marks.set("busy");
        marks.wait_for("left-alone");
        assert_eq!(run_ok("lvs", &["-a", "-o+lv_tags", "myvg1"]), before);
        fs::remove_file("/run/hold").unwrap();
        making.await.unwrap().unwrap();
        run_ok("dmsetup", &["resume", wiping.split(':').next().unwrap()]);
        client.until_free(|now| now == free - 3 * EXTENT).await;
        let mut names: Vec<_> = client.list().await.into_iter().map(|volume| volume.name).collect();
        names.sort();
        assert_eq!(names, ["kept", "made"]);
        assert_eq!(count_secrets(SHARED), 0);
    });
    lvmd.terminate();
    run_ok("vgchange", &["-qqan", "myvg1"]);
    marks.set("given-up");
    // The group is the other machine's from now on
    marks.wait_for("taken-over");
}

fn leave_alone(marks: &Marks) {
    marks.wait_for("busy");
    let _groups = Groups::on("myvg2", &[OWN]);
    let state = || {
        let group = run_ok("vgs", &["--noheadings", "-o", "vg_seqno,vg_tags", "myvg1"]);
        (group, run_ok("lvs", &["-a", "--noheadings", "-o", "+lv_uuid,lv_tags", "myvg1"]), shared_contents())
    };
    let before = state();
    let tag = before.0.split_whitespace().nth(1).unwrap().to_owned();
    assert!(tag.starts_with("topolvm.io/machine="), "{tag}");
    let mut message = String::new();
    let mut running = None;
    for config in [OTHER, BOTH] {
        drop(running.take());
        leave_unfinished_volumes();
        let mut log = String::new();
        let lvmd = Lvmd::start_by(&[], SOCKET, config, |line| log.push_str(line));
        assert!(
            log.contains(&format!("volume group myvg1 belongs to another machine (tag {tag}) and is ignored")),
            "{log}"
        );
        // The start of lvmd is complete
        until("an end of what was unfinished", || {
            run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg2"]).trim().is_empty().then_some(())
        });
        wait(async {
            let client = lvmd.connect().await;
            client.create_in("hdd", "a", EXTENT).await.unwrap();
            client.remove("hdd", "a").await.unwrap();
            if config == OTHER {
                // As of any group whose volumes are not this machine's
                assert_eq!(code(client.remove("hdd", "kept").await), Code::FailedPrecondition);
                return;
            }
            let status = client.create_in("ssd", "b", EXTENT).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            status.message().clone_into(&mut message);
            for answer in [client.remove("ssd", "kept").await, client.list_of("ssd").await.map(drop)] {
                let status = answer.unwrap_err();
                assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                assert!(status.message().contains(&tag), "{status}");
            }
            let reported =
                until_reported(&client, |reported| reported.volume_groups.iter().any(|group| group.name == "myvg1"))
                    .await;
            let group = reported.volume_groups.into_iter().find(|group| group.name == "myvg1").unwrap();
            assert!(!group.found && group.stale_reason.contains(&tag), "{group:?}");
        });
        assert_eq!(state(), before);
        let mapped = run_ok("dmsetup", &["ls"]);
        assert!(!mapped.contains("myvg1"), "{mapped}");
        running = Some(lvmd);
    }
    marks.set("left-alone");
    marks.wait_for("given-up");
    run_command_of(&message);
    let lvmd = running.unwrap();
    wait(async {
        let client = lvmd.connect().await;
        client.until_free_in("ssd", |free| free > 0).await;
        let volumes = client.list_of("ssd").await.unwrap();
        assert_eq!(volumes.len(), 2, "{volumes:?}");
        client.resize_in("ssd", "kept", EXTENT).await.unwrap();
        let mut word = [0; WORD.len()];
        File::open("/dev/myvg1/kept").unwrap().read_exact(&mut word).unwrap();
        assert_eq!(word, WORD);
        client.remove("ssd", "made").await.unwrap();
    });
    let tags = run_ok("vgs", &["--noheadings", "-o", "vg_tags", "myvg1"]);
    assert!(tags.contains("topolvm.io/machine=") && !tags.contains(&tag), "{tags}");
    marks.set("taken-over");
}

/// Leaves two volumes in the group of this machine as an lvmd of it does that is killed: one unfinished, one to be
/// wiped.
fn leave_unfinished_volumes() {
    for (name, tag) in [
        ("unfinished", format!("topolvm.io/making={SOCKET}#1.0")),
        ("topolvm.wiping.x", format!("topolvm.io/wiping=zero:{SOCKET}")),
    ] {
        let size = format!("{}b", 4 * MIB);
        run_ok(
            "lvcreate",
            &["-qqy", "-L", &size, "-n", name, "--addtag", "topolvm.io/managed-by=lvmd", "--addtag", &tag, "myvg2"],
        );
    }
}

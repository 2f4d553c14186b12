//! Two volume groups of one name: the only disk of a disk group was away while another disk became the group.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};

use tonic::{Code, Status};
use topolvm_proto::lvmd::{CreateLvRequest, LogicalVolume};

use crate::daemon::{Lvmd, SOCKET, code, signed};
use crate::disk_groups::{group, until_members};
use crate::fixture::{DISKS, EXTENT, Groups, run_ok, wait};
use crate::scsi_disks::{ScsiDisks, until};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("lvmd_refuses_two_groups_of_one_name_until_one_is_renamed", two_of_one_name)];

const WORD: &[u8] = b"precious";
const DEVICE: &str = "/dev/scsi/old";

fn two_of_one_name() {
    let _other = Groups::new(&[("myvg1", &DISKS[..1])]);
    let disks = ScsiDisks::new(1, &["scsi", "older", "newer"]);
    let config = format!("{}\ndevice-classes: [{{name: ssd, volume-group: myvg1, spare-gb: 0}}]\n", group("auto"));
    let mut lvmd = Lvmd::start(&config);
    let uuid = || run_ok("vgs", &["--noheadings", "-o", "vg_uuid", "scsi"]).trim().to_owned();
    until_members(1);
    let older = uuid();
    until("a volume", || make(&lvmd, "scsi", "old").ok());
    let mut device = File::options().write(true).open(DEVICE).unwrap();
    device.write_all(WORD).and_then(|()| device.sync_all()).unwrap();
    drop(device);
    // As a reboot does
    run_ok("vgchange", &["-qqan", "scsi"]);
    disks.pull(0);
    ScsiDisks::plug_new();
    let newer = until("another group of the name", || {
        until_members(1);
        Some(uuid()).filter(|uuid| *uuid != older)
    });
    until("a volume of the other group", || make(&lvmd, "scsi", "new").ok());
    lvmd.kill();
    disks.put_back(0);

    let mut reported = String::new();
    let lvmd = Lvmd::start_by(&[], SOCKET, &config, |line| reported.push_str(line));
    assert!(reported.contains("two volume groups with the name scsi"), "{reported}");
    let status = make(&lvmd, "scsi", "more").unwrap_err();
    let message = status.message();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!([&older, &newer, "vgrename"].iter().all(|word| message.contains(*word)), "{status}");
    wait(async {
        let client = lvmd.connect().await;
        assert_eq!(code(client.free_in("scsi").await), Code::FailedPrecondition);
        assert_eq!(code(client.list_of("scsi").await), Code::FailedPrecondition);
        // They must not be reported as removed
        assert_eq!(code(client.remove("scsi", "old").await), Code::FailedPrecondition);
        assert_eq!(code(client.remove("ssd", "old").await), Code::FailedPrecondition);
    });
    make(&lvmd, "ssd", "other").unwrap();

    run_ok("vgrename", &["-q", &older, "older"]);
    until("the newer group", || make(&lvmd, "scsi", "more").ok());
    run_ok("vgrename", &["-q", &newer, "newer"]);
    run_ok("vgrename", &["-q", "older", "scsi"]);
    until("the older group", || {
        let volumes = wait(async { lvmd.connect().await.list_of("scsi").await }).unwrap_or_default();
        volumes.iter().any(|volume| volume.name == "old").then_some(())
    });
    run_ok("vgchange", &["-qqay", "scsi"]);
    let mut word = [0; WORD.len()];
    File::open(DEVICE).unwrap().read_exact(&mut word).unwrap();
    assert_eq!(word, WORD);
    let volumes = run_ok("lvs", &["--noheadings", "-o", "lv_name", "newer"]);
    assert_eq!(volumes.split_whitespace().collect::<Vec<_>>(), ["more", "new"]);
    // No udev removes them
    drop(["newer", "older"].map(|group| fs::remove_dir_all(format!("/dev/{group}"))));
}

fn make(lvmd: &Lvmd, class: &str, name: &str) -> Result<LogicalVolume, Status> {
    let request = CreateLvRequest {
        name: name.to_owned(),
        device_class: class.to_owned(),
        size_bytes: signed(EXTENT),
        ..CreateLvRequest::default()
    };
    wait(async { lvmd.connect().await.create_with(request).await })
}

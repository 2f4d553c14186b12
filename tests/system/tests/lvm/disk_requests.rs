//! Disks that a client has lvmd add to a disk group, or forget when they are missing.

use tonic::{Code, Status};
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::{AddDiskRequest, DiskRequest, DiskVolume, WatchStorageResponse};

use crate::daemon::{Client, Lvmd, code};
use crate::evacuation::until_reported;
use crate::fixture::{DISKS, FailingDisk, Groups, MIB, lvm, myvg1, run_ok, wait};
use crate::missing_disk::{Disk, read_from, write_to};
use crate::scsi_disks::{ScsiDisks, contents};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_adds_one_disk_to_a_group_that_only_reports", adds_one_disk),
    ("replacement_forgets_no_other_missing_disk", forgets_no_other_disk),
    ("lvmd_replaces_a_missing_disk_and_loses_no_other_volume", replaces_a_missing_disk),
];

async fn add(client: &Client, path: &str, stable_name: &str) -> Result<(), Status> {
    let request = AddDiskRequest { path: path.to_owned(), stable_name: stable_name.to_owned() };
    DiskServiceClient::new(client.0.clone()).add_disk(request).await.map(drop)
}

fn adds_one_disk() {
    let disks = ScsiDisks::new(3, &["scsi"]);
    let config = "
rescan-interval: 0
settle-time: 3600
disk-groups: [{name: scsi, mode: report, paths: ['/dev/sd[a-z]+'], spare-gb: 0}]";
    let lvmd = Lvmd::start(config);
    let [first, second, third] = [0, 1, 2].map(|index| disks.device(index));
    run_ok("mkfs.ext4", &["-qF", &third]);
    let before = contents(&third);
    wait(async {
        let client = lvmd.connect().await;
        for disk in [&first, &second, &second] {
            add(&client, disk, "").await.unwrap();
        }
        let members = run_ok("pvs", &["--noheadings", "-o", "pv_name", "-S", "vg_name=scsi", "-O", "pv_name"]);
        assert_eq!(members.split_whitespace().collect::<Vec<_>>(), [&first, &second]);
        assert!(client.free_in("scsi").await.unwrap() > 0, "the class is offered");
        let refused = add(&client, &third, "").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("ext4"), "{refused}");
        let refused = add(&client, &third, "/dev/disk/by-id/another").await.unwrap_err();
        assert!(refused.message().contains("not the requested disk"), "{refused}");
        assert_eq!(code(add(&client, "/dev/no-such-disk", "").await), Code::FailedPrecondition);
        assert_eq!(code(add(&client, DISKS[0], "").await), Code::FailedPrecondition);
        assert!(contents(&third) == before, "the disk was written to");
    });
}

async fn replace(client: &Client, uuid: &str) -> Result<(), Status> {
    let request = DiskRequest { volume_group: "myvg1".to_owned(), uuid: uuid.to_owned() };
    DiskServiceClient::new(client.0.clone()).replace_missing_disk(request).await.map(drop)
}

fn replaces_a_missing_disk() {
    let failing = FailingDisk::new();
    let spare = Disk::new();
    let _group = Groups::on("myvg1", &[DISKS[0], failing.device()]);
    run_ok("vgchange", &["-q", "--addtag", "topolvm.io/disk-group=myvg1", "myvg1"]);
    run_ok("lvcreate", &["-qy", "--type", "raid1", "-m1", "--nosync", "-L", "64m", "-n", "mirrored", "myvg1"]);
    for (name, disk) in [("kept", DISKS[0]), ("lost", failing.device())] {
        run_ok("lvcreate", &["-qy", "-L", "64m", "-n", name, "myvg1", disk]);
        write_to(name, "before");
    }
    write_to("mirrored", "before");
    let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", failing.device()]).trim().to_owned();
    let lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]");
    wait(async {
        let client = lvmd.connect().await;
        let refused = replace(&client, &uuid).await.unwrap_err();
        assert!(refused.message().contains("it is there"), "{refused}");
        FailingDisk::fail();
        write_to("mirrored", "meanwhile");
        client.until_free(|free| free == 0).await;
        let volume = |name: &str, state: &str| DiskVolume { name: name.to_owned(), state: state.to_owned() };
        let expected = [volume("lost", "lost"), volume("mirrored", "degraded")];
        let is_reported = |reported: &WatchStorageResponse| {
            let pvs = reported.volume_groups.iter().flat_map(|group| &group.physical_volumes);
            pvs.into_iter().any(|pv| pv.missing && pv.volumes == expected)
        };
        until_reported(&client, is_reported).await;
        let before = myvg1(&lvm()).await;
        let refused = replace(&client, &uuid).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("lost was on it"), "{refused}");
        assert_eq!(myvg1(&lvm()).await.seqno, before.seqno, "what is refused changes nothing");
        run_ok("lvremove", &["-qfy", "myvg1/lost"]);
        let refused = replace(&client, &uuid).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("add a disk"), "{refused}");
        run_ok("vgextend", &["-qy", "myvg1", &spare.0]);
        replace(&client, &uuid).await.unwrap();
        client.until_free(|free| free > 0).await;
        assert_eq!((read_from("mirrored"), read_from("kept")), ("meanwhile".to_owned(), "before".to_owned()));
        let images = run_ok("lvs", &["-a", "--noheadings", "-o", "devices", "myvg1"]);
        assert!(images.contains(&spare.0) && !images.contains(failing.device()), "{images}");
        assert_eq!(myvg1(&lvm()).await.missing_pvs, 0);
        assert_eq!(code(replace(&client, &uuid).await), Code::NotFound);
        client.create("new", 64 * MIB).await.unwrap();
    });
}

fn forgets_no_other_disk() {
    let failing = FailingDisk::new();
    let pulled = Disk::new();
    let _group = Groups::on("myvg1", &[DISKS[0], failing.device()]);
    run_ok("vgextend", &["-qy", "myvg1", &pulled.0]);
    run_ok("vgchange", &["-q", "--addtag", "topolvm.io/disk-group=myvg1", "myvg1"]);
    run_ok("lvcreate", &["-qy", "-L", "64m", "-n", "a", "myvg1", DISKS[0]]);
    let uuid_of = |disk: &str| run_ok("pvs", &["--noheadings", "-o", "pv_uuid", disk]).trim().to_owned();
    let (replaced, returns) = (uuid_of(failing.device()), uuid_of(&pulled.0));
    let lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]");
    wait(async {
        let client = lvmd.connect().await;
        FailingDisk::fail();
        pulled.pull();
        client.until_free(|free| free == 0).await;
        let refused = replace(&client, &replaced).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains(&returns), "{refused}");
        assert_eq!(myvg1(&lvm()).await.pvs.len(), 3, "a disk is forgotten");
        pulled.plug();
        replace(&client, &replaced).await.unwrap();
        let known = myvg1(&lvm()).await;
        assert!(known.pv_of_uuid(&replaced).is_none() && known.pv_of_uuid(&returns).is_some(), "{known:?}");
        client.create("new", 64 * MIB).await.unwrap();
    });
}

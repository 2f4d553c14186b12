//! Volume groups that have lost one of their disks.

use std::fs;

use tonic::Code;
use topolvm_proto::lvmd::WatchStorageResponse;

use crate::daemon::{Lvmd, code};
use crate::fixture::{DISKS, Groups, MIB, lvm, myvg1, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("a_group_without_one_of_its_disks_has_no_room_and_still_gives_up_what_is_there", group_without_a_disk)];

/// A disk that can be removed.
struct Disk(String);

const FILE: &str = "/run/pulled";

impl Disk {
    fn new() -> Self {
        fs::File::create(FILE).unwrap().set_len(512 * MIB).unwrap();
        Self(run_ok("losetup", &["-f", "--show", FILE]).trim().to_owned())
    }

    fn plug(&self) {
        run_ok("losetup", &[&self.0, FILE]);
    }

    fn pull(&self) {
        run_ok("losetup", &["-d", &self.0]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(run("vgremove", &["-ffqy", "myvg1"]));
        drop(run("losetup", &["-d", &self.0]));
        drop(fs::remove_file(FILE));
    }
}

fn group_without_a_disk() {
    let _groups = Groups::new(&[]);
    let disk = Disk::new();
    run_ok("vgcreate", &["-qy", "myvg1", DISKS[0], &disk.0]);
    let lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]");
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 64 * MIB).await.unwrap();
        client.create("b", 64 * MIB).await.unwrap();
        let free = client.free().await;
        let disks = |storage: &WatchStorageResponse| storage.volume_groups[0].physical_volumes.clone();
        let there = client.until_storage(|storage| Some(disks(storage))).await;
        assert_eq!(there.iter().map(|pv| pv.path.as_str()).collect::<Vec<_>>(), [DISKS[0], &disk.0]);
        assert_eq!(there[1].size_bytes, 508 * MIB, "all but LVM's own");
        disk.pull();
        client.until_free(|free| free == 0).await;
        let missing = |storage: &WatchStorageResponse| Some(disks(storage)[1].clone()).filter(|pv| pv.missing);
        let missing = client.until_storage(missing).await;
        assert_eq!((&missing.path, &missing.uuid, missing.dev_major), (&disk.0, &there[1].uuid, 0));
        let said = client.until_storage(|storage| storage.problems.first().cloned()).await;
        assert!(said.contains("myvg1 lacks 1 of its physical volumes"), "{said}");
        assert_eq!(myvg1(&lvm()).await.missing_pvs, 1);
        let status = client.create("c", 4 * MIB).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("lacks 1 of its physical volumes"), "{status}");
        assert_eq!(code(client.resize("a", 128 * MIB).await), Code::FailedPrecondition);
        assert_eq!(client.list().await.len(), 2);
        client.create("a", 64 * MIB).await.unwrap();
        client.remove("ssd", "b").await.unwrap();
        assert_eq!(code(client.remove("ssd", "b").await), Code::NotFound);
        assert_eq!(client.free().await, 0);
        disk.plug();
        // LVM wrote the metadata without it; nothing was on it.
        run_ok("vgextend", &["-q", "--restoremissing", "myvg1", &disk.0]);
        client.until_free(|now| now == free + 64 * MIB).await;
        client.until_storage(|storage| (disks(storage) == there && storage.problems.is_empty()).then_some(())).await;
        client.create("c", 4 * MIB).await.unwrap();
    });
}

//! LVM operations against the fake LVM.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use lvm::{Error, LvName, Lvm, NewSnapshot, NewVolume, VgName};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

const GIB: u64 = 1 << 30;

fn vg(name: &str) -> VgName {
    name.parse().unwrap()
}

fn lv(name: &str) -> LvName {
    name.parse().unwrap()
}

async fn create(lvm: &Lvm<FakeLvm>, name: &str, bytes: u64) -> Result<(), Error> {
    let volume = NewVolume {
        vg: &vg("vg1"),
        pool: None,
        name: &lv(name),
        bytes,
        tags: &["a=b".parse().unwrap(), "making".parse().unwrap()],
        striping: None,
        options: &[],
    };
    lvm.create(&volume, &"making".parse().unwrap()).await.done
}

fn one_group() -> (FakeLvm, Lvm<FakeLvm>) {
    let fake = FakeLvm::new().with_group("vg1", GIB);
    (fake.clone(), Lvm::new(fake))
}

#[tokio::test]
async fn a_volume_is_created_seen_resized_and_removed() {
    let (_, lvm) = one_group();
    create(&lvm, "a", 4096).await.unwrap();
    let group = lvm.volume_group(&vg("vg1")).await.unwrap();
    let volume = group.volume("a").unwrap();
    assert_eq!((volume.size, &*volume.tags, &*volume.path), (4 << 20, ["a=b".into()].as_slice(), "/dev/vg1/a"));
    assert_eq!(group.free, GIB - (4 << 20));

    lvm.resize(&vg("vg1"), &lv("a"), 5 << 20).await.done.unwrap();
    assert_eq!(lvm.volume_group(&vg("vg1")).await.unwrap().volume("a").unwrap().size, 8 << 20);

    lvm.remove(&vg("vg1"), &lv("a")).await.done.unwrap();
    assert_eq!(lvm.volume_group(&vg("vg1")).await.unwrap().volumes, []);
}

#[tokio::test]
async fn a_volume_that_has_the_size_already_is_resized() {
    let (_, lvm) = one_group();
    create(&lvm, "a", 8 << 20).await.unwrap();
    lvm.resize(&vg("vg1"), &lv("a"), 8 << 20).await.done.unwrap();
    lvm.resize(&vg("vg1"), &lv("a"), 4 << 20).await.done.unwrap();
    assert_eq!(lvm.volume_group(&vg("vg1")).await.unwrap().volume("a").unwrap().size, 8 << 20);
}

#[tokio::test]
async fn a_change_is_one_process_and_brings_back_the_group() {
    let (fake, lvm) = one_group();
    let changed = {
        let volume = NewVolume {
            vg: &vg("vg1"),
            pool: None,
            name: &lv("a"),
            bytes: 4096,
            tags: &["making".parse().unwrap()],
            striping: None,
            options: &[],
        };
        lvm.create(&volume, &"making".parse().unwrap()).await
    };
    changed.done.unwrap();
    assert_eq!(changed.group, Some(lvm.volume_group(&vg("vg1")).await.unwrap()));
    let changed = lvm.remove(&vg("vg1"), &lv("a")).await;
    assert_eq!(changed.group.unwrap().volumes, []);
    assert_eq!(fake.processes(), 3);
}

#[tokio::test]
async fn a_volume_that_stays_marked_was_not_made() {
    let (fake, lvm) = one_group();
    fake.fail("lvchange", 1, Fault::says("device-mapper: oops"));
    let error = create(&lvm, "a", 4096).await.unwrap_err();
    assert_eq!(error.to_string(), "lvcreate failed: device-mapper: oops");
    assert_eq!(fake.volumes("vg1"), ["a"]);
}

#[tokio::test]
async fn why_nothing_was_made_is_not_buried_under_the_consequences() {
    let (fake, lvm) = one_group();
    fake.fail("lvcreate", 1, Fault::says("Cannot do it."));
    assert_eq!(create(&lvm, "a", 4096).await.unwrap_err().to_string(), "lvcreate failed: Cannot do it.");

    // LVM says in other words that what is to be grown is not there.
    fake.fail("lvcreate", 1, Fault::says("Thin pool needs a repair."));
    let (vg, name, source, making) = (vg("vg1"), lv("s"), lv("a"), "making".parse().unwrap());
    let snapshot = NewSnapshot { vg: &vg, source: &source, name: &name, tags: &[], read_only: true };
    let made = lvm.snapshot(&snapshot, Some(2 * GIB), &making).await.done;
    assert_eq!(made.unwrap_err().to_string(), "lvcreate failed: Thin pool needs a repair.");
}

#[tokio::test]
async fn tags_are_exchanged() {
    let (fake, lvm) = one_group();
    create(&lvm, "a", 4096).await.unwrap();
    lvm.change_tags(&vg("vg1"), &lv("a"), &["c".parse().unwrap()], &["a=b".parse().unwrap()]).await.done.unwrap();
    assert_eq!(fake.volume("vg1", "a").unwrap().tags, ["c"]);
}

#[tokio::test]
async fn errors_have_their_kinds() {
    let (fake, lvm) = one_group();
    create(&lvm, "a", 4096).await.unwrap();
    assert!(matches!(create(&lvm, "a", 4096).await, Err(Error::AlreadyExists { .. })));
    assert!(matches!(create(&lvm, "b", 2 * GIB).await, Err(Error::NoSpace { .. })));
    assert!(matches!(lvm.resize(&vg("vg1"), &lv("a"), 2 * GIB).await.done, Err(Error::NoSpace { .. })));
    assert!(matches!(lvm.remove(&vg("vg1"), &lv("b")).await.done, Err(Error::VolumeNotFound { .. })));
    assert!(matches!(lvm.resize(&vg("vg1"), &lv("b"), GIB).await.done, Err(Error::VolumeNotFound { .. })));
    assert!(matches!(lvm.remove(&vg("vg2"), &lv("a")).await.done, Err(Error::GroupNotFound(_))));
    assert!(matches!(lvm.volume_group(&vg("vg2")).await, Err(Error::GroupNotFound(_))));
    fake.edit_volume("vg1", "a", |volume| volume.open = true);
    assert!(matches!(lvm.remove(&vg("vg1"), &lv("a")).await.done, Err(Error::Busy { .. })));
    fake.set_missing_pvs("vg1", 1);
    assert!(matches!(create(&lvm, "c", 4096).await, Err(Error::Incomplete { .. })));
    fake.fail("lvremove", 1, Fault::Timeout);
    assert!(matches!(lvm.remove(&vg("vg1"), &lv("a")).await.done, Err(Error::Timeout { .. })));
    fake.fail("fullreport", 1, Fault::Spawn);
    assert!(matches!(lvm.volume_group(&vg("vg1")).await, Err(Error::Run { .. })));
    fake.fail("fullreport", 1, Fault::Garbled);
    assert!(matches!(lvm.volume_group(&vg("vg1")).await, Err(Error::Report { .. })));
}

#[tokio::test]
async fn several_groups_cost_one_command() {
    let (fake, lvm) = one_group();
    fake.add_group("vg2", 2 * GIB, 1);
    let groups = lvm.volume_groups(&[vg("vg2"), vg("vg1")]).await;
    let sizes: Vec<_> = groups.into_iter().map(|group| group.unwrap().size).collect();
    assert_eq!((sizes, fake.count("fullreport")), (vec![2 * GIB, GIB], 1));
}

#[tokio::test]
async fn a_missing_group_does_not_hide_the_others() {
    let (_, lvm) = one_group();
    let groups = lvm.volume_groups(&[vg("gone"), vg("vg1")]).await;
    let [Err(Error::GroupNotFound(gone)), Ok(found)] = &groups[..] else { panic!("{groups:?}") };
    assert_eq!((gone.as_str(), found.name.as_str()), ("gone", "vg1"));
}

#[tokio::test]
async fn a_report_of_a_failed_command_is_not_believed() {
    let (fake, lvm) = one_group();
    fake.fail_after_success("fullreport", 1, Fault::says("something is odd"));
    assert!(matches!(lvm.volume_group(&vg("vg1")).await, Err(Error::Exit { code: Some(5), .. })));
}

#[tokio::test]
async fn snapshots_that_would_go_with_their_origin_are_known() {
    let (fake, lvm) = one_group();
    fake.add_volume("vg1", "pool", FakeVolume::thin_pool(GIB / 2));
    fake.add_volume("vg1", "thin", FakeVolume::thin(GIB, "pool"));
    fake.add_volume(
        "vg1",
        "thin-snapshot",
        FakeVolume { origin: Some("thin".to_owned()), ..FakeVolume::thin(GIB, "pool") },
    );
    create(&lvm, "thick", 8 << 20).await.unwrap();
    fake.add_volume("vg1", "cow", FakeVolume::snapshot(4 << 20, "thick"));
    let group = lvm.volume_group(&vg("vg1")).await.unwrap();
    assert_eq!(group.snapshots_of("thick").collect::<Vec<_>>(), ["cow"]);
    assert_eq!(group.snapshots_of("thin").count(), 0);
    assert_eq!(group.volume("cow").unwrap().visible_size(), 8 << 20);
}

#[tokio::test]
async fn lvcreate_fails_if_the_new_lv_could_not_be_wiped() {
    let (fake, lvm) = one_group();
    fake.fail_after_success("lvcreate", 1, Fault::says("Aborting. Failed to wipe start of new LV."));
    let error = create(&lvm, "a", 4096).await.unwrap_err();
    assert!(error.to_string().contains("Failed to wipe"), "{error}");
}

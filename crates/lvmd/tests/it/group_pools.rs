//! The thin pools of disk groups: when they are made and extended, and what is left alone.

use std::time::Duration;

use topolvm_testkit::lvm::{EXTENT, FakeLvm, FakeVolume, Fault};

use crate::disk_groups::Disks;
use crate::node::{GIB, MAKING};

const TAG: &str = "topolvm.io/disk-group=ssd";
const POOL: &str = ", thin-pool: {overprovision-ratio: 10}";

/// Returns the commands that changed logical volumes, without making tags.
fn changes(lvm: &FakeLvm) -> Vec<String> {
    let changes = lvm.commands().into_iter().filter(|command| {
        ["lvcreate", "lvextend", "lvremove", "lvchange"].iter().any(|name| command.starts_with(name))
    });
    changes.map(|command| command.split(" --addtag 'topolvm.io/making").next().unwrap_or_default().to_owned()).collect()
}

/// A machine with a blank disk and a group that takes it.
async fn with_disk(bytes: u64, mode: &str, pool: &str) -> (FakeLvm, Disks) {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", bytes);
    let mut disks = Disks::start(&lvm, mode, pool).await;
    disks.look().await;
    disks.node.notice().await;
    (lvm, disks)
}

/// A machine with the group, of 10 GiB, before lvmd starts.
fn with_group(tags: &[&str]) -> FakeLvm {
    let lvm = FakeLvm::new().with_group("ssd", 10 * GIB);
    lvm.set_group_tags("ssd", tags);
    lvm
}

fn classes(disks: &Disks) -> Vec<String> {
    disks.node.engine.capacity().classes.into_iter().map(|class| class.name).collect()
}

#[tokio::test(start_paused = true)]
async fn thin_pool_is_created_with_the_first_disk_for_its_class() {
    let lvm = FakeLvm::new();
    let mut disks = Disks::start(&lvm, "auto", POOL).await;
    disks.node.notice().await;
    assert_eq!(classes(&disks), [""; 0]);
    lvm.plug("sdb", 10 * GIB);
    let pause = lvm.pause("lvcreate");
    disks.look().await;
    assert_eq!(classes(&disks), [""; 0], "the group is there and its pool is not");
    drop(pause);
    disks.node.notice().await;
    assert_eq!(classes(&disks), ["ssd"]);
    let created = "lvcreate --type thin-pool -n pool -L 10171187200b --poolmetadatasize 12582912b --chunksize 65536b \
                   --zero y --discards passdown -y --config activation/error_when_full=0 \
                   --addtag topolvm.io/disk-group=ssd";
    let made = lvm.volume("ssd", "pool").unwrap();
    assert_eq!(changes(&lvm)[0], created);
    assert_eq!(made.tags, [TAG]);
    assert!(made.allocated * EXTENT <= (10 * GIB - EXTENT) / 100 * 95, "{made:?}");
    assert_eq!(disks.node.free("ssd").await.unwrap(), 10 * made.bytes());
    disks.node.create("ssd", "a", 20 * GIB).await.unwrap();
    assert_eq!(lvm.volume("ssd", "a").unwrap().pool.as_deref(), Some("pool"));
    disks.node.notice().await;
    assert_eq!(lvm.count("lvcreate"), 2);
}

#[tokio::test(start_paused = true)]
async fn thin_pool_grows_with_each_disk_and_never_shrinks() {
    let (lvm, mut disks) = with_disk(10 * GIB, "auto", POOL).await;
    let size = || lvm.volume("ssd", "pool").unwrap().bytes();
    let first = size();
    lvm.plug("sdc", 10 * GIB);
    disks.look().await;
    disks.node.notice().await;
    let second = size();
    assert!(second > 2 * first - GIB / 10 && second < 20 * GIB, "{first} {second}");
    lvm.edit_disk("sdc", |disk| disk.disk.size = 20 * GIB);
    disks.look().await;
    disks.node.notice().await;
    assert!(size() > second + 9 * GIB, "{}", size());
    let pool = lvm.volume("ssd", "pool").unwrap();
    let whole = 30 * GIB - 2 * EXTENT;
    assert!(pool.allocated * EXTENT <= whole / 100 * 95, "{pool:?}");
    let done = changes(&lvm).len();
    let node = disks.node.restart(&config("size-percent: 20, ")).await;
    node.notice().await;
    assert_eq!((lvm.volume("ssd", "pool").unwrap(), changes(&lvm).len()), (pool, done));
}

fn config(more: &str) -> String {
    format!(
        "disk-groups: [{{name: ssd, mode: auto, paths: [/dev/sd.], spare-gb: 0, \
         thin-pool: {{{more}overprovision-ratio: 10}}}}]"
    )
}

#[tokio::test(start_paused = true)]
async fn what_plain_volumes_have_stays_theirs() {
    let lvm = with_group(&[TAG]);
    lvm.add_volume("ssd", "plain", FakeVolume::thick(8 * GIB));
    let disks = Disks::start(&lvm, "auto", POOL).await;
    disks.node.notice().await;
    let pool = lvm.volume("ssd", "pool").unwrap();
    assert_eq!((pool.allocated * EXTENT, lvm.free("ssd")), (2 * GIB, 0));
    // A class of plain volumes beside it keeps what its spare is
    let lvm = with_group(&[TAG]);
    let config = format!("{}\ndevice-classes: [{{name: rest, volume-group: ssd, spare-gb: 4}}]", config(""));
    let disks = Disks::start_with(&lvm, &config).await;
    disks.node.notice().await;
    assert_eq!(lvm.free("ssd"), 4 * GIB);
    assert_eq!(disks.node.free("rest").await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_the_tag_serves_its_class_and_is_not_changed() {
    let lvm = with_group(&[TAG]);
    lvm.add_volume("ssd", "pool", FakeVolume::thin_pool(GIB));
    let disks = Disks::start(&lvm, "auto", POOL).await;
    disks.node.notice().await;
    assert_eq!(disks.node.free("ssd").await.unwrap(), 10 * GIB);
    assert_eq!(changes(&lvm), [""; 0]);
    // Handed over
    lvm.edit_volume("ssd", "pool", |pool| pool.tags.push(TAG.to_owned()));
    lvm.extend_group("ssd", EXTENT);
    disks.node.notice().await;
    assert!(lvm.volume("ssd", "pool").unwrap().bytes() > 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn thin_pool_needs_a_tagged_complete_group_and_a_free_name() {
    let lvm = with_group(&[]);
    let disks = Disks::start(&lvm, "auto", POOL).await;
    disks.node.notice().await;
    assert_eq!(classes(&disks), [""; 0]);
    let problems = || disks.node.engine.storage_report().problems;
    assert!(problems()[0].contains("`vgchange --addtag topolvm.io/disk-group=ssd ssd`"), "{:?}", problems());
    lvm.add_volume("ssd", "pool", FakeVolume::thick(GIB));
    lvm.set_group_tags("ssd", &[TAG]);
    disks.node.notice().await;
    assert!(problems()[0].contains("another logical volume has its name"), "{:?}", problems());
    lvm.remove_volume("ssd", "pool");
    lvm.set_missing_pvs("ssd", 1);
    disks.node.notice().await;
    assert!(problems()[0].contains("1 physical volumes of volume group"), "{:?}", problems());
    assert_eq!(changes(&lvm), [""; 0]);
    lvm.set_missing_pvs("ssd", 0);
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(problems(), [""; 0]);
    assert_eq!(classes(&disks), ["ssd"]);
}

#[tokio::test(start_paused = true)]
async fn in_the_mode_report_the_command_is_said() {
    let lvm = with_group(&[TAG]);
    let disks = Disks::start(&lvm, "report", POOL).await;
    disks.node.notice().await;
    let problems = || disks.node.engine.storage_report().problems;
    assert!(problems()[0].contains("would be created with `lvcreate --type thin-pool -n pool"), "{:?}", problems());
    lvm.add_volume("ssd", "pool", FakeVolume { tags: vec![TAG.to_owned()], ..FakeVolume::thin_pool(GIB) });
    disks.node.notice().await;
    assert!(problems()[0].contains("would be extended with `lvextend -y"), "{:?}", problems());
    assert_eq!(changes(&lvm), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_an_lvmd_that_died_left_of_a_pool_is_removed_or_finished() {
    let tags = vec![TAG.to_owned(), MAKING.to_owned()];
    let lvm = with_group(&[TAG]);
    lvm.add_volume("ssd", "pool", FakeVolume { tags: tags.clone(), ..FakeVolume::thick(EXTENT) });
    let disks = Disks::start(&lvm, "auto", POOL).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let pool = lvm.volume("ssd", "pool").unwrap();
    assert_eq!((&pool.attr[..1], &pool.tags[..]), ("t", &[TAG.to_owned()][..]));
    assert_eq!(classes(&disks), ["ssd"]);
    // One that is complete may have volumes by now
    let lvm = with_group(&[TAG]);
    lvm.add_volume("ssd", "pool", FakeVolume { tags, ..FakeVolume::thin_pool(GIB) });
    lvm.add_volume("ssd", "a", FakeVolume::thin(GIB, "pool"));
    let _disks = Disks::start(&lvm, "auto", POOL).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(lvm.volumes("ssd"), ["a", "pool"]);
    assert_eq!(lvm.volume("ssd", "pool").unwrap().tags, [TAG]);
    assert_eq!(lvm.count("lvremove") + lvm.count("lvcreate"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_only_looks_like_a_leftover_is_not_removed() {
    for tags in [vec![MAKING], vec![TAG]] {
        let lvm = with_group(&[TAG]);
        let tags = tags.into_iter().map(str::to_owned).collect();
        lvm.add_volume("ssd", "pool", FakeVolume { tags, ..FakeVolume::thick(GIB) });
        let _disks = Disks::start(&lvm, "auto", POOL).await;
        tokio::time::sleep(Duration::from_mins(30)).await;
        assert_eq!(lvm.volumes("ssd"), ["pool"]);
    }
}

#[tokio::test(start_paused = true)]
async fn thin_pool_creation_is_retried_with_backoff_and_reported() {
    let lvm = with_group(&[TAG]);
    lvm.fail_always("lvcreate", Fault::says("no pools here"));
    let disks = Disks::start(&lvm, "auto", POOL).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let tries = lvm.count("lvcreate");
    assert!((3..=6).contains(&tries), "{tries}");
    let problems = disks.node.engine.storage_report().problems;
    assert!(problems[0].contains("no pools here"), "{problems:?}");
    lvm.clear_faults();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(disks.node.engine.storage_report().problems, [""; 0]);
    assert_eq!(classes(&disks), ["ssd"]);
}

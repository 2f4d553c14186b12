//! Detection of external changes of volume groups, and the number of LVM processes that it takes.

use std::time::Duration;

use futures::future::join_all;
use rstest::rstest;
use tokio::time::{sleep, timeout};
use tonic::Code;
use topolvm_proto::lvmd::Empty;
use topolvm_testkit::lvm::{EXTENT, FakeLvm, FakeVolume, Fault};

use crate::node::{CONFIG, GIB, Node, code};

const HOUR: Duration = Duration::from_hours(1);

/// The number of reports that LVM was asked for without a change.
fn reports(node: &Node, vg: &str) -> usize {
    let asked = |command: &&String| command.starts_with("fullreport") && command.ends_with(vg);
    node.lvm.commands().iter().filter(asked).count()
}

async fn names(node: &Node, class: &str) -> Vec<String> {
    node.list(class).await.unwrap().into_iter().map(|volume| volume.name).collect()
}

#[tokio::test(start_paused = true)]
async fn two_lvmds_see_each_others_changes_within_two_seconds() {
    let one = Node::start().await;
    let two = one.start_beside(CONFIG).await;
    one.create("ssd", "a", GIB).await.unwrap();
    two.notice().await;
    assert_eq!(names(&two, "ssd").await, ["a"]);
    assert_eq!(two.free("ssd").await.unwrap(), 8 * GIB);
    two.resize("ssd", "a", 2 << 30).await.unwrap();
    two.create("ssd", "b", GIB).await.unwrap();
    one.notice().await;
    assert_eq!(names(&one, "ssd").await, ["a", "b"]);
    assert_eq!(one.free("ssd").await.unwrap(), 6 * GIB);
    two.remove("ssd", "a").await.unwrap();
    one.notice().await;
    assert_eq!(names(&one, "ssd").await, ["b"]);
    assert_eq!(one.list("ssd").await.unwrap(), two.list("ssd").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn two_lvmds_see_each_others_changes_without_delay_or_failure() {
    let one = Node::start().await;
    let two = one.start_beside(CONFIG).await;
    let begun = tokio::time::Instant::now();
    for number in 0..5 {
        let (name, larger) = (format!("v{number}"), i64::try_from((number + 2) * EXTENT).unwrap());
        let (this, that) = if number % 2 == 0 { (&one, &two) } else { (&two, &one) };
        this.create("ssd", &name, EXTENT).await.unwrap();
        that.create("ssd", &name, EXTENT).await.unwrap();
        that.resize("ssd", &name, larger).await.unwrap();
        this.resize("ssd", &name, larger).await.unwrap();
        if number % 2 == 0 {
            that.remove("ssd", &name).await.unwrap();
            assert_eq!(code(this.remove("ssd", &name).await), Code::NotFound);
        }
    }
    assert!(begun.elapsed() < Duration::from_millis(100));
    assert_eq!(one.lvm.volumes("vg-ssd"), ["v1", "v3"]);
    one.notice().await;
    assert_eq!(names(&one, "ssd").await, ["v1", "v3"]);
    assert_eq!(names(&two, "ssd").await, ["v1", "v3"]);
}

#[tokio::test(start_paused = true)]
async fn two_lvmds_in_turn_never_give_away_more_than_there_is() {
    let one = Node::start().await;
    let two = one.start_beside(CONFIG).await;
    for number in 0..9 {
        let this = if number % 2 == 0 { &one } else { &two };
        this.create("ssd", &format!("v{number}"), GIB).await.unwrap();
    }
    for this in [&one, &two] {
        assert_eq!(code(this.create("ssd", "more", EXTENT).await), Code::ResourceExhausted);
    }
}

/// The making tag names the lvmd that creates the volume: the other neither takes nor removes it.
#[tokio::test(start_paused = true)]
async fn what_one_lvmd_is_making_the_other_does_not_touch() {
    let one = Node::start().await;
    let two = one.start_beside(CONFIG).await;
    let mut pause = one.lvm.pause_after("lvcreate");
    let during = async {
        pause.reached().await;
        assert_eq!(code(two.create("ssd", "a", GIB).await), Code::Unavailable);
        two.notice().await;
        assert_eq!(names(&two, "ssd").await, Vec::<String>::new());
        two.restart(CONFIG).await.notice().await;
        assert!(one.lvm.volume("vg-ssd", "a").is_some());
        pause.resume();
    };
    let (made, ()) = tokio::join!(one.create("ssd", "a", GIB), during);
    made.unwrap();
}

#[rstest]
#[case::group("ssd", "vg-ssd", false)]
#[case::pool("thin", "vg", true)]
#[tokio::test(start_paused = true)]
async fn fifty_at_once_never_get_more_than_the_last_extents(
    #[case] class: &str,
    #[case] vg: &str,
    #[case] is_thin: bool,
    #[values(false, true)] hidden: bool,
) {
    let node = if is_thin { Node::start_thin().await } else { Node::start().await };
    let filler = node.free(class).await.unwrap() - 3 * EXTENT;
    node.create(class, "filler", filler).await.unwrap();
    node.lvm.hide_metadata(vg, hidden);
    node.lvm.set_latency(Duration::from_millis(20));
    let names: Vec<_> = (0..50).map(|number| format!("v{number}")).collect();
    let results = join_all(names.iter().map(|name| node.create(class, name, EXTENT))).await;
    let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 3);
    assert!(refused.into_iter().all(|result| code(result) == Code::ResourceExhausted));
    assert_eq!(node.free(class).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_hour_costs_one_process_for_each_group_in_ten_minutes() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    let before = node.lvm.processes();
    sleep(HOUR).await;
    let groups = 2;
    let asked = node.lvm.processes() - before;
    assert!((groups * 5..=groups * 6).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn disks_that_cannot_be_read_cost_one_process_a_minute() {
    let node = Node::start().await;
    node.lvm.hide_metadata("vg-ssd", true);
    node.notice().await;
    let before = (reports(&node, "vg-ssd"), reports(&node, "vg-hdd"));
    sleep(HOUR).await;
    let (blind, seeing) = (reports(&node, "vg-ssd") - before.0, reports(&node, "vg-hdd") - before.1);
    assert!((50..=60).contains(&blind), "{blind}");
    assert!(seeing <= 6, "{seeing}");
}

#[tokio::test(start_paused = true)]
async fn external_changes_are_seen_in_a_minute_with_unreadable_disks() {
    let node = Node::start().await;
    node.lvm.hide_metadata("vg-ssd", true);
    node.notice().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(GIB));
    sleep(Duration::from_secs(62)).await;
    assert_eq!(names(&node, "ssd").await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_read_is_no_news_twice() {
    let node = Node::start().await;
    node.notice().await;
    node.lvm.set_missing_pvs("vg-hdd", 1);
    node.notice().await;
    let before = reports(&node, "vg-hdd");
    sleep(Duration::from_secs(50)).await;
    assert_eq!(reports(&node, "vg-hdd"), before);
}

#[tokio::test(start_paused = true)]
async fn an_lvm_that_fails_is_asked_less_and_less_often() {
    let node = Node::start().await;
    node.lvm.fail_always("fullreport", Fault::Spawn);
    node.lvm.extend_group("vg-ssd", GIB);
    let before = node.lvm.processes();
    sleep(HOUR).await;
    let asked = node.lvm.processes() - before;
    // The other group is asked as often once its ten minutes are over.
    assert!((60..=130).contains(&asked), "{asked}");
}

#[rstest]
#[case::at_once(false)]
#[case::later(true)]
#[tokio::test(start_paused = true)]
async fn a_device_that_moved_is_never_listed_where_it_was(#[case] later: bool) {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.minor = 77);
    if later {
        node.notice().await;
    }
    assert_eq!(node.list("ssd").await.unwrap()[0].dev_minor, 77);
}

#[tokio::test(start_paused = true)]
async fn devices_that_changed_places_are_listed_where_they_are() {
    let node = Node::start().await;
    for name in ["a", "b"] {
        node.create("ssd", name, GIB).await.unwrap();
    }
    let before: Vec<_> = node.list("ssd").await.unwrap().into_iter().map(|volume| volume.dev_minor).collect();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.minor = before[1]);
    node.lvm.edit_volume("vg-ssd", "b", |volume| volume.minor = before[0]);
    let after: Vec<_> = node.list("ssd").await.unwrap().into_iter().map(|volume| volume.dev_minor).collect();
    assert_eq!(after, [before[1], before[0]]);
}

#[tokio::test(start_paused = true)]
async fn volume_activation_change_is_seen_within_two_seconds() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    for (active, attr) in [(false, "-wi-------"), (true, "-wi-a-----")] {
        node.lvm.edit_volume("vg-ssd", "a", |volume| volume.active = active);
        node.notice().await;
        let volume = &node.list("ssd").await.unwrap()[0];
        assert_eq!((volume.dev_major > 0, volume.attr.as_str()), (active, attr));
    }
}

#[tokio::test(start_paused = true)]
async fn volume_group_loss_and_return_are_seen_within_two_seconds() {
    let node = Node::start().await;
    node.notice().await;
    node.lvm.remove_group("vg-ssd");
    node.notice().await;
    assert_eq!(code(node.free("ssd").await), Code::FailedPrecondition);
    assert!(*node.engine.lvm_works().borrow(), "LVM itself is well");
    node.lvm.add_group("vg-ssd", 12 * GIB, 1);
    node.notice().await;
    assert_eq!(node.free("ssd").await.unwrap(), 11 * GIB);
    node.create("ssd", "a", GIB).await.unwrap();
}

/// No disk comes or goes with the name.
#[tokio::test(start_paused = true)]
async fn a_group_that_gets_its_name_back_is_seen_within_two_seconds() {
    let node = Node::start().await;
    node.notice().await;
    node.lvm.rename_group("vg-ssd", "other");
    node.notice().await;
    assert_eq!(code(node.free("ssd").await), Code::FailedPrecondition);
    let before = node.lvm.processes();
    sleep(Duration::from_secs(50)).await;
    assert_eq!(node.lvm.processes(), before, "that it is not there is no news");
    node.lvm.rename_group("other", "vg-ssd");
    node.notice().await;
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn recreated_volume_group_is_seen_within_two_seconds() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    node.lvm.add_group("vg-ssd", 5 * GIB, 1);
    node.notice().await;
    assert_eq!(names(&node, "ssd").await, Vec::<String>::new());
    assert_eq!(node.free("ssd").await.unwrap(), 4 * GIB);
}

#[tokio::test(start_paused = true)]
async fn a_pool_in_another_condition_has_lvm_asked_once() {
    let node = Node::start_thin().await;
    node.notice().await;
    let before = node.lvm.processes();
    node.lvm.edit_volume("vg", "pool", |pool| "twi-aotzD-".clone_into(&mut pool.attr));
    node.notice().await;
    assert_eq!(node.lvm.processes() - before, 1);
    sleep(Duration::from_secs(50)).await;
    assert_eq!(node.lvm.processes() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn an_lvm_that_hangs_while_lvmd_looks_does_not_hold_up_the_end() {
    let node = Node::start().await;
    let mut pause = node.lvm.pause("fullreport");
    node.lvm.extend_group("vg-ssd", GIB);
    pause.reached().await;
    node.shutdown.cancel();
    timeout(Duration::from_secs(5), node.tasks.clone().wait()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn growing_and_removing_cost_one_process_each() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let before = node.lvm.processes();
    node.resize("ssd", "a", 2 << 30).await.unwrap();
    assert_eq!(node.lvm.processes() - before, 1);
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(node.lvm.processes() - before, 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_costs_no_process() {
    let node = Node::start().await;
    let before = node.lvm.processes();
    code(node.create("ssd", "a", 100 * GIB).await);
    assert_eq!(node.lvm.processes(), before);
    // That a volume is nowhere is proven by LVM's list of all groups.
    assert_eq!(code(node.resize("ssd", "a", 1).await), Code::NotFound);
    assert_eq!(node.lvm.processes(), before + 1);
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
    assert_eq!(node.lvm.processes(), before + 2);
}

#[tokio::test(start_paused = true)]
async fn change_costs_one_more_lvm_process_if_disks_are_unreadable() {
    let node = Node::start().await;
    node.lvm.hide_metadata("vg-ssd", true);
    let before = node.lvm.processes();
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(node.lvm.processes() - before, 2);
    node.resize("ssd", "a", 2 << 30).await.unwrap();
    assert_eq!(node.lvm.processes() - before, 4);
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(node.lvm.processes() - before, 6);
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn what_others_made_a_moment_ago_counts_in_a_change() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "theirs", FakeVolume::thick(8 * GIB));
    assert_eq!(code(node.create("ssd", "a", 2 * GIB).await), Code::ResourceExhausted);
    node.lvm.remove_volume("vg-ssd", "theirs");
    node.create("ssd", "a", 2 * GIB).await.unwrap();
}

/// On a real clock: a caller that waits for the disk waits in a thread.
#[tokio::test(flavor = "multi_thread")]
async fn hung_disk_hides_neither_device_mapper_nor_other_groups() {
    let lvm = FakeLvm::new().with_group("vg-ssd", 10 * GIB);
    lvm.add_group("vg", 20 * GIB, 2);
    lvm.add_volume("vg", "pool", FakeVolume::thin_pool(4 * GIB));
    let config = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 1}, {name: thin, \
         volume-group: vg, \
                  type: thin, thin-pool: {name: pool, overprovision-ratio: 1}}]";
    let node = Node::start_with(lvm, config).await;
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    // LVM waits for the disk as well.
    let lvm = node.lvm.clone();
    let hanging = lvm.hang_disk("vg", 0);
    lvm.fail_always("fullreport", Fault::Timeout);
    lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 50.0);
    let reported = async {
        loop {
            let message = watch.message().await.unwrap().unwrap();
            if message.items[1].thin_pool.as_ref().unwrap().data_percent > 49.0 {
                return;
            }
        }
    };
    timeout(Duration::from_secs(30), reported).await.expect("no message reports that the pool fills up");
    lvm.clear_faults();
    node.create("ssd", "a", GIB).await.unwrap();
    drop(hanging);
}

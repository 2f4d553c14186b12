//! Volumes that are asked for at the same time are created and grown together, and each is as safe as one that is
//! created alone.

use std::time::Duration;

use futures::future::join_all;
use rstest::rstest;
use tonic::Status;
use topolvm_proto::lvmd::{CreateLvRequest, LogicalVolume};
use topolvm_testkit::lvm::{FakeLvm, Fault};

use crate::node::{CONFIG, GIB, MANAGED, MIB, Node, create_request};

/// Names of volumes that wait while the volume `first` is created.
const WAITING: [&str; 4] = ["a", "b", "c", "d"];

/// Creates the volume `first`, and those in `WAITING` behind it. Calls `inject` before LVM creates `first`.
async fn try_create_all(node: &Node, inject: impl FnOnce()) -> Vec<Result<LogicalVolume, Status>> {
    let mut first = node.lvm.pause("lvcreate");
    let waiting = async {
        first.reached().await;
        let all = join_all(WAITING.map(|name| node.create("ssd", name, 100 * MIB)));
        let resume = async {
            // The clock advances when all tasks only wait
            tokio::time::sleep(Duration::from_millis(1)).await;
            inject();
            first.resume();
        };
        tokio::join!(all, resume).0
    };
    let (created, waiting) = tokio::join!(node.create("ssd", "first", GIB), waiting);
    created.unwrap();
    waiting
}

async fn create_all(node: &Node, inject: impl FnOnce()) -> Vec<LogicalVolume> {
    try_create_all(node, inject).await.into_iter().map(Result::unwrap).collect()
}

fn commands_after_the_first_report(node: &Node) -> Vec<String> {
    let commands = node.lvm.commands();
    let first = commands.iter().position(|command| command.starts_with("lvcreate")).unwrap();
    commands.iter().skip(first + 3).map(|command| command.split(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn burst_of_creations_shares_one_lvchange_and_one_report() {
    let node = Node::start().await;
    let volumes = create_all(&node, || {}).await;
    assert_eq!(volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), WAITING);
    for volume in &volumes {
        let made = node.lvm.volume("vg-ssd", &volume.name).unwrap();
        assert_eq!((volume.size_bytes, made.tags.as_slice()), (100 << 20, [MANAGED.to_owned()].as_slice()));
        assert_eq!(volume.dev_minor, made.minor);
    }
    let expected = ["lvcreate", "lvcreate", "lvcreate", "lvcreate", "lvchange", "fullreport"];
    assert_eq!(commands_after_the_first_report(&node), expected);
    assert_eq!(node.free("ssd").await.unwrap(), 8 * GIB - 400 * MIB);
}

#[tokio::test(start_paused = true)]
async fn burst_volumes_have_own_making_tags_until_created() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.before("lvchange", move |command| {
        let tags: Vec<_> = command.args().iter().filter(|arg| arg.starts_with("topolvm.io/making=")).collect();
        let carried = lvm.volumes("vg-ssd").into_iter().flat_map(|name| lvm.volume("vg-ssd", &name).unwrap().tags);
        let carried: Vec<_> = carried.filter(|tag| tag.starts_with("topolvm.io/making=")).collect();
        assert_eq!(tags.len(), carried.len());
        assert!(carried.iter().all(|tag| tags.contains(&tag)), "{carried:?}");
    });
    create_all(&node, || {}).await;
    assert_eq!(node.lvm.count("lvchange"), 2);
}

/// The second of four. The others are created all the same, and its caller gets a newly created volume.
#[rstest]
#[case::refused(|node: &Node| node.lvm.fail("lvcreate", 2, Fault::says("Something went wrong.")), 0)]
#[case::not_wiped(
    // After that of `first`
    |node: &Node| node.lvm.fail_after_success("lvcreate", 3, Fault::says("Aborting. Failed to wipe start of new LV.")),
    1
)]
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_burst_that_fails_is_created_alone(#[case] inject: fn(&Node), #[case] removed: usize) {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.before("lvremove", move |_| {
        let left = lvm.volume("vg-ssd", "b").unwrap();
        assert!(left.tags.iter().any(|tag| tag.starts_with("topolvm.io/making=")), "it keeps its tag: {left:?}");
    });
    let volumes = create_all(&node, || inject(&node)).await;
    assert_eq!(volumes.len(), 4);
    assert_eq!((node.lvm.count("lvcreate"), node.lvm.count("lvremove")), (1 + 4 + 1, removed));
    for name in WAITING {
        assert_eq!(node.lvm.volume("vg-ssd", name).unwrap().tags, [MANAGED]);
    }
}

#[rstest]
#[case::creation(|node: &Node| node.lvm.fail_after_success("lvcreate", 3, Fault::Timeout))]
#[case::removal_of_the_tags(|node: &Node| node.lvm.fail("lvchange", 2, Fault::says("Failed to write VG vg-ssd.")))]
#[case::report(|node: &Node| node.lvm.fail("fullreport", 2, Fault::Garbled))]
#[tokio::test(start_paused = true)]
async fn a_burst_of_which_nothing_is_known_is_created_one_by_one(#[case] inject: fn(&Node)) {
    let node = Node::start().await;
    let volumes = create_all(&node, || inject(&node)).await;
    for volume in volumes {
        let made = node.lvm.volume("vg-ssd", &volume.name).unwrap();
        assert_eq!((made.tags.as_slice(), volume.dev_minor), ([MANAGED.to_owned()].as_slice(), made.minor));
    }
    assert_eq!(node.free("ssd").await.unwrap(), 8 * GIB - 400 * MIB);
}

#[tokio::test(start_paused = true)]
async fn a_crash_in_a_burst_leaves_nothing_after_the_next_start() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.before("lvchange", move |command| {
        // Of the burst: `first` is ready
        if command.args().len() > 4 {
            for command in ["fullreport", "lvchange", "lvcreate", "lvremove"] {
                lvm.fail_always(command, Fault::Spawn);
            }
        }
    });
    let waiting = try_create_all(&node, || node.lvm.fail("lvchange", 2, Fault::Spawn)).await;
    assert!(waiting.iter().all(Result::is_err));
    node.lvm.clear_faults();
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a", "b", "c", "d", "first"]);
    let next = node.restart(CONFIG).await;
    next.notice().await;
    assert_eq!(next.lvm.volumes("vg-ssd"), ["first"]);
}

#[tokio::test(start_paused = true)]
async fn volume_whose_caller_has_gone_is_not_created() {
    let node = Node::start().await;
    let mut first = node.lvm.pause("lvcreate");
    let waiting = async {
        first.reached().await;
        let given_up = node.create("ssd", "given-up", GIB);
        tokio::time::timeout(Duration::from_millis(1), given_up).await.unwrap_err();
        let all = join_all(["a", "b"].map(|name| node.create("ssd", name, GIB)));
        let resume = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            first.resume();
        };
        tokio::join!(all, resume).0
    };
    let (created, waiting) = tokio::join!(node.create("ssd", "first", GIB), waiting);
    created.unwrap();
    assert!(waiting.iter().all(Result::is_ok));
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a", "b", "first"]);
}

/// With the spare, 2 GiB less than these take.
#[tokio::test(start_paused = true)]
async fn burst_refuses_only_the_volume_that_does_not_fit() {
    let node = Node::start().await;
    node.lvm.set_latency(Duration::from_millis(20));
    let wanted = [("a", 4 * GIB), ("b", 3 * GIB), ("c", 4 * GIB), ("d", 2 * GIB)];
    let results = join_all(wanted.map(|(name, bytes)| node.create("ssd", name, bytes))).await;
    let made: Vec<_> = results.iter().filter_map(|result| Some(result.as_ref().ok()?.name.as_str())).collect();
    assert_eq!(made, ["a", "b", "d"]);
    assert_eq!(node.lvm.free("vg-ssd"), GIB);
}

/// As when an agent has started again while its first call waits.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_asked_for_twice_at_once_is_created_once() {
    let node = Node::start().await;
    node.lvm.set_latency(Duration::from_millis(20));
    let results = join_all(["a", "b", "b", "c"].map(|name| node.create("ssd", name, GIB))).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(node.lvm.count("lvcreate"), 3);
}

#[tokio::test(start_paused = true)]
async fn burst_creates_volumes_with_lvcreate_options_separately() {
    let lvm = FakeLvm::new();
    lvm.add_group("vg", 10 * GIB, 2);
    let config = r"
device-classes: [{name: ssd, volume-group: vg, default: true, spare-gb: 0}]
lvcreate-option-classes: [{name: mirrored, options: [--type=raid1]}]
";
    let node = Node::start_with(lvm, config).await;
    node.lvm.set_latency(Duration::from_millis(20));
    let wanted = [("", "a"), ("", "b"), ("mirrored", "c"), ("", "d")].map(|(options, name)| {
        node.create_with(CreateLvRequest {
            lvcreate_option_class: options.to_owned(),
            ..create_request("ssd", name, GIB)
        })
    });
    let results = join_all(wanted).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(&node.lvm.volume("vg", "c").unwrap().attr[..1], "r");
    // Three together; the mirrored one
    assert_eq!((node.lvm.count("lvcreate"), node.lvm.count("lvchange")), (4, 2));
}

/// Grows the volume `first`, and those in `WAITING` behind it, to 200 MiB. Calls `inject` before LVM grows `first`.
async fn grow_all(node: &Node, inject: impl FnOnce()) -> Vec<Result<i64, Status>> {
    for name in ["first"].iter().chain(&WAITING) {
        node.create("ssd", name, 100 * MIB).await.unwrap();
    }
    let mut first = node.lvm.pause("lvextend");
    let waiting = async {
        first.reached().await;
        let all = join_all(WAITING.map(|name| node.resize("ssd", name, 200 << 20)));
        let resume = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            inject();
            first.resume();
        };
        tokio::join!(all, resume).0
    };
    let (grown, waiting) = tokio::join!(node.resize("ssd", "first", 200 << 20), waiting);
    assert_eq!(grown.unwrap(), 200 << 20);
    waiting
}

#[tokio::test(start_paused = true)]
async fn volumes_that_wait_to_be_grown_share_a_report() {
    let node = Node::start().await;
    let grown = grow_all(&node, || {}).await;
    assert!(grown.iter().all(|size| *size.as_ref().unwrap() == 200 << 20), "{grown:?}");
    assert_eq!(node.lvm.count("lvextend"), 5);
    let commands = node.lvm.commands();
    let names: Vec<_> = commands.iter().rev().take(7).rev().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["lvextend", "fullreport", "lvextend", "lvextend", "lvextend", "lvextend", "fullreport"]);
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB - 1000 * MIB);
}

#[rstest]
#[case::one_refused(|node: &Node| node.lvm.fail("lvextend", 2, Fault::says("Something went wrong.")), 6)]
#[case::nothing_known(|node: &Node| node.lvm.fail("fullreport", 2, Fault::Garbled), 5)]
#[tokio::test(start_paused = true)]
async fn what_is_not_grown_together_is_grown_alone(#[case] inject: fn(&Node), #[case] extended: usize) {
    let node = Node::start().await;
    let grown = grow_all(&node, || inject(&node)).await;
    assert!(grown.iter().all(|size| *size.as_ref().unwrap() == 200 << 20), "{grown:?}");
    assert_eq!(node.lvm.count("lvextend"), extended);
}

#[tokio::test(start_paused = true)]
async fn growths_together_never_take_more_than_there_is() {
    let node = Node::start().await;
    for name in WAITING {
        node.create("ssd", name, GIB).await.unwrap();
    }
    node.lvm.set_latency(Duration::from_millis(20));
    let wanted = [("a", 3), ("b", 3), ("c", 3), ("d", 2)];
    let results = join_all(wanted.map(|(name, gib)| node.resize("ssd", name, gib << 30))).await;
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false, true]);
    assert_eq!(node.lvm.free("vg-ssd"), GIB);
}

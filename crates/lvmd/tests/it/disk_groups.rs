//! Disk groups: what is added to them, what is not, and what is only reported.

use std::sync::Arc;
use std::time::Duration;

use block_device::{Contents, Use};
use lvm::Lvm;
use lvmd::DiskMetrics;
use lvmd_config::{Config, DiskGroups, DiskReport, DiskState};
use lvmd_discovery::Discovery;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::timeout;
use topolvm_proto::lvmd::{DiskGroupItem, Empty};
use topolvm_testkit::lvm::{EXTENT, FakeDisk, FakeLvm};

use crate::node::{GIB, Node};

/// A machine whose lvmd looks at its disks when the test says so.
pub(crate) struct Disks {
    pub(crate) node: Node,
    groups: DiskGroups,
    pub(crate) discovery: Discovery<FakeLvm, FakeLvm>,
    report: watch::Receiver<Arc<DiskReport>>,
}

impl Disks {
    /// Starts lvmd with this group `ssd`, for all disks and without a time to settle unless more is said.
    pub(crate) async fn start(lvm: &FakeLvm, mode: &str, more: &str) -> Self {
        let config =
            format!("settle-time: 0\ndisk-groups: [{{name: ssd, mode: {mode}, paths: [/dev/sd.], spare-gb: 0{more}}}]");
        Self::start_with(lvm, &config).await
    }

    pub(crate) async fn start_with(lvm: &FakeLvm, config: &str) -> Self {
        let node = Node::start_with(lvm.clone(), config).await;
        let groups = Config::parse("f", config).unwrap().disk_groups;
        let (_, configured) = watch::channel(Arc::new(groups.clone()));
        let discovery = Discovery::new(lvm.clone(), Lvm::new(lvm.clone()), node.engine.clone(), configured);
        let report = discovery.report();
        Self { node, groups, discovery, report }
    }

    pub(crate) async fn look(&mut self) {
        self.discovery.scan_and_act(&self.groups).await;
    }

    pub(crate) fn state(&self, name: &str) -> DiskState {
        let report = self.report.borrow();
        report.disks.iter().find(|finding| finding.disk.name == name).unwrap().state.clone()
    }

    /// Returns the reasons for which a disk is not added.
    pub(crate) fn refusal(&self, name: &str) -> String {
        let state = self.state(name);
        let DiskState::Refused(reasons) = state else { panic!("{state:?}") };
        reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn class_size(&self) -> Option<u64> {
        self.node.engine.capacity().classes.first().map(|class| class.size)
    }
}

/// Returns the commands that changed the disks of volume groups.
fn changes(lvm: &FakeLvm) -> Vec<String> {
    let is_change = |command: &String| ["vg", "pv"].iter().any(|prefix| command.starts_with(prefix));
    lvm.commands()
        .into_iter()
        .filter(|command| is_change(command) && !command.starts_with("pvs") && !command.starts_with("vgs"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn in_the_mode_report_nothing_is_changed() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let mut disks = Disks::start(&lvm, "report", "").await;
    for _ in 0..3 {
        disks.look().await;
    }
    assert_eq!(disks.state("sdb"), DiskState::Candidate);
    assert_eq!(changes(&lvm), [""; 0]);
    assert_eq!(disks.class_size(), None);
}

#[tokio::test(start_paused = true)]
async fn disk_group_is_created_from_blank_disks_and_offers_its_class() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let mut disks = Disks::start(&lvm, "auto", "").await;
    disks.look().await;
    assert_eq!(disks.class_size(), Some(10 * GIB - EXTENT));
    disks.node.create("ssd", "a", GIB).await.unwrap();
    lvm.plug("sdc", 5 * GIB);
    disks.look().await;
    assert_eq!(disks.class_size(), Some(15 * GIB - 2 * EXTENT));
    let config = "--config allocation/use_blkid_wiping=1";
    assert_eq!(
        changes(&lvm),
        [
            format!("vgcreate {config} --addtag topolvm.io/disk-group=ssd ssd /dev/sdb"),
            format!("vgextend {config} ssd /dev/sdc")
        ]
    );
    disks.look().await;
    assert_eq!(changes(&lvm).len(), 2);
    assert_eq!(disks.state("sdc"), DiskState::Member { has_grown: false, evacuation: None });
}

#[tokio::test(start_paused = true)]
async fn whatever_speaks_against_a_disk_keeps_it_as_it_is() {
    type Edit = fn(&mut FakeDisk);
    let edits: [(Edit, &str); 7] = [
        (|disk| disk.disk.read_only = true, "read-only"),
        (|disk| disk.disk.uses.push(Use::Swap("sdb".to_owned())), "in use: sdb is swap space"),
        (|disk| disk.is_claimed = true, "another program has opened it"),
        (|disk| disk.signature = Some("crypto_LUKS".to_owned()), "has a signature: crypto_LUKS"),
        (|disk| disk.contents = Contents::Data(4096), "it has data at byte 4096"),
        (|disk| disk.disk.transport = Some("iscsi"), "attached by iscsi"),
        (|disk| disk.disk.transport = Some("usb"), "it is removable"),
    ];
    for (edit, expected) in edits {
        let lvm = FakeLvm::new();
        lvm.plug("sdb", 10 * GIB);
        lvm.edit_disk("sdb", edit);
        let mut disks = Disks::start(&lvm, "auto", "").await;
        disks.look().await;
        assert!(disks.refusal("sdb").contains(expected), "{}", disks.refusal("sdb"));
        assert_eq!(changes(&lvm), [""; 0], "{expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn disk_with_late_signature_is_kept_and_retried_after_a_delay() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let mut disks = Disks::start(&lvm, "auto", "").await;
    let machine = lvm.clone();
    lvm.before("vgcreate", move |_| machine.edit_disk("sdb", |disk| disk.signature = Some("xfs".to_owned())));
    disks.look().await;
    assert_eq!((lvm.group_of_disk("sdb"), lvm.count("vgcreate")), (None, 1));
    lvm.clear_faults();
    lvm.edit_disk("sdb", |disk| disk.signature = None);
    disks.look().await;
    assert!(disks.refusal("sdb").contains("Aborting pvcreate on /dev/sdb"), "{}", disks.refusal("sdb"));
    assert_eq!(lvm.count("vgcreate"), 1);
    tokio::time::advance(Duration::from_mins(6)).await;
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdb").as_deref(), Some("ssd"));
}

#[tokio::test(start_paused = true)]
async fn what_changes_between_two_looks_is_seen_by_the_second() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let mut disks = Disks::start(&lvm, "auto", "").await;
    // The first look lists LVM's physical volumes before it opens a disk, the last look does again
    let machine = lvm.clone();
    let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    lvm.before("pvs", move |_| {
        if looks.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            machine.edit_disk("sdb", |disk| disk.contents = Contents::Data(0));
        }
    });
    disks.look().await;
    assert_eq!(changes(&lvm), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn disk_is_added_after_being_blank_for_the_settle_time() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let group = "settle-time: 60\ndisk-groups: [{name: ssd, mode: auto, paths: [/dev/sd.]}]";
    let mut disks = Disks::start_with(&lvm, group).await;
    disks.look().await;
    tokio::time::advance(Duration::from_secs(59)).await;
    disks.look().await;
    assert_eq!((disks.state("sdb"), lvm.group_of_disk("sdb")), (DiskState::Candidate, None));
    // A use in between restarts the settle time
    lvm.edit_disk("sdb", |disk| disk.is_claimed = true);
    disks.look().await;
    lvm.edit_disk("sdb", |disk| disk.is_claimed = false);
    disks.look().await;
    tokio::time::advance(Duration::from_secs(59)).await;
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdb"), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdb").as_deref(), Some("ssd"));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_lacks_a_disk_gets_no_other_and_loses_none() {
    let lvm = FakeLvm::new();
    for name in ["sdb", "sdc"] {
        lvm.plug(name, 10 * GIB);
    }
    let mut disks = Disks::start(&lvm, "auto", "").await;
    disks.look().await;
    lvm.pull("sdb");
    lvm.plug("sdd", 10 * GIB);
    disks.look().await;
    let group = disks.report.borrow().groups[0].clone();
    assert_eq!((group.disks, group.missing), (2, 1));
    assert!(disks.refusal("sdd").contains("1 disks of volume group"));
    assert_eq!(lvm.group_of_disk("sdd"), None);
    lvm.plug("sdb", 10 * GIB);
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdd").as_deref(), Some("ssd"));
    assert!(changes(&lvm).iter().all(|command| command.starts_with("vgcreate") || command.starts_with("vgextend")));
}

#[tokio::test(start_paused = true)]
async fn foreign_volume_group_is_not_extended_until_it_is_tagged() {
    let lvm = FakeLvm::new().with_group("ssd", GIB);
    lvm.plug("sda", GIB);
    lvm.edit_disk("sda", |disk| disk.vg = Some("ssd".to_owned()));
    lvm.plug("sdb", GIB);
    let mut disks = Disks::start(&lvm, "auto", "").await;
    disks.look().await;
    let remedy = "`vgchange --addtag topolvm.io/disk-group=ssd ssd`";
    assert!(disks.refusal("sdb").contains(remedy), "{}", disks.refusal("sdb"));
    assert_eq!(changes(&lvm), [""; 0]);
    lvm.set_group_tags("ssd", &["topolvm.io/disk-group=ssd"]);
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdb").as_deref(), Some("ssd"));
}

#[tokio::test(start_paused = true)]
async fn a_group_grows_with_its_disk_in_the_mode_auto_alone() {
    for (mode, grows) in [("auto", true), ("report", false)] {
        let lvm = FakeLvm::new();
        lvm.plug("sdb", 10 * GIB);
        Disks::start(&lvm, "auto", "").await.look().await;
        let mut disks = Disks::start(&lvm, mode, "").await;
        lvm.edit_disk("sdb", |disk| disk.disk.size = 20 * GIB);
        for _ in 0..2 {
            disks.look().await;
        }
        assert_eq!(lvm.count("pvresize"), usize::from(grows));
        assert_eq!(disks.state("sdb"), DiskState::Member { has_grown: !grows, evacuation: None });
        assert_eq!(disks.class_size().unwrap() > 15 * GIB, grows);
    }
}

#[tokio::test(start_paused = true)]
async fn disk_growth_is_retried_after_pvresize_fails() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    let mut disks = Disks::start(&lvm, "auto", "").await;
    disks.look().await;
    lvm.edit_disk("sdb", |disk| disk.disk.size = 20 * GIB);
    lvm.fail("pvresize", 1, topolvm_testkit::lvm::Fault::says("Can't get lock for ssd."));
    for _ in 0..2 {
        disks.look().await;
    }
    assert_eq!(lvm.count("pvresize"), 1, "it is tried again later");
    tokio::time::advance(Duration::from_mins(5)).await;
    disks.look().await;
    assert_eq!(lvm.count("pvresize"), 2);
    assert!(disks.class_size().unwrap() > 15 * GIB);
}

#[tokio::test(start_paused = true)]
async fn disk_of_mode_report_is_never_claimed() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", GIB);
    lvm.edit_disk("sdb", |disk| disk.is_claimed = true);
    let mut disks = Disks::start(&lvm, "report", "").await;
    disks.look().await;
    assert_eq!(disks.state("sdb"), DiskState::Candidate);
}

#[tokio::test(start_paused = true)]
async fn a_group_takes_the_first_disks_up_to_its_maximum() {
    let lvm = FakeLvm::new();
    for name in ["sdb", "sdc", "sdd"] {
        lvm.plug(name, GIB);
    }
    let mut disks = Disks::start(&lvm, "auto", ", max-disks: 2").await;
    disks.look().await;
    assert_eq!(lvm.group_of_disk("sdc").as_deref(), Some("ssd"));
    assert_eq!(lvm.group_of_disk("sdd"), None);
    assert!(disks.refusal("sdd").contains("max-disks (2)"));
}

#[tokio::test(start_paused = true)]
async fn a_failing_lvm_leaves_the_last_report_and_says_why() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", GIB);
    let mut disks = Disks::start(&lvm, "report", "").await;
    disks.look().await;
    lvm.fail_always("pvs", topolvm_testkit::lvm::Fault::says("no"));
    disks.look().await;
    let report = disks.report.borrow().clone();
    assert!(report.failure.as_ref().unwrap().contains("does not list the physical volumes"), "{report:?}");
    assert_eq!(disks.state("sdb"), DiskState::Candidate);
}

#[tokio::test(start_paused = true)]
async fn disk_group_metrics_count_disks_and_refusals_by_reason() {
    let lvm = FakeLvm::new();
    for name in ["sdb", "sdc", "sdd", "sde"] {
        lvm.plug(name, GIB);
    }
    lvm.edit_disk("sdd", |disk| disk.signature = Some("ext4".to_owned()));
    lvm.edit_disk("sde", |disk| disk.is_claimed = true);
    let mut disks = Disks::start(&lvm, "auto", ", max-disks: 2").await;
    let mut registry = Registry::default();
    DiskMetrics::register(&mut registry).show(disks.discovery.report());
    disks.look().await;
    lvm.pull("sdb");
    disks.look().await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "disks{disk_group=\"ssd\"} 2",
        "missing_disks{disk_group=\"ssd\"} 1",
        "candidate_disks{disk_group=\"ssd\"} 0",
        "refused_disks{disk_group=\"ssd\",reason=\"group_incomplete\"} 2",
    ] {
        assert!(text.contains(&format!("topolvm_lvmd_disk_group_{line}\n")), "no {line} in {text}");
    }
    lvm.plug("sdb", GIB);
    disks.look().await;
    text.clear();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for reason in ["signature", "in_use"] {
        let line = format!("topolvm_lvmd_disk_group_refused_disks{{disk_group=\"ssd\",reason=\"{reason}\"}} 1\n");
        assert!(text.contains(&line), "no {line} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn storage_stream_reports_disks_after_a_scan_and_on_changes() {
    let lvm = FakeLvm::new();
    lvm.plug("sdb", 10 * GIB);
    lvm.plug("sdc", 5 * GIB);
    lvm.edit_disk("sdc", |disk| {
        disk.signature = Some("xfs".to_owned());
        disk.disk.ids = vec!["ata-X".to_owned()];
    });
    let mut disks = Disks::start(&lvm, "report", "").await;
    let mut stream = disks.node.storage.clone().watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().disk_report, None);
    disks.look().await;
    let report = stream.message().await.unwrap().unwrap().disk_report.unwrap();
    let group = DiskGroupItem { name: "ssd".to_owned(), mode: "report".to_owned(), ..DiskGroupItem::default() };
    assert_eq!((report.disk_groups, report.failure.as_str()), (vec![group], ""));
    let states: Vec<_> = report.disks.iter().map(|disk| (disk.path.as_str(), disk.state.as_str())).collect();
    assert_eq!(states, [("/dev/sdb", "candidate"), ("/dev/sdc", "refused")]);
    let refused = &report.disks[1];
    assert_eq!((refused.stable_name.as_str(), refused.size_bytes), ("/dev/disk/by-id/ata-X", 5 * GIB));
    assert_eq!(
        (&refused.reasons[..], refused.message.as_str()),
        (&["signature".to_owned()][..], "has a signature: xfs")
    );
    disks.look().await;
    let silence = timeout(Duration::from_mins(1), stream.message()).await;
    assert!(silence.is_err(), "nothing has changed: {silence:?}");
    lvm.pull("sdb");
    disks.look().await;
    assert_eq!(stream.message().await.unwrap().unwrap().disk_report.unwrap().disks.len(), 1);
}

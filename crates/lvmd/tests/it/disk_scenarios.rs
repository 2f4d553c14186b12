//! A property test: after any sequence of plugging, pulling, growing, writing, claiming and dying no disk is in a group
//! that was not blank when it was added.

use block_device::Contents;
use proptest::prelude::*;
use tokio::runtime::Builder;
use topolvm_testkit::lvm::{FakeLvm, Fault};

use crate::disk_groups::Disks;
use crate::node::GIB;

const NAMES: [&str; 4] = ["sdb", "sdc", "sdd", "sde"];

/// An event in the life of the machine.
#[derive(Clone, Debug)]
enum Event {
    Plug(&'static str),
    Pull(&'static str),
    Grow(&'static str),
    Write(&'static str),
    Sign(&'static str),
    Claim(&'static str, bool),
    ReadOnly(&'static str, bool),
    /// The next `vgextend` fails before or after it has done its work.
    Fail(bool),
    Look,
    /// lvmd dies and starts again.
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let name = || proptest::sample::select(&NAMES[..]);
    let event = prop_oneof![
        1 => name().prop_map(Event::Plug),
        1 => name().prop_map(Event::Pull),
        1 => name().prop_map(Event::Grow),
        1 => name().prop_map(Event::Write),
        1 => name().prop_map(Event::Sign),
        1 => (name(), any::<bool>()).prop_map(|(name, is_claimed)| Event::Claim(name, is_claimed)),
        1 => (name(), any::<bool>()).prop_map(|(name, read_only)| Event::ReadOnly(name, read_only)),
        1 => any::<bool>().prop_map(Event::Fail),
        5 => Just(Event::Look),
        1 => Just(Event::Restart),
    ];
    proptest::collection::vec(event, 1..60)
}

/// Changes the disk if it was ever plugged in and is in no group.
fn edit_free(lvm: &FakeLvm, plugged: &[&str], name: &str, edit: impl FnOnce(&mut topolvm_testkit::lvm::FakeDisk)) {
    if plugged.contains(&name) && lvm.group_of_disk(name).is_none() {
        lvm.edit_disk(name, edit);
    }
}

async fn live(events: Vec<Event>) {
    let lvm = FakeLvm::new();
    let mut disks = Disks::start(&lvm, "auto", "").await;
    // Disks that were ever plugged in, and those that were not blank or not free since the last look
    let (mut plugged, mut spoilt): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Plug(name) => {
                lvm.plug(name, 2 * GIB);
                plugged.push(name);
            }
            Event::Pull(name) if plugged.contains(&name) => lvm.pull(name),
            Event::Grow(name) if plugged.contains(&name) => lvm.edit_disk(name, |disk| disk.disk.size += GIB),
            Event::Write(name) => edit_free(&lvm, &plugged, name, |disk| {
                disk.contents = Contents::Data(0);
                spoilt.push(name);
            }),
            Event::Sign(name) => edit_free(&lvm, &plugged, name, |disk| {
                disk.signature = Some("ext4".to_owned());
                spoilt.push(name);
            }),
            Event::Claim(name, is_claimed) => edit_free(&lvm, &plugged, name, |disk| disk.is_claimed = is_claimed),
            Event::ReadOnly(name, read_only) => edit_free(&lvm, &plugged, name, |disk| disk.disk.read_only = read_only),
            Event::Fail(true) => lvm.fail("vgextend", 1, Fault::Timeout),
            Event::Fail(false) => lvm.fail_after_success("vgextend", 1, Fault::Spawn),
            Event::Look => disks.look().await,
            Event::Restart => disks = Disks::start(&lvm, "auto", "").await,
            Event::Pull(_) | Event::Grow(_) => {}
        }
        for name in &spoilt {
            assert_eq!(lvm.group_of_disk(name), None, "{name} had data");
        }
    }
    let allowed = ["vgcreate", "vgextend", "pvresize", "pvs", "fullreport", "vgs", "lvs", "lvmconfig"];
    for command in lvm.commands() {
        assert!(allowed.iter().any(|allowed| command.starts_with(allowed)), "{command}");
        assert!(!command.contains("--yes") && !command.contains(" -y") && !command.contains(" -f"), "{command}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_disk_with_data_is_ever_added_to_a_group(events in events()) {
        Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(live(events));
    }
}

//! A property test: after any sequence of requests, crashes and external changes lvmd knows what there is.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tonic::{Code, Status};
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, LogicalVolume};
use topolvm_testkit::lvm::scenario::{CLASSES, Event, NAMES, POOLS, Request, Step, scenarios};
use topolvm_testkit::lvm::{EXTENT, FakeLvm, FakeVolume};

use crate::node::{GIB, Node, THIN_CONFIG};

/// An lvmd in a process of its own, as far as a test can have that.
struct Life {
    runtime: Runtime,
    node: Node,
}

impl Life {
    fn begin(lvm: &FakeLvm) -> Self {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let node = runtime.block_on(Node::start_with(lvm.clone(), THIN_CONFIG));
        Self { runtime, node }
    }

    fn wait(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    fn request(&self, request: &Request) {
        let lvm = &self.node.lvm;
        let before = contents(lvm);
        let result = self.runtime.block_on(answer(&self.node, request));
        let after = contents(lvm);
        let size = |name: &str| after.get(name).map_or(0, FakeVolume::bytes);
        match (request, result) {
            (Request::Create { name, gib, .. }, Ok(Some(made))) => check_made(lvm, &made, name, *gib),
            (Request::Snapshot { name, source, gib, .. }, Ok(Some(made))) => {
                check_made(lvm, &made, name, *gib);
                if let (Some(source), false) = (before.get(*source), before.contains_key(*name)) {
                    assert!(size(name) >= source.bytes());
                }
            }
            (Request::Resize { name, gib, .. }, Ok(_)) => assert!(size(name) >= gib * GIB),
            (Request::Remove { name, .. }, Ok(_)) => assert!(!after.contains_key(*name)),
            (Request::Remove { name, .. } | Request::Resize { name, .. }, Err(status))
                if status.code() == Code::NotFound =>
            {
                assert!(!after.contains_key(*name), "{name} is there, and not found: {status}");
            }
            (_, Err(status)) => assert_ne!(status.code(), Code::Unknown, "{status}"),
            (_, Ok(None)) => {}
        }
        // Only the requested volume is touched. Unfinished volumes were never reported.
        let asked = request.name();
        for (name, volume) in before.iter().filter(|(name, volume)| *name != asked && !is_unfinished(volume)) {
            let mut volume = volume.clone();
            if after.get(name).is_some_and(|after| after.origin.is_none()) {
                volume.origin = None;
            }
            assert_eq!(after.get(name), Some(&volume), "{name} was touched");
        }
    }

    /// Kills it in the middle of a request, if it comes to that.
    fn crash(self, request: &Request, command: &str, after: bool) {
        let mut pause = if after { self.node.lvm.pause_after(command) } else { self.node.lvm.pause(command) };
        self.runtime.block_on(async {
            tokio::select! {
                _ = answer(&self.node, request) => {}
                () = pause.reached() => {}
            }
        });
        drop(self.runtime);
    }
}

async fn answer(node: &Node, request: &Request) -> Result<Option<LogicalVolume>, Status> {
    match *request {
        Request::Create { class, name, gib } => node.create(class, name, gib * GIB).await.map(Some),
        Request::Resize { class, name, gib } => {
            node.resize(class, name, i64::try_from(gib * GIB).unwrap()).await.map(|_| None)
        }
        Request::Snapshot { class, source, name, gib } => {
            let wanted = CreateLvSnapshotRequest {
                name: name.to_owned(),
                source_volume: source.to_owned(),
                device_class: class.to_owned(),
                access_type: "rw".to_owned(),
                size_bytes: i64::try_from(gib * GIB).unwrap(),
                ..CreateLvSnapshotRequest::default()
            };
            node.snapshot(wanted).await.map(Some)
        }
        Request::Remove { class, name } => node.remove(class, name).await.map(|()| None),
    }
}

fn contents(lvm: &FakeLvm) -> BTreeMap<String, FakeVolume> {
    lvm.volumes("vg").into_iter().filter_map(|name| lvm.volume("vg", &name).map(|volume| (name, volume))).collect()
}

fn is_unfinished(volume: &FakeVolume) -> bool {
    volume.tags.iter().any(|tag| tag.starts_with("topolvm.io/making="))
}

/// A volume that was returned to a caller exists, is ready and large enough.
fn check_made(lvm: &FakeLvm, made: &LogicalVolume, name: &str, gib: u64) {
    let there = lvm.volume("vg", name).expect("the returned volume does not exist");
    assert!(!is_unfinished(&there), "{there:?}");
    assert!(there.bytes() >= gib * GIB);
    assert_eq!(made.size_bytes, i64::try_from(there.bytes()).unwrap());
}

fn happen(lvm: &FakeLvm, event: &Event) {
    let edit = |name: &str, edit: &dyn Fn(&mut FakeVolume)| {
        if lvm.volume("vg", name).is_some() {
            lvm.edit_volume("vg", name, edit);
        }
    };
    match *event {
        Event::Add { name, pool, gib } => {
            let volume = match pool {
                Some(pool) => FakeVolume::thin(gib * GIB, pool),
                None => FakeVolume::thick(gib * GIB),
            };
            if lvm.volume("vg", name).is_none() && lvm.free("vg") >= volume.allocated * EXTENT {
                lvm.add_volume("vg", name, volume);
            }
        }
        Event::Lose { name } => {
            if lvm.volume("vg", name).is_some() {
                lvm.remove_volume("vg", name);
            }
        }
        Event::Extend => lvm.extend_group("vg", GIB),
        Event::Activate { name, active } => edit(name, &|volume| volume.active = active),
        Event::Open { name, open } => edit(name, &|volume| volume.open = open && volume.active),
        Event::Move { name } => edit(name, &|volume| volume.minor += 1000),
        Event::Fill { pool, percent } => edit(pool, &|pool| pool.data_percent = f64::from(percent)),
        Event::Hide(hide) => lvm.hide_metadata("vg", hide),
        Event::Miss(missing) => lvm.set_missing_pvs("vg", missing),
    }
}

/// Name, size, tags and device number of each volume of a class that callers may know.
type Listed = Vec<(String, u64, Vec<String>, (u32, u32))>;

fn there(lvm: &FakeLvm, class: &str) -> (Listed, u64) {
    let contents = contents(lvm);
    let pool = match class {
        "thin" => Some("pool"),
        "other" => Some("pool2"),
        _ => None,
    };
    let own = |name: &String, volume: &FakeVolume| volume.pool.as_deref() == pool && !POOLS.contains(&name.as_str());
    let own: Vec<_> = contents.iter().filter(|(name, volume)| own(name, volume)).collect();
    let reserved: u64 = own.iter().map(|(_, volume)| volume.bytes()).sum();
    let free = match class {
        "thin" => (5 * GIB).saturating_sub(reserved),
        "other" => (10 * GIB).saturating_sub(reserved),
        _ => lvm.free("vg").saturating_sub(GIB),
    };
    let shown = own.into_iter().filter(|(_, volume)| !is_unfinished(volume)).map(|(name, volume)| {
        let device = if volume.active { (253, volume.minor) } else { (0, 0) };
        (name.clone(), volume.bytes(), volume.tags.clone(), device)
    });
    (shown.collect(), free)
}

async fn reported(node: &Node, class: &str) -> (Listed, u64) {
    let volumes = node.list(class).await.unwrap().into_iter();
    let listed = volumes.map(|volume| {
        let size = u64::try_from(volume.size_bytes).unwrap();
        (volume.name, size, volume.tags, (volume.dev_major, volume.dev_minor))
    });
    (listed.collect(), node.free(class).await.unwrap())
}

fn live(steps: &[Step]) {
    let lvm = FakeLvm::new().with_group("vg", 20 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume::thin_pool(4 * GIB));
    lvm.add_volume("vg", "pool2", FakeVolume::thin_pool(GIB));
    let mut life = Life::begin(&lvm);
    for step in steps {
        match step {
            Step::Request(request) => life.request(request),
            Step::Crash { request, command, after } => {
                life.crash(request, command, *after);
                lvm.clear_faults();
                life = Life::begin(&lvm);
            }
            Step::Restart => {
                lvm.clear_faults();
                drop(life);
                life = Life::begin(&lvm);
            }
            Step::Event(event) => happen(&lvm, event),
            Step::Fault { command, nth, fault, after: false } => lvm.fail(command, *nth, fault.clone()),
            Step::Fault { command, nth, fault, after: true } => lvm.fail_after_success(command, *nth, fault.clone()),
            Step::Heal => lvm.clear_faults(),
            Step::Wait(time) => life.wait(*time),
        }
    }
    lvm.clear_faults();
    happen(&lvm, &Event::Hide(false));
    happen(&lvm, &Event::Miss(0));
    // An LVM that failed is asked again within a minute.
    life.wait(Duration::from_secs(62));
    for class in CLASSES {
        assert_eq!(life.runtime.block_on(reported(&life.node, class)), there(&lvm, class), "{class}");
    }
    assert!(*life.node.engine.lvm_works().borrow());
    for name in NAMES {
        happen(&lvm, &Event::Open { name, open: false });
    }
    if contents(&lvm).values().any(is_unfinished) {
        life.wait(Duration::from_mins(11));
    }
    let left: Vec<_> = contents(&lvm).into_iter().filter(|(_, volume)| is_unfinished(volume)).collect();
    assert!(left.is_empty(), "unfinished: {left:?}");
    for class in CLASSES {
        assert_eq!(life.runtime.block_on(reported(&life.node, class)), there(&lvm, class), "{class}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lvmd_agrees_with_lvm_after_random_requests(steps in scenarios()) {
        live(&steps);
    }
}

//! Random sequences of requests to lvmd, external changes of its volume group, faults and crashes, for lvmd on the fake
//! LVM and on the real one.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::Fault;

/// The device classes: a thick one, and a thin one for each of [`POOLS`].
pub const CLASSES: [&str; 3] = ["thick", "thin", "other"];
/// The thin pools of the classes `thin` and `other`.
pub const POOLS: [&str; 2] = ["pool", "pool2"];
/// All names of volumes. The first three are mostly thin, then one is thick, and the last is in the other pool.
pub const NAMES: [&str; 5] = ["v0", "v1", "v2", "v3", "v4"];
/// LVM commands that change something, and the report after it.
pub const COMMANDS: [&str; 5] = ["fullreport", "lvchange", "lvcreate", "lvremove", "lvextend"];

/// A request of a client. Sizes are in units of the test's own: GiB on the fake LVM.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "they are the fields of lvmd's requests")]
pub enum Request {
    Create { class: &'static str, name: &'static str, gib: u64 },
    Resize { class: &'static str, name: &'static str, gib: u64 },
    Snapshot { class: &'static str, source: &'static str, name: &'static str, gib: u64 },
    Remove { class: &'static str, name: &'static str },
}

impl Request {
    /// Returns the name of its volume.
    pub fn name(&self) -> &'static str {
        let (Self::Create { name, .. }
        | Self::Resize { name, .. }
        | Self::Snapshot { name, .. }
        | Self::Remove { name, .. }) = self;
        name
    }
}

/// An external change of the volume group.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the variants say it")]
pub enum Event {
    /// A volume is created.
    Add { name: &'static str, pool: Option<&'static str>, gib: u64 },
    /// A volume is removed.
    Lose { name: &'static str },
    /// The group gets another disk.
    Extend,
    /// A volume is activated or deactivated.
    Activate { name: &'static str, active: bool },
    /// A volume is opened or closed.
    Open { name: &'static str, open: bool },
    /// A volume gets another device number.
    Move { name: &'static str },
    /// A thin pool is filled by writes to its volumes.
    Fill { pool: &'static str, percent: u8 },
    /// The metadata becomes unreadable, or readable again.
    Hide(bool),
    /// This number of disks is missing.
    Miss(u32),
}

/// A step of a scenario.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client sends a request.
    Request(Request),
    /// lvmd and LVM die in the middle of this command of a request.
    Crash {
        /// The request.
        request: Request,
        /// One of [`COMMANDS`].
        command: &'static str,
        /// True when LVM has done its work by then.
        after: bool,
    },
    /// lvmd restarts.
    Restart,
    /// An external change happens.
    Event(Event),
    /// A later LVM command fails.
    Fault {
        /// One of [`COMMANDS`].
        command: &'static str,
        /// Number of its start from now on; 1 is the next.
        nth: usize,
        /// The fault.
        fault: Fault,
        /// True when it has done its work by then.
        after: bool,
    },
    /// All faults that have not happened yet are removed.
    Heal,
    /// Nothing happens for a while.
    Wait(Duration),
}

/// Generates a name and, mostly, the one class that has volumes of this name.
fn target() -> impl Strategy<Value = (&'static str, &'static str)> {
    let home = select(vec![("thin", "v0"), ("thin", "v1"), ("thin", "v2"), ("thick", "v3"), ("other", "v4")]);
    prop_oneof![8 => home, 1 => (select(&CLASSES[..]), select(&NAMES[..]))]
}

fn request() -> impl Strategy<Value = Request> {
    let gib = 0..4u64;
    prop_oneof![
        5 => (target(), 1..3u64).prop_map(|((class, name), gib)| Request::Create { class, name, gib }),
        2 => (target(), gib.clone()).prop_map(|((class, name), gib)| Request::Resize { class, name, gib }),
        3 => (target(), select(&NAMES[..3]), gib)
            .prop_map(|((class, source), name, gib)| Request::Snapshot { class, source, name, gib }),
        2 => target().prop_map(|(class, name)| Request::Remove { class, name }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let name = select(&NAMES[..]);
    let pool = select(&POOLS[..]);
    prop_oneof![
        (name.clone(), proptest::option::of(pool.clone()), 1..3u64).prop_map(|(name, pool, gib)| Event::Add {
            name,
            pool,
            gib
        }),
        name.clone().prop_map(|name| Event::Lose { name }),
        Just(Event::Extend),
        (name.clone(), any::<bool>()).prop_map(|(name, active)| Event::Activate { name, active }),
        (name.clone(), any::<bool>()).prop_map(|(name, open)| Event::Open { name, open }),
        name.prop_map(|name| Event::Move { name }),
        (pool, 0..100u8).prop_map(|(pool, percent)| Event::Fill { pool, percent }),
        any::<bool>().prop_map(Event::Hide),
        (0..2u32).prop_map(Event::Miss),
    ]
}

fn fault() -> impl Strategy<Value = Step> {
    let fault =
        select(vec![Fault::says("oops"), Fault::Timeout, Fault::Spawn, Fault::Garbled, Fault::Exit(3, String::new())]);
    (select(&COMMANDS[..]), 1..3usize, fault, any::<bool>()).prop_map(|(command, nth, fault, after)| Step::Fault {
        command,
        nth,
        fault,
        after,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => request().prop_map(Step::Request),
        1 => (request(), select(&COMMANDS[..]), any::<bool>())
            .prop_map(|(request, command, after)| Step::Crash { request, command, after }),
        1 => Just(Step::Restart),
        4 => event().prop_map(Step::Event),
        2 => fault(),
        1 => Just(Step::Heal),
        2 => select(vec![1, 1, 1, 2, 2, 2, 70, 700]).prop_map(|seconds| Step::Wait(Duration::from_secs(seconds))),
    ]
}

/// Generates sequences of up to forty steps.
pub fn scenarios() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..40)
}

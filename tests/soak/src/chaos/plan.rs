//! The plan of a run, generated from its seed: sequences of steps with volumes, and concurrent events.

use std::fmt;

use super::class::Class;
use super::disturbance::{Disturbance, DisturbanceKind};
use system_tests::random::Random;

/// Smallest volume in MiB: the minimum allocation of ext4, to which smaller requests would be raised.
const MIN_MEBIBYTES: u64 = 32;
/// One in so many sequences keeps its volumes, so that there are some to check at the end.
const KEPT_ONE_IN: usize = 4;

/// Content of a new claim: empty, or a copy of a snapshot or claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimSource {
    Empty,
    Snapshot(String),
    Claim(String),
}

/// An operation of a user, who waits for its completion unless documented otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create {
        claim: String,
        class: Class,
        mebibytes: u64,
        source: ClaimSource,
    },
    /// Creates a claim and deletes it at once, in whatever state it is.
    CreateAndDelete {
        claim: String,
        class: Class,
        mebibytes: u64,
    },
    Grow {
        claim: String,
        mebibytes: u64,
        waits: bool,
    },
    Snapshot {
        snapshot: String,
        claim: String,
        waits: bool,
    },
    DeleteSnapshot {
        snapshot: String,
    },
    DeleteClaim {
        claim: String,
    },
}

/// Steps that are done in order; several sequences run at the same time. Names of objects begin with the sequence's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) name: String,
    pub(super) steps: Vec<Step>,
}

/// A program that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    Node,
    Lvmd,
    /// The replica of the controller that the sidecars are connected to.
    Controller,
    OtherController,
}

/// Kind of an outage of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outage {
    /// The process is killed, and connections are refused.
    Killed,
    /// The process is stopped: it accepts connections and requests, and answers nothing.
    Frozen,
    /// The nodes lose their network; packets are dropped silently.
    CutOff,
}

/// A kill, an outage or a disturbance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Kill(Victim),
    /// An outage of so many seconds; half-way through a program may be killed, which then starts without an API server.
    Outage {
        outage: Outage,
        seconds: u64,
        meanwhile: Option<Victim>,
    },
    /// topolvm-controller replaces the sidecars, or they it.
    ChangeControllers,
    /// A disturbance of the node of this number.
    Disturb {
        node: usize,
        disturbance: Disturbance,
    },
}

/// An event, and the number of steps of all sequences together after which it happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlannedEvent {
    pub(super) after: usize,
    pub(super) event: Event,
}

/// Sequences, events, and what is deleted at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) sequences: Vec<Sequence>,
    pub(super) events: Vec<PlannedEvent>,
    /// The CustomResourceDefinition of LogicalVolumes is deleted when all sequences are done, and recreated.
    pub(super) deletes_definition: bool,
    /// The number of the node that is deleted when all sequences have been done, and that registers again.
    pub(super) deleted_node: Option<usize>,
}

impl Plan {
    /// Generates a plan with this number of sequences, at least two kills of each of the four processes, an outage of a
    /// few seconds, one of a minute for every fifty sequences, each kind of disturbance once for every thirty, and a
    /// deleted definition and node at the end. With `only` the plan injects this kind of fault only, at least four
    /// times.
    pub(super) fn new(seed: u64, sequences: usize, only: Option<DisturbanceKind>) -> Self {
        let mut random = Random::new(seed);
        let sequences: Vec<Sequence> = (0..sequences).map(|number| build_sequence(&mut random, number)).collect();
        let steps = sequences.iter().map(|sequence| sequence.steps.len()).sum();
        let all = match only {
            None => {
                let mut all = kills_and_outages(&mut random, sequences.len());
                for kind in DisturbanceKind::MEANWHILE {
                    all.extend(disturbances(&mut random, kind, (sequences.len() / 30).max(1)));
                }
                all
            }
            Some(kind) => disturbances(&mut random, kind, (sequences.len() / 5).max(4)),
        };
        let events = schedule(&mut random, all, steps);
        let happens = |wanted| only.is_none_or(|kind| kind == wanted);
        let deleted_node = happens(DisturbanceKind::NodeDeleted).then(|| choose_node(&mut random));
        Self { sequences, events, deletes_definition: happens(DisturbanceKind::DefinitionDeleted), deleted_node }
    }

    /// Adds two changes between the sidecars and topolvm-controller, after each third of the steps.
    pub(super) fn with_changes(mut self) -> Self {
        let steps: usize = self.sequences.iter().map(|sequence| sequence.steps.len()).sum();
        let change = |third| PlannedEvent { after: steps * third / 3, event: Event::ChangeControllers };
        self.events.extend([1, 2].map(change));
        self.events.sort_by_key(|planned| planned.after);
        self
    }
}

/// Chooses the number of a node; the user of the number takes it modulo the number of nodes.
fn choose_node(random: &mut Random) -> usize {
    usize::try_from(random.between(0, 240)).unwrap_or(0)
}

fn disturbances(random: &mut Random, kind: DisturbanceKind, times: usize) -> Vec<Event> {
    let one = |_| Some(Event::Disturb { node: choose_node(random), disturbance: Disturbance::choose(kind, random)? });
    (0..times).filter_map(one).collect()
}

fn kills_and_outages(random: &mut Random, sequences: usize) -> Vec<Event> {
    let mut all = Vec::new();
    for victim in [Victim::Node, Victim::Lvmd, Victim::Controller, Victim::OtherController] {
        all.extend(std::iter::repeat_n(Event::Kill(victim), (sequences / 8).max(2)));
    }
    let long = sequences / 50;
    let short = (sequences / 12).max(1);
    for number in 0..long + short {
        let outage = random.of(&[Outage::Killed, Outage::Frozen, Outage::CutOff]).copied().unwrap_or(Outage::Killed);
        let seconds = if number < long { 60 } else { random.between(3, 8) };
        // The node cannot receive commands during the partition
        let victims: &[Victim] = match outage {
            Outage::CutOff => &[Victim::Controller, Victim::OtherController],
            Outage::Killed | Outage::Frozen => &[Victim::Node, Victim::Lvmd, Victim::Controller],
        };
        let meanwhile = if random.percent(60) { random.of(victims).copied() } else { None };
        all.push(Event::Outage { outage, seconds, meanwhile });
    }
    all
}

/// Schedules each event after a random number of steps.
fn schedule(random: &mut Random, all: Vec<Event>, steps: usize) -> Vec<PlannedEvent> {
    // Not in the last tenth, so that something is left to be disturbed
    let end = u64::try_from(steps * 9 / 10).unwrap_or(u64::MAX);
    let mut planned: Vec<PlannedEvent> = all
        .into_iter()
        .map(|event| PlannedEvent { after: usize::try_from(random.between(1, end)).unwrap_or(1), event })
        .collect();
    planned.sort_by_key(|planned| planned.after);
    planned
}

/// The state of a claim in the plan.
struct PlannedClaim {
    name: String,
    mebibytes: u64,
    /// True after the first expansion: csi-resizer expands a volume again only when a pod has used the first expansion.
    is_grown: bool,
}

/// A snapshot that was waited for, and its least size.
struct PlannedSnapshot {
    name: String,
    mebibytes: u64,
}

/// Builds a sequence step by step, with the claims and snapshots that exist at this point.
struct SequenceBuilder<'a> {
    random: &'a mut Random,
    name: String,
    class: Class,
    steps: Vec<Step>,
    claims: Vec<PlannedClaim>,
    snapshots: Vec<PlannedSnapshot>,
    made: usize,
}

fn build_sequence(random: &mut Random, number: usize) -> Sequence {
    let class = if random.percent(60) { Class::Thin } else { Class::Thick };
    let name = format!("s{number:03}");
    let mut all =
        SequenceBuilder { random, name, class, steps: Vec::new(), claims: Vec::new(), snapshots: Vec::new(), made: 0 };
    all.create(ClaimSource::Empty, MIN_MEBIBYTES);
    for _ in 0..all.random.between(2, 6) {
        all.add_step();
    }
    if !number.is_multiple_of(KEPT_ONE_IN) {
        all.delete_everything();
    }
    Sequence { name: all.name, steps: all.steps }
}

impl SequenceBuilder<'_> {
    fn new_name(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{}-{kind}{}", self.name, self.made)
    }

    fn create(&mut self, source: ClaimSource, least: u64) {
        let claim = self.new_name("claim");
        let mebibytes = least + self.random.between(0, 24);
        self.claims.push(PlannedClaim { name: claim.clone(), mebibytes, is_grown: false });
        self.steps.push(Step::Create { claim, class: self.class, mebibytes, source });
    }

    fn add_step(&mut self) {
        match (self.random.between(0, 100), self.class) {
            (0..25, _) | (43..60, Class::Thick) => self.grow(),
            (25..33, _) => {
                let claim = self.new_name("hasty");
                let mebibytes = MIN_MEBIBYTES + self.random.between(0, 24);
                self.steps.push(Step::CreateAndDelete { claim, class: self.class, mebibytes });
            }
            (33..43, _) => self.delete_claim(),
            (60.., Class::Thick) => self.create(ClaimSource::Empty, MIN_MEBIBYTES),
            (43..65, Class::Thin) => self.snapshot(),
            (65..80, Class::Thin) => self.restore(),
            (80..90, Class::Thin) => self.clone_claim(),
            (90.., Class::Thin) => self.delete_snapshot(),
        }
    }

    fn grow(&mut self) {
        let by = self.random.between(1, 32);
        let waits = self.random.percent(60);
        let mut fresh: Vec<&mut PlannedClaim> = self.claims.iter_mut().filter(|claim| !claim.is_grown).collect();
        let index = self.random.index(fresh.len());
        let Some(claim) = index.and_then(|index| fresh.get_mut(index)) else {
            return self.create(ClaimSource::Empty, MIN_MEBIBYTES);
        };
        claim.mebibytes += by;
        claim.is_grown = true;
        self.steps.push(Step::Grow { claim: claim.name.clone(), mebibytes: claim.mebibytes, waits });
    }

    fn snapshot(&mut self) {
        let snapshot = self.new_name("snapshot");
        let waits = self.random.percent(75);
        let Some(claim) = self.random.of(&self.claims) else { return };
        let step = Step::Snapshot { snapshot: snapshot.clone(), claim: claim.name.clone(), waits };
        let taken = PlannedSnapshot { name: snapshot, mebibytes: round_to_extents(claim.mebibytes) };
        self.steps.push(step);
        if waits {
            self.snapshots.push(taken);
        } else {
            self.steps.push(Step::DeleteSnapshot { snapshot: taken.name });
        }
    }

    fn restore(&mut self) {
        let Some(taken) = self.random.of(&self.snapshots) else { return self.snapshot() };
        let (source, least) = (ClaimSource::Snapshot(taken.name.clone()), taken.mebibytes);
        self.create(source, least);
    }

    fn clone_claim(&mut self) {
        let Some(source) = self.random.of(&self.claims) else { return };
        let (source, least) = (ClaimSource::Claim(source.name.clone()), round_to_extents(source.mebibytes));
        self.create(source, least);
    }

    fn delete_claim(&mut self) {
        if let Some(index) = self.random.index(self.claims.len()) {
            let claim = self.claims.remove(index).name;
            self.steps.push(Step::DeleteClaim { claim });
        }
        if self.claims.is_empty() {
            self.create(ClaimSource::Empty, MIN_MEBIBYTES);
        }
    }

    fn delete_snapshot(&mut self) {
        if let Some(index) = self.random.index(self.snapshots.len()) {
            let snapshot = self.snapshots.remove(index).name;
            self.steps.push(Step::DeleteSnapshot { snapshot });
        }
    }

    fn delete_everything(&mut self) {
        while !(self.claims.is_empty() && self.snapshots.is_empty()) {
            let all = self.claims.len() + self.snapshots.len();
            let Some(index) = self.random.index(all) else { return };
            if index < self.claims.len() {
                let claim = self.claims.remove(index).name;
                self.steps.push(Step::DeleteClaim { claim });
            } else {
                let snapshot = self.snapshots.remove(index - self.claims.len()).name;
                self.steps.push(Step::DeleteSnapshot { snapshot });
            }
        }
    }
}

/// Rounds MiB up to extents of 4 MiB, as LVM does: a copy must not be smaller than its source.
fn round_to_extents(mebibytes: u64) -> u64 {
    mebibytes.next_multiple_of(4)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_once = |waits: &bool| if *waits { "" } else { " and does not wait" };
        match self {
            Self::Create { claim, class, mebibytes, source } => {
                write!(f, "creates {claim} of {mebibytes}Mi in {}", class.name())?;
                match source {
                    ClaimSource::Empty => Ok(()),
                    ClaimSource::Snapshot(source) | ClaimSource::Claim(source) => write!(f, " from {source}"),
                }
            }
            Self::CreateAndDelete { claim, class, mebibytes } => {
                write!(f, "creates {claim} of {mebibytes}Mi in {} and deletes it at once", class.name())
            }
            Self::Grow { claim, mebibytes, waits } => write!(f, "grows {claim} to {mebibytes}Mi{}", at_once(waits)),
            Self::Snapshot { snapshot, claim, waits } => {
                write!(f, "takes {snapshot} of {claim}{}", at_once(waits))
            }
            Self::DeleteSnapshot { snapshot } => write!(f, "deletes {snapshot}"),
            Self::DeleteClaim { claim } => write!(f, "deletes {claim}"),
        }
    }
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "topolvm-node",
            Self::Lvmd => "lvmd",
            Self::Controller => "topolvm-controller",
            Self::OtherController => "the other topolvm-controller",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_plan_follows_from_its_seed() {
        assert_eq!(Plan::new(7, 20, None), Plan::new(7, 20, None));
        assert_ne!(Plan::new(7, 20, None), Plan::new(8, 20, None));
    }

    #[test]
    fn small_plan_kills_each_process_twice_and_has_a_short_outage() {
        let plan = Plan::new(1, 10, None);
        for victim in [Victim::Node, Victim::Lvmd, Victim::Controller, Victim::OtherController] {
            let kills = plan.events.iter().filter(|planned| planned.event == Event::Kill(victim)).count();
            assert_eq!(kills, 2, "{victim}");
        }
        let outages: Vec<_> = plan.events.iter().filter(|event| matches!(event.event, Event::Outage { .. })).collect();
        assert!(
            matches!(outages.as_slice(), [PlannedEvent { event: Event::Outage { seconds: 3..8, .. }, .. }]),
            "{outages:?}"
        );
    }

    #[test]
    fn changes_of_the_controllers_alter_nothing_else() {
        let plan = Plan::new(1, 30, None);
        let with = Plan::new(1, 30, None).with_changes();
        let (changes, others): (Vec<_>, Vec<_>) =
            with.events.into_iter().partition(|planned| planned.event == Event::ChangeControllers);
        assert_eq!((changes.len(), others), (2, plan.events));
    }

    #[test]
    fn every_kind_of_disturbance_happens_and_can_be_had_alone() {
        let kinds = |plan: &Plan| {
            let kind = |planned: &PlannedEvent| match &planned.event {
                Event::Disturb { disturbance, .. } => Some(disturbance.kind()),
                Event::Kill(_) | Event::Outage { .. } | Event::ChangeControllers => None,
            };
            plan.events.iter().map(kind).collect::<Vec<_>>()
        };
        let all = Plan::new(1, 10, None);
        let mut happen: Vec<_> = kinds(&all).into_iter().flatten().collect();
        happen.sort();
        assert_eq!(happen, DisturbanceKind::MEANWHILE);
        assert!(all.deleted_node.is_some() && all.deletes_definition);
        for kind in DisturbanceKind::MEANWHILE {
            let plan = Plan::new(1, 10, Some(kind));
            assert_eq!((kinds(&plan), plan.deleted_node), (vec![Some(kind); 4], None));
            assert!(!plan.deletes_definition);
            assert_eq!(plan.sequences, all.sequences, "the sequences do not depend on the kind of fault");
        }
        let plan = Plan::new(1, 10, Some(DisturbanceKind::NodeDeleted));
        assert!(plan.events.is_empty() && plan.deleted_node.is_some() && !plan.deletes_definition);
        let plan = Plan::new(1, 10, Some(DisturbanceKind::DefinitionDeleted));
        assert!(plan.events.is_empty() && plan.deleted_node.is_none() && plan.deletes_definition);
    }

    #[test]
    fn plan_of_200_sequences_has_minute_outages_and_no_late_events() {
        let plan = Plan::new(1, 200, None);
        let steps: usize = plan.sequences.iter().map(|sequence| sequence.steps.len()).sum();
        assert!(plan.events.iter().all(|planned| planned.after < steps));
        let long = plan.events.iter().filter(|event| matches!(event.event, Event::Outage { seconds: 60, .. })).count();
        assert_eq!(long, 4);
    }

    #[test]
    fn steps_use_what_exists_and_copies_are_large_enough() {
        for seed in 0..50 {
            for sequence in Plan::new(seed, 20, None).sequences {
                let mut sizes = std::collections::HashMap::new();
                let mut ever = HashSet::new();
                for step in &sequence.steps {
                    match step {
                        Step::Create { claim, mebibytes, source, .. } => {
                            match source {
                                ClaimSource::Empty => {}
                                ClaimSource::Snapshot(source) | ClaimSource::Claim(source) => {
                                    assert!(sizes.get(source).is_some_and(|size| size <= mebibytes), "{sequence:?}");
                                }
                            }
                            assert!(ever.insert(claim.clone()));
                            sizes.insert(claim.clone(), *mebibytes);
                        }
                        Step::CreateAndDelete { claim, .. } => assert!(ever.insert(claim.clone())),
                        Step::Grow { claim, mebibytes, .. } => {
                            assert!(ever.insert(format!("{claim} grows")));
                            assert!(sizes.insert(claim.clone(), *mebibytes).is_some_and(|before| before < *mebibytes));
                        }
                        Step::Snapshot { snapshot, claim, .. } => {
                            assert!(ever.insert(snapshot.clone()));
                            let size = round_to_extents(sizes[claim]);
                            sizes.insert(snapshot.clone(), size);
                        }
                        Step::DeleteSnapshot { snapshot: name } | Step::DeleteClaim { claim: name } => {
                            assert!(sizes.remove(name).is_some(), "{sequence:?}");
                        }
                    }
                }
            }
        }
    }
}

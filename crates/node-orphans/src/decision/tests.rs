//! The next step with an LV, by setting, proof and time.

use lvmd_client::Lv;
use proptest::prelude::*;
use topolvm_api::ApiFlavor;

use super::*;

const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const HOUR: Duration = Duration::from_hours(1);
const NOW: i64 = 1_000_000;

fn candidate(quarantined_at: Option<i64>) -> Candidate {
    let name = if quarantined_at.is_some() { format!("topolvm.quarantine.{UID}") } else { UID.to_owned() };
    let lv = Lv {
        name,
        path: "/dev/vg/x".into(),
        size_bytes: 1,
        number: None,
        tags: quarantined_at.map(|at| format!("topolvm.io/quarantined={at}")).into_iter().collect(),
        attr: None,
        thin_used_bytes: None,
    };
    Candidate::of(ApiFlavor::TopoLvm, "ssd", lv).unwrap()
}

fn settings(policy: OrphanPolicy) -> OrphanSettings {
    OrphanSettings { policy, grace_period: HOUR, quarantine_period: 24 * HOUR }
}

fn step(policy: OrphanPolicy, since: Option<i64>, blocker: Option<&Blocker>, waited: Option<Duration>) -> Step {
    step_after(24 * HOUR, policy, since, blocker, waited)
}

/// The step with an LV that agents have seen in quarantine for so long.
fn step_after(
    kept: Duration,
    policy: OrphanPolicy,
    since: Option<i64>,
    blocker: Option<&Blocker>,
    waited: Option<Duration>,
) -> Step {
    choose_step(&settings(policy), &candidate(since), blocker, waited, kept, Timestamp::from_second(NOW).unwrap())
}

#[test]
fn clock_that_jumps_forward_ends_no_quarantine() {
    let step = |kept| step_after(kept, OrphanPolicy::Delete, Some(NOW - 86400), None, Some(24 * HOUR));
    assert_eq!(step(24 * HOUR), Step::Remove(NOW - 86400));
    let left = "in quarantine for 5 more hours of topolvm-node running, then removed";
    assert_eq!(step(19 * HOUR + Duration::from_secs(1)), Step::Leave(left.to_owned()));
}

#[test]
fn orphan_is_quarantined_first_and_removed_only_after_a_proof() {
    use OrphanPolicy::{Delete, Quarantine, Report};
    let (fresh, expired) = (Some(NOW - 3600), Some(NOW - 86400));
    assert_eq!(step(Quarantine, None, None, Some(HOUR)), Step::Quarantine);
    assert_eq!(step(Delete, None, None, Some(HOUR)), Step::Quarantine);
    assert_eq!(step(Delete, expired, None, Some(HOUR)), Step::Remove(NOW - 86400));
    for left in [
        step(Report, None, None, Some(24 * HOUR)),
        step(Report, expired, None, Some(24 * HOUR)),
        step(Quarantine, expired, None, Some(24 * HOUR)),
        step(Delete, fresh, None, Some(24 * HOUR)),
        step(Delete, None, None, Some(Duration::from_secs(3599))),
        step(Delete, None, None, None),
        step(Delete, expired, None, None),
        step(Delete, None, Some(&Blocker::Forgotten), Some(24 * HOUR)),
        step(Delete, expired, Some(&Blocker::InUse), Some(24 * HOUR)),
    ] {
        assert!(matches!(left, Step::Leave(_)), "{left:?}");
    }
}

#[test]
fn note_names_the_next_step_and_the_blocker() {
    let note = |policy, since, blocker: Option<&Blocker>| match step(policy, since, blocker, None) {
        Step::Leave(note) => note,
        other @ (Step::Quarantine | Step::Remove(_)) => panic!("{other:?}"),
    };
    let delete = OrphanPolicy::Delete;
    assert_eq!(note(delete, None, None), "moved to quarantine after it has been unreferenced for 1h");
    assert_eq!(note(delete, Some(NOW), None), "in quarantine until 1970-01-13T13:46:40Z, then removed");
    assert_eq!(note(delete, Some(0), None), "removed after it has been unreferenced for 1h");
    assert_eq!(note(OrphanPolicy::Report, None, None), "only reported (--orphans=report)");
    let blocker = note(delete, None, Some(&Blocker::PersistentVolume("pvc-1".to_owned())));
    assert_eq!(blocker, "kept: PersistentVolume pvc-1 still exists");
}

proptest! {
    #[test]
    fn nothing_is_touched_without_permission_proof_and_time(
        policy in prop_oneof![Just(OrphanPolicy::Report), Just(OrphanPolicy::Quarantine), Just(OrphanPolicy::Delete)],
        since in proptest::option::of(NOW - 200_000..NOW + 10),
        has_blocker in any::<bool>(),
        waited in proptest::option::of(0..7200_u64),
    ) {
        let blocker = has_blocker.then_some(Blocker::Forgotten);
        let is_proven = !has_blocker && waited.is_some_and(|waited| waited >= 3600);
        match step(policy, since, blocker.as_ref(), waited.map(Duration::from_secs)) {
            Step::Leave(_) => {}
            Step::Quarantine => prop_assert!(is_proven && since.is_none() && policy != OrphanPolicy::Report),
            Step::Remove(at) => prop_assert!(
                is_proven && since == Some(at) && at + 86400 <= NOW && policy == OrphanPolicy::Delete
            ),
        }
    }
}

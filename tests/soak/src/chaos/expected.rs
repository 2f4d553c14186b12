//! Claims and snapshots that the plan leaves behind: those that a sequence created and did not delete. Without them a
//! volume that was lost with all its objects, or a claim that reappeared, would go unnoticed.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;
use testbed::topolvm::THIN_CLASS;

use super::class::Class;
use super::disagreement::{Disagreement, Kind};
use super::fields::{bytes, find_by_name, find_by_volume_id, text};
use super::plan::{ClaimSource, Sequence, Step};
use super::state::{Lv, State};

/// Expected claims and snapshots by name; the default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    claims: BTreeMap<String, Wanted>,
    snapshots: BTreeMap<String, Wanted>,
}

/// An expected claim or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    class: Class,
    /// MiB that were last requested; of a snapshot the least that its claim had when it was taken.
    mebibytes: u64,
    /// MiB that were last waited for, which a snapshot has that is taken now.
    had: u64,
    /// Name of the claim or snapshot of which it is a copy, which may be deleted.
    source: Option<String>,
}

/// A claim or snapshot with the objects and the LV that belong to it.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    /// Claim or snapshot, and its PersistentVolume or VolumeSnapshotContent.
    asked: &'a Value,
    owner: &'a Value,
    object: &'a Value,
    lv: &'a Lv,
}

/// The first missing part of a claim or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Object,
    Owner,
    LogicalVolume,
    Lv,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "is not there",
            Self::Owner => "has no PersistentVolume or VolumeSnapshotContent",
            Self::LogicalVolume => "has no LogicalVolume",
            Self::Lv => "has no LV",
        })
    }
}

impl Expected {
    /// Returns the claims and snapshots that exist after all steps of the sequences.
    pub(super) fn after(sequences: &[Sequence]) -> Self {
        let mut expected = Self::default();
        sequences.iter().flat_map(|sequence| &sequence.steps).for_each(|step| expected.apply(step));
        expected
    }

    /// Adds a claim.
    #[must_use]
    pub(super) fn with_claim(mut self, name: &str, class: Class, mebibytes: u64) -> Self {
        self.claims.insert(name.to_owned(), Wanted { class, mebibytes, had: mebibytes, source: None });
        self
    }

    /// Removes these claims and snapshots.
    #[must_use]
    pub(super) fn without(mut self, names: &[String]) -> Self {
        self.claims.retain(|claim, _| !names.contains(claim));
        self.snapshots.retain(|snapshot, _| !names.contains(snapshot));
        self
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Create { claim, class, mebibytes, source } => {
                let source = match source {
                    ClaimSource::Empty => None,
                    ClaimSource::Snapshot(source) | ClaimSource::Claim(source) => Some(source.clone()),
                };
                self.claims
                    .insert(claim.clone(), Wanted { class: *class, mebibytes: *mebibytes, had: *mebibytes, source });
            }
            Step::CreateAndDelete { .. } => {}
            Step::Grow { claim, mebibytes, waits } => {
                if let Some(wanted) = self.claims.get_mut(claim) {
                    wanted.mebibytes = *mebibytes;
                    wanted.had = if *waits { *mebibytes } else { wanted.had };
                }
            }
            Step::Snapshot { snapshot, claim, .. } => {
                if let Some(of) = self.claims.get(claim) {
                    let wanted = Wanted { mebibytes: of.had, source: Some(claim.clone()), ..of.clone() };
                    self.snapshots.insert(snapshot.clone(), wanted);
                }
            }
            Step::DeleteSnapshot { snapshot } => drop(self.snapshots.remove(snapshot)),
            Step::DeleteClaim { claim } => drop(self.claims.remove(claim)),
        }
    }

    /// Returns the number of claims and of snapshots.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.claims.len(), self.snapshots.len())
    }

    /// Compares a state with the expected claims and snapshots. Objects that belong to unexpected claims and snapshots,
    /// or to none, are left to [`super::agreement`].
    pub(super) fn compare(&self, state: &State) -> Vec<Disagreement> {
        let mut all = Vec::new();
        for (name, wanted) in self.claims.iter().chain(&self.snapshots) {
            match self.find(name, state) {
                Ok(found) => self.check(name, wanted, found, state, &mut all),
                Err(missing) => {
                    all.push(Disagreement::new(
                        Kind::Lost,
                        &[name],
                        format!("{name} of {}Mi {missing}", wanted.mebibytes),
                    ));
                }
            }
        }
        for (kind, wanted, there) in
            [("claim", &self.claims, &state.claims), ("snapshot", &self.snapshots, &state.snapshots)]
        {
            for name in there.iter().map(|object| text(object, "/metadata/name")) {
                if !wanted.contains_key(name) {
                    all.push(Disagreement::new(Kind::Leaked, &[name], format!("{kind} {name} should be gone")));
                }
            }
        }
        all
    }

    fn find<'a>(&self, name: &str, state: &'a State) -> Result<Found<'a>, Missing> {
        let (asked, owner, handle) = if self.claims.contains_key(name) {
            let claim = find_by_name(&state.claims, name).ok_or(Missing::Object)?;
            let volume = find_by_name(&state.volumes, text(claim, "/spec/volumeName")).ok_or(Missing::Owner)?;
            (claim, volume, text(volume, "/spec/csi/volumeHandle"))
        } else {
            let snapshot = find_by_name(&state.snapshots, name).ok_or(Missing::Object)?;
            let content = text(snapshot, "/status/boundVolumeSnapshotContentName");
            let content = find_by_name(&state.contents, content).ok_or(Missing::Owner)?;
            (snapshot, content, text(content, "/status/snapshotHandle"))
        };
        let object = find_by_volume_id(&state.objects, handle).ok_or(Missing::LogicalVolume)?;
        let (_, lv) = state.lvs(handle).into_iter().next().ok_or(Missing::Lv)?;
        Ok(Found { asked, owner, object, lv })
    }

    /// Checks the class, the least size and the source of an expected claim or snapshot.
    fn check(&self, name: &str, wanted: &Wanted, found: Found<'_>, state: &State, all: &mut Vec<Disagreement>) {
        let Found { asked, owner, object, lv } = found;
        let object_name = text(object, "/metadata/name");
        let mut report = |what: String| all.push(Disagreement::new(Kind::Different, &[name, object_name], what));
        let least = wanted.mebibytes << 20;
        // Not the requested size of the LogicalVolume: LVM rounds up, and an expansion within that size is already done
        let mut sizes = vec![("LogicalVolume", bytes(object, "/status/currentSize")), ("LV", Some(lv.bytes))];
        if self.claims.contains_key(name) {
            sizes.push(("claim", bytes(asked, "/spec/resources/requests/storage")));
            sizes.push(("PersistentVolume", bytes(owner, "/spec/capacity/storage")));
        }
        for (what, size) in sizes.into_iter().filter(|(_, size)| *size < Some(least)) {
            report(format!("{name} was to have {least} bytes, and its {what} has {size:?}"));
        }
        let device_class = match wanted.class {
            Class::Thick => "",
            Class::Thin => THIN_CLASS,
        };
        if text(object, "/spec/deviceClass") != device_class {
            report(format!(
                "{name} is of class {:?}, and should be of {device_class:?}",
                text(object, "/spec/deviceClass")
            ));
        }
        let source = text(object, "/spec/source");
        let is_right = match &wanted.source {
            None => source.is_empty(),
            Some(wanted) => match self.find(wanted, state) {
                Ok(found) => source == text(found.object, "/metadata/name"),
                // Its name was deleted with it
                Err(_) => !source.is_empty(),
            },
        };
        if !is_right {
            report(format!("{name} was to be a copy of {:?}, and is one of {source:?}", wanted.source));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::agreement::disagreements;
    use super::super::sample::{consistent_state, lv, messages};
    use super::*;

    fn create(claim: &str, class: Class, source: ClaimSource) -> Step {
        Step::Create { claim: claim.to_owned(), class, mebibytes: 50, source }
    }

    /// A plan that leaves behind the claims and snapshots of [`consistent_state`].
    fn plan() -> Vec<Sequence> {
        let snapshot = |snapshot: &str, claim: &str| Step::Snapshot {
            snapshot: snapshot.into(),
            claim: claim.into(),
            waits: true,
        };
        let thin = vec![
            create("c", Class::Thin, ClaimSource::Empty),
            Step::Grow { claim: "c".into(), mebibytes: 61, waits: false },
            snapshot("s", "c"),
            snapshot("s2", "c"),
            create("r", Class::Thin, ClaimSource::Snapshot("s".into())),
            Step::DeleteSnapshot { snapshot: "s2".into() },
        ];
        let thick = vec![
            create("t", Class::Thick, ClaimSource::Empty),
            create("u", Class::Thick, ClaimSource::Empty),
            Step::CreateAndDelete { claim: "h".into(), class: Class::Thick, mebibytes: 50 },
            Step::DeleteClaim { claim: "u".into() },
        ];
        [("s1", thin), ("s2", thick)].map(|(name, steps)| Sequence { name: name.into(), steps }).into()
    }

    fn after(change: impl FnOnce(&mut State)) -> String {
        let mut state = consistent_state();
        change(&mut state);
        messages(&Expected::after(&plan()).compare(&state))
    }

    #[test]
    fn state_as_planned_has_no_disagreements() {
        assert_eq!(Expected::after(&plan()).len(), (3, 1));
        assert_eq!(after(|_| {}), "");
    }

    #[test]
    fn a_volume_that_went_with_all_its_traces_is_lost() {
        let without_thick = |state: &mut State| {
            state.claims.retain(|claim| text(claim, "/metadata/name") != "t");
            state.volumes.retain(|volume| text(volume, "/metadata/name") != "pv-t");
            state.objects.retain(|object| text(object, "/metadata/name") != "pv-t");
            state.nodes[0].lvm.retain(|lv| lv.name != "lv4");
            state.nodes[0].listed.retain(|(name, _)| name != "lv4");
        };
        let mut state = consistent_state();
        without_thick(&mut state);
        assert_eq!(disagreements(&state), [], "only the plan knows");
        assert_eq!(after(without_thick), "lost: t of 50Mi is not there\n");
    }

    #[test]
    fn expected_claims_can_be_added_and_removed() {
        let expected = Expected::after(&plan()).with_claim("w", Class::Thick, 40);
        let lost = messages(&expected.compare(&consistent_state()));
        assert_eq!(lost, "lost: w of 40Mi is not there\n");
        let expected = expected.without(&["w".to_owned(), "s".to_owned()]);
        assert_eq!(expected.len(), (3, 0));
        assert_eq!(messages(&expected.compare(&consistent_state())), "leaked: snapshot s should be gone\n");
    }

    #[test]
    fn every_missing_part_is_lost() {
        assert!(after(|state| state.snapshots.clear()).contains("lost: s of 50Mi is not there"));
        assert!(
            after(|state| state.contents.clear())
                .contains("lost: s of 50Mi has no PersistentVolume or VolumeSnapshotContent")
        );
        assert!(after(|state| drop(state.volumes.remove(0))).contains("lost: c of 61Mi has no PersistentVolume"));
        assert!(after(|state| drop(state.objects.remove(0))).contains("lost: c of 61Mi has no LogicalVolume"));
        assert!(after(|state| drop(state.nodes[0].lvm.remove(0))).contains("lost: c of 61Mi has no LV"));
    }

    #[test]
    fn what_should_be_gone_is_leaked() {
        let back = after(|state| {
            let mut claim = state.claims[0].clone();
            claim["metadata"]["name"] = json!("u");
            state.claims.push(claim);
        });
        assert_eq!(back, "leaked: claim u should be gone\n");
        let nothing: Vec<_> =
            Expected::default().compare(&consistent_state()).iter().map(Disagreement::to_string).collect();
        assert_eq!(nothing.len(), 4, "{nothing:?}");
        assert!(nothing.contains(&"leaked: snapshot s should be gone".to_owned()), "{nothing:?}");
    }

    #[test]
    fn what_was_not_grown_is_noticed_wherever_it_was_not() {
        assert!(after(|state| lv(state, "lv1").bytes = 50 << 20).contains("its LV has Some(52428800)"));
        assert!(
            after(|state| state.objects[0]["status"]["currentSize"] = json!("50Mi")).contains("its LogicalVolume has")
        );
        assert!(
            after(|state| state.volumes[0]["spec"]["capacity"]["storage"] = json!("50Mi"))
                .contains("its PersistentVolume")
        );
        let claim = after(|state| state.claims[0]["spec"]["resources"]["requests"]["storage"] = json!("50Mi"));
        assert!(claim.contains("its claim has"), "{claim}");
    }

    #[test]
    fn another_class_or_source_is_noticed() {
        assert!(after(|state| state.objects[3]["spec"]["deviceClass"] = json!("thin")).contains("t is of class"));
        let other = after(|state| state.objects[2]["spec"]["source"] = json!("pv"));
        assert!(other.contains(r#"r was to be a copy of Some("s"), and is one of "pv""#), "{other}");
        assert!(after(|state| state.objects[2]["spec"]["source"] = json!("")).contains("r was to be a copy"));
        assert!(
            after(|state| state.objects[0]["spec"]["source"] = json!("pv-r")).contains("c was to be a copy of None")
        );
    }
}

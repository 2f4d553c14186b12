//! No fact may be missing from the proof.

use std::sync::Arc;

use lvmd_client::Lv;
use proptest::prelude::*;
use topolvm_api::ApiFlavor;
use topolvm_testkit::fixtures::logical_volume;

use super::*;

const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const CREATED: i64 = 1000;

fn lv(tags: &[&str]) -> Lv {
    Lv {
        name: UID.to_owned(),
        path: "/dev/vg/x".into(),
        size_bytes: 1,
        number: None,
        tags: tags.iter().map(|&tag| tag.to_owned()).collect(),
        attr: "-wi-a-----".parse().ok(),
        thin_used_bytes: None,
    }
}

/// The tags of an LV of the cluster `c1`.
const TAGS: [&str; 4] = [
    "topolvm.io/managed-by=lvmd",
    "topolvm.io/logicalvolume=pvc-1",
    "topolvm.io/cluster=c1",
    "topolvm.io/created=1000",
];

/// Facts of which each may speak against an orphan.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each fact may be true or false by itself")]
struct Facts {
    /// True for each tag that is there.
    tags: [bool; 4],
    is_writable: bool,
    is_same_cluster: bool,
    object: Option<&'static str>,
    objects: usize,
    remembers_until: Option<i64>,
    persistent_volume: bool,
    is_in_use: bool,
    counts: Counts,
}

impl Facts {
    /// An LV that is proven to be an orphan.
    fn of_orphan() -> Self {
        Self {
            tags: [true; 4],
            is_writable: true,
            is_same_cluster: true,
            object: None,
            objects: 1,
            remembers_until: Some(CREATED),
            persistent_volume: false,
            is_in_use: false,
            counts: Counts { volumes: 2, orphans: 1 },
        }
    }

    fn candidate(&self) -> Candidate {
        let tags: Vec<_> =
            TAGS.into_iter().zip(self.tags).filter(|(_, is_there)| *is_there).map(|(tag, _)| tag).collect();
        let attr = if self.is_writable { "-wi-a-----" } else { "-ri-a-----" }.parse().ok();
        Candidate::of(ApiFlavor::TopoLvm, "ssd", Lv { attr, ..lv(&tags) }).unwrap()
    }

    fn find_blocker(&self) -> Option<Blocker> {
        let server = ServerState {
            cluster: if self.is_same_cluster { "c1" } else { "c2" }.to_owned(),
            objects: self.objects,
            remembers_until: self.remembers_until,
        };
        let object = self.object.map_or(ObjectState::Gone, |node| {
            ObjectState::Exists(Arc::new(logical_volume("pvc-1").uid(UID).on(node).build()))
        });
        let persistent_volume = self.persistent_volume.then(|| "pvc-1".to_owned());
        let facts = ClusterFacts { object, persistent_volume, is_in_use: self.is_in_use };
        find_blocker(&self.candidate(), &server, &facts, self.counts)
    }
}

#[test]
fn proof_fails_with_each_missing_part() {
    let orphan = Facts::of_orphan;
    assert_eq!(orphan().find_blocker(), None);
    for (tag, name) in TAGS.iter().enumerate() {
        let mut facts = orphan();
        facts.tags[tag] = false;
        assert_eq!(facts.find_blocker(), Some(Blocker::Unmarked), "{name}");
    }
    let found = |facts: Facts| facts.find_blocker().unwrap();
    assert_eq!(found(Facts { is_writable: false, ..orphan() }), Blocker::Snapshot);
    assert_eq!(found(Facts { is_same_cluster: false, ..orphan() }), Blocker::OtherCluster);
    assert_eq!(found(Facts { object: Some("n2"), ..orphan() }), Blocker::Elsewhere("n2".to_owned()));
    assert_eq!(found(Facts { objects: 0, ..orphan() }), Blocker::NothingListed);
    assert_eq!(found(Facts { remembers_until: None, ..orphan() }), Blocker::Forgotten);
    assert_eq!(found(Facts { remembers_until: Some(CREATED - 1), ..orphan() }), Blocker::Forgotten);
    assert_eq!(found(Facts { persistent_volume: true, ..orphan() }), Blocker::PersistentVolume("pvc-1".to_owned()));
    assert_eq!(found(Facts { is_in_use: true, ..orphan() }), Blocker::InUse);
    let counts = Counts { volumes: 19, orphans: 2 };
    assert_eq!(found(Facts { counts, ..orphan() }), Blocker::TooMany { orphans: 2, limit: 1 });
}

#[test]
fn orphan_limit_is_a_tenth_of_volumes_and_at_most_ten() {
    let limit = |volumes| Counts { volumes, orphans: 0 }.limit();
    assert_eq!([0, 1, 19, 20, 99, 100, 5000].map(limit), [1, 1, 1, 2, 9, 10, 10]);
}

proptest! {
    #[test]
    fn nothing_is_proven_unless_every_fact_agrees(
        tags in any::<[bool; 4]>(),
        is_writable in any::<bool>(),
        is_same_cluster in any::<bool>(),
        object in proptest::option::of(Just("n2")),
        objects in 0..3_usize,
        remembers_until in proptest::option::of(998..1003_i64),
        persistent_volume in any::<bool>(),
        is_in_use in any::<bool>(),
        volumes in 0..200_usize,
        orphans in 0..20_usize,
    ) {
        let counts = Counts { volumes, orphans };
        let facts = Facts {
            tags, is_writable, is_same_cluster, object, objects, remembers_until, persistent_volume, is_in_use, counts,
        };
        let agree = tags == [true; 4] && is_writable && is_same_cluster && object.is_none() && objects > 0
            && remembers_until.is_some_and(|until| until >= CREATED) && !persistent_volume && !is_in_use
            && orphans <= 10 && (orphans <= 1 || orphans * 10 <= volumes);
        prop_assert_eq!(facts.find_blocker().is_none(), agree);
    }
}

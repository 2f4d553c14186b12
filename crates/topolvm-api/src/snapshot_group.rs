//! Groups of snapshots that are taken at one moment: the annotations of their members, the names of these, and the
//! condition with which the node agent confirms the moment.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::{ApiFlavor, LogicalVolume};

/// Most snapshots of a group: filesystems stay frozen until the last one is taken. lvmd has the same limit.
pub const MAX_SNAPSHOT_GROUP: usize = 32;

/// Type of the condition of a snapshot that was taken at the same moment as the others of its group.
const TAKEN_TOGETHER: &str = "TakenTogether";
/// The `reason` of this condition.
const SAME_MOMENT: &str = "SameMoment";

/// A group of snapshots with the contents of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotGroup {
    /// CSI id of the group.
    pub id: String,
    /// Number of its members.
    pub size: usize,
}

impl SnapshotGroup {
    /// Returns the name of the LogicalVolume of a member, counted from 0. The id of a group and this number are all
    /// that is needed to find a member.
    pub fn member_name(&self, index: usize) -> String {
        format!("{}-{index}", self.id)
    }

    /// Returns the names of all members, in their order.
    pub fn member_names(&self) -> impl DoubleEndedIterator<Item = String> + ExactSizeIterator {
        (0..self.size).map(|index| self.member_name(index))
    }

    /// Returns the annotations of a member.
    pub fn annotations(&self, flavor: ApiFlavor) -> [(&'static str, String); 2] {
        [(flavor.snapshot_group(), self.id.clone()), (flavor.snapshot_group_size(), self.size.to_string())]
    }

    /// Reads the group that an object is a member of. Annotations that do not fit the name of the object, or that
    /// have no valid size, are none.
    pub fn of(flavor: ApiFlavor, volume: &LogicalVolume) -> Option<Self> {
        let (id, size) =
            (volume.annotation(flavor.snapshot_group())?, volume.annotation(flavor.snapshot_group_size())?);
        let size = size.parse().ok().filter(|size| (1..=MAX_SNAPSHOT_GROUP).contains(size))?;
        let group = Self { id: id.to_owned(), size };
        let is_member = group.member_names().any(|name| name == volume.name());
        is_member.then_some(group)
    }
}

/// Returns the condition of a snapshot that was taken together with the others of its group.
pub fn taken_together_condition(volume: &LogicalVolume, now: Timestamp) -> Condition {
    Condition {
        type_: TAKEN_TOGETHER.to_owned(),
        status: "True".to_owned(),
        reason: SAME_MOMENT.to_owned(),
        message: String::new(),
        observed_generation: volume.metadata.generation,
        last_transition_time: Time(now),
    }
}

impl LogicalVolume {
    /// Returns the condition of a snapshot that was taken together with the others of its group. An agent that does
    /// not know groups writes none.
    pub fn taken_together(&self) -> Option<&Condition> {
        let mut conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.find(|condition| condition.type_ == TAKEN_TOGETHER && condition.status == "True")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

    fn volume(name: &str, id: &str, size: &str) -> LogicalVolume {
        let mut volume = LogicalVolume::default();
        volume.metadata.name = Some(name.to_owned());
        let annotations = [(FLAVOR.snapshot_group(), id), (FLAVOR.snapshot_group_size(), size)];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        volume.metadata.annotations = Some(annotations.into());
        volume
    }

    #[test]
    fn snapshot_group_is_read_from_the_annotations_of_each_member() {
        let group = SnapshotGroup { id: "g".to_owned(), size: 12 };
        let [(_, id), (_, size)] = group.annotations(FLAVOR);
        for name in ["g-0", "g-11"] {
            assert_eq!(SnapshotGroup::of(FLAVOR, &volume(name, &id, &size)), Some(group.clone()));
        }
        assert_eq!(group.member_names().collect::<Vec<_>>()[10..], ["g-10", "g-11"]);
    }

    #[rstest]
    #[case::other_name("h-0", "2")]
    #[case::no_number("g", "2")]
    #[case::not_below_the_size("g-2", "2")]
    #[case::no_size("g-0", "")]
    #[case::empty("g-0", "0")]
    #[case::too_large("g-0", "33")]
    fn snapshot_group_that_does_not_fit_the_object_is_none(#[case] name: &str, #[case] size: &str) {
        assert_eq!(SnapshotGroup::of(FLAVOR, &volume(name, "g", size)), None);
    }

    #[test]
    fn snapshot_is_taken_together_only_by_its_condition() {
        let mut volume = volume("g-0", "g", "1");
        assert_eq!(volume.taken_together(), None);
        let condition = taken_together_condition(&volume, Timestamp::UNIX_EPOCH);
        volume.status.get_or_insert_default().conditions = vec![condition.clone()];
        assert_eq!(volume.taken_together(), Some(&condition));
    }
}

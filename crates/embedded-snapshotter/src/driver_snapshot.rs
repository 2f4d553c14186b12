//! Snapshots and groups of them as the driver shows them, and the meaning of a failed call to create them. Pure.

use csi_calls::Code;
use jiff::Timestamp;
use topolvm_proto::csi::{Snapshot, VolumeGroupSnapshot};

/// A snapshot, as the driver shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverSnapshot {
    pub(crate) id: String,
    /// CSI id of its volume.
    pub(crate) volume: String,
    /// True if a volume can be restored from it.
    pub(crate) is_ready: bool,
    /// Its time, if the driver knows it.
    pub(crate) created: Option<Timestamp>,
    /// Least size of a restored volume; 0 if the driver does not know it.
    pub(crate) bytes: i64,
    /// CSI id of its group, if it has one.
    pub(crate) group: Option<String>,
}

/// A group of snapshots, as the driver shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriverGroup {
    pub(crate) id: String,
    /// True if volumes can be restored from all of its snapshots.
    pub(crate) is_ready: bool,
    /// Its time, if the driver knows it.
    pub(crate) created: Option<Timestamp>,
    pub(crate) snapshots: Vec<DriverSnapshot>,
}

impl DriverSnapshot {
    /// Returns its time in nanoseconds since 1970, as the status of contents has it.
    pub(crate) fn nanoseconds(&self) -> Option<i64> {
        self.created.map(nanoseconds)
    }
}

impl From<Snapshot> for DriverSnapshot {
    fn from(snapshot: Snapshot) -> Self {
        let created = snapshot.creation_time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
        Self {
            id: snapshot.snapshot_id,
            volume: snapshot.source_volume_id,
            is_ready: snapshot.ready_to_use,
            created,
            bytes: snapshot.size_bytes,
            group: Some(snapshot.group_snapshot_id).filter(|group| !group.is_empty()),
        }
    }
}

impl From<VolumeGroupSnapshot> for DriverGroup {
    fn from(group: VolumeGroupSnapshot) -> Self {
        let created = group.creation_time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok());
        let snapshots = group.snapshots.into_iter().map(DriverSnapshot::from).collect();
        Self { id: group.group_snapshot_id, is_ready: group.ready_to_use, created, snapshots }
    }
}

/// Returns the nanoseconds since 1970.
pub(crate) fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or_default()
}

/// Returns whether no call to create the snapshot has or will have an effect after this answer, as CSI defines the
/// codes.
pub(crate) const fn is_final(code: Code) -> bool {
    match code {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted => false,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncertain_answers_are_those_after_which_a_call_may_go_on() {
        let uncertain: Vec<_> = (1..=16).map(Code::from_i32).filter(|code| !is_final(*code)).collect();
        let expected =
            [Code::Cancelled, Code::DeadlineExceeded, Code::ResourceExhausted, Code::Aborted, Code::Unavailable];
        assert_eq!(uncertain, expected);
    }

    #[test]
    fn time_of_a_snapshot_is_in_nanoseconds() {
        let time = Some(prost_types::Timestamp { seconds: 2, nanos: 3 });
        let snapshot = Snapshot { creation_time: time, size_bytes: 4, ..Snapshot::default() };
        let shown = DriverSnapshot::from(snapshot);
        assert_eq!((shown.nanoseconds(), shown.bytes, shown.is_ready), (Some(2_000_000_003), 4, false));
        assert_eq!(DriverSnapshot::from(Snapshot::default()).created, None);
    }
}

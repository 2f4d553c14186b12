//! A snapshot as the driver shows it, and the meaning of a failed call to create one. Pure.

use csi_calls::Code;
use topolvm_proto::csi::Snapshot;

/// A snapshot, as the driver shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverSnapshot {
    pub(crate) id: String,
    /// True if a volume can be restored from it.
    pub(crate) is_ready: bool,
    /// Its time in nanoseconds since 1970, if the driver knows it.
    pub(crate) created: Option<i64>,
    /// Least size of a restored volume; 0 if the driver does not know it.
    pub(crate) bytes: i64,
}

impl From<Snapshot> for DriverSnapshot {
    fn from(snapshot: Snapshot) -> Self {
        let created = snapshot
            .creation_time
            .map(|time| time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos)));
        Self { id: snapshot.snapshot_id, is_ready: snapshot.ready_to_use, created, bytes: snapshot.size_bytes }
    }
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
        assert_eq!((shown.created, shown.bytes, shown.is_ready), (Some(2_000_000_003), 4, false));
        assert_eq!(DriverSnapshot::from(Snapshot::default()).created, None);
    }
}

//! Calls about snapshots to the CSI Controller service of this process, without a socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Request, Response, Status};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Type as Kind, rpc};
use topolvm_proto::csi::{
    self as pb, ControllerGetCapabilitiesRequest, CreateSnapshotRequest, DeleteSnapshotRequest, ListSnapshotsRequest,
};

use crate::error::AttemptError;

/// Contents of a Secret for a call.
pub(crate) type Secrets = HashMap<String, String>;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub(crate) struct CallError {
    code: Code,
    message: String,
}

/// A snapshot, as the driver shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    /// True if a volume can be restored from it.
    pub(crate) is_ready: bool,
    /// Its time in nanoseconds since 1970, if the driver knows it.
    pub(crate) created: Option<i64>,
    /// Least size of a restored volume; 0 if the driver does not know it.
    pub(crate) bytes: i64,
}

impl CallError {
    /// Returns whether the call has no effect, and no earlier one is in progress, as CSI defines the codes.
    pub(crate) const fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        )
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self { code: status.code(), message: status.message().to_owned() }
    }
}

impl From<pb::Snapshot> for Snapshot {
    fn from(snapshot: pb::Snapshot) -> Self {
        let nanoseconds = |time: prost_types::Timestamp| {
            time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos))
        };
        Self {
            id: snapshot.snapshot_id,
            is_ready: snapshot.ready_to_use,
            created: snapshot.creation_time.map(nanoseconds),
            bytes: snapshot.size_bytes,
        }
    }
}

/// The Controller service.
#[derive(Clone)]
pub(crate) struct CsiController {
    service: Arc<dyn Controller>,
    timeout: Duration,
}

impl CsiController {
    pub(crate) fn new(service: Arc<dyn Controller>, timeout: Duration) -> Self {
        Self { service, timeout }
    }

    /// Creates a snapshot, or returns the one that this request has created before.
    pub(crate) async fn create_snapshot(&self, request: CreateSnapshotRequest) -> Result<Snapshot, AttemptError> {
        let answer = self.finish(self.service.create_snapshot(self.request(request))).await?;
        let snapshot = answer.snapshot.filter(|snapshot| !snapshot.snapshot_id.is_empty());
        snapshot.map(Snapshot::from).ok_or(AttemptError::EmptyAnswer)
    }

    /// Deletes a snapshot. One that does not exist is deleted.
    pub(crate) async fn delete_snapshot(&self, id: &str, secrets: Secrets) -> Result<(), AttemptError> {
        let request = self.request(DeleteSnapshotRequest { snapshot_id: id.to_owned(), secrets });
        self.finish(self.service.delete_snapshot(request)).await.map(drop)
    }

    /// Finds a snapshot. A driver that lists no snapshots is assumed to have it.
    pub(crate) async fn find_snapshot(&self, id: &str, secrets: Secrets) -> Result<Snapshot, AttemptError> {
        if !self.lists_snapshots().await? {
            return Ok(Snapshot { id: id.to_owned(), is_ready: true, created: None, bytes: 0 });
        }
        let request = ListSnapshotsRequest { snapshot_id: id.to_owned(), secrets, ..ListSnapshotsRequest::default() };
        let answer = self.finish(self.service.list_snapshots(self.request(request))).await?;
        let snapshot = answer.entries.into_iter().find_map(|entry| entry.snapshot);
        snapshot.map(Snapshot::from).ok_or_else(|| AttemptError::SnapshotMissing(id.to_owned()))
    }

    async fn lists_snapshots(&self) -> Result<bool, AttemptError> {
        let request = self.request(ControllerGetCapabilitiesRequest {});
        let answer = self.finish(self.service.controller_get_capabilities(request)).await?;
        Ok(answer.capabilities.into_iter().any(|capability| match capability.r#type {
            Some(Kind::Rpc(announced)) => announced.r#type() == rpc::Type::ListSnapshots,
            None => false,
        }))
    }

    /// Adds the deadline, which the service obeys as that of a call over a socket.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// Awaits the answer until the deadline.
    async fn finish<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, AttemptError> {
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => Ok(answer.map_err(CallError::from)?.into_inner()),
            Err(_elapsed) => {
                Err(CallError::from(Status::deadline_exceeded("the driver did not answer in time")).into())
            }
        }
    }
}

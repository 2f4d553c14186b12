//! A CSI Controller service that records requests and answers as a test says.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tonic::{Code, Request, Response, Status};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type, rpc};
use topolvm_proto::csi::{self as pb};

/// Failure of a call.
pub(super) enum Fault {
    Refuse(Code, &'static str),
    Hang,
}

/// A call that the driver has got.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    Expand { bytes: i64, request: Box<pb::ControllerExpandVolumeRequest> },
    Modify(HashMap<String, String>, HashMap<String, String>),
}

/// The driver. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct FakeDriver {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    faults: VecDeque<Fault>,
    before_answer: Option<Box<dyn FnOnce() + Send>>,
    /// Bytes that the next answers lack.
    missing_bytes: i64,
}

impl FakeDriver {
    pub(super) fn fail_next(&self, n: usize, code: Code, message: &'static str) {
        self.state.lock().faults.extend((0..n).map(|_| Fault::Refuse(code, message)));
    }

    pub(super) fn hang_next(&self) {
        self.state.lock().faults.push_back(Fault::Hang);
    }

    /// Does this during the next call.
    pub(super) fn during_next(&self, action: impl FnOnce() + Send + 'static) {
        self.state.lock().before_answer = Some(Box::new(action));
    }

    /// Answers with fewer bytes than requested from now on.
    pub(super) fn answer_with_less(&self, bytes: i64) {
        self.state.lock().missing_bytes = bytes;
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// The sizes in GiB to which volumes were to be expanded, in the order of the calls.
    pub(super) fn sizes(&self) -> Vec<i64> {
        let size = |call: &Call| if let Call::Expand { bytes, .. } = call { Some(bytes >> 30) } else { None };
        self.state.lock().calls.iter().filter_map(size).collect()
    }

    async fn take(&self, call: Call) -> Result<(), Status> {
        let (fault, action) = {
            let mut state = self.state.lock();
            state.calls.push(call);
            (state.faults.pop_front(), state.before_answer.take())
        };
        if let Some(action) = action {
            action();
        }
        match fault {
            Some(Fault::Refuse(code, message)) => Err(Status::new(code, message)),
            Some(Fault::Hang) => std::future::pending().await,
            None => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(())
            }
        }
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// Methods that the resizer never calls, in the form into which `async_trait` brings the others: it does not see what
/// a macro writes.
macro_rules! unimplemented_calls {
    ($($name:ident: $request:ident => $response:ident),+ $(,)?) => {$(
        fn $name<'a, 'b>(&'a self, _: Request<pb::$request>) -> Answer<'b, pb::$response>
        where
            'a: 'b,
            Self: 'b,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
        }
    )+};
}

#[tonic::async_trait]
impl Controller for FakeDriver {
    async fn controller_get_capabilities(
        &self,
        _: Request<pb::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<pb::ControllerGetCapabilitiesResponse>, Status> {
        let kind = Type::Rpc(Rpc { r#type: rpc::Type::SingleNodeMultiWriter.into() });
        let capabilities = vec![pb::ControllerServiceCapability { r#type: Some(kind) }];
        Ok(Response::new(pb::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<pb::ControllerExpandVolumeRequest>,
    ) -> Result<Response<pb::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let access_type = request.volume_capability.as_ref().and_then(|capability| capability.access_type.clone());
        let is_block = matches!(access_type, Some(pb::volume_capability::AccessType::Block(_)));
        self.take(Call::Expand { bytes, request: Box::new(request) }).await?;
        Ok(Response::new(pb::ControllerExpandVolumeResponse {
            capacity_bytes: bytes - self.state.lock().missing_bytes,
            node_expansion_required: !is_block,
        }))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<pb::ControllerModifyVolumeRequest>,
    ) -> Result<Response<pb::ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        self.take(Call::Modify(request.mutable_parameters, request.secrets)).await?;
        Ok(Response::new(pb::ControllerModifyVolumeResponse {}))
    }

    unimplemented_calls! {
        create_volume: CreateVolumeRequest => CreateVolumeResponse,
        delete_volume: DeleteVolumeRequest => DeleteVolumeResponse,
        controller_publish_volume: ControllerPublishVolumeRequest => ControllerPublishVolumeResponse,
        controller_unpublish_volume: ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse,
        validate_volume_capabilities: ValidateVolumeCapabilitiesRequest => ValidateVolumeCapabilitiesResponse,
        list_volumes: ListVolumesRequest => ListVolumesResponse,
        controller_list_volume_health: ControllerListVolumeHealthRequest => ControllerListVolumeHealthResponse,
        controller_get_volume_health: ControllerGetVolumeHealthRequest => ControllerGetVolumeHealthResponse,
        get_capacity: GetCapacityRequest => GetCapacityResponse,
        create_snapshot: CreateSnapshotRequest => CreateSnapshotResponse,
        delete_snapshot: DeleteSnapshotRequest => DeleteSnapshotResponse,
        list_snapshots: ListSnapshotsRequest => ListSnapshotsResponse,
        get_snapshot: GetSnapshotRequest => GetSnapshotResponse,
        controller_get_volume: ControllerGetVolumeRequest => ControllerGetVolumeResponse,
    }
}

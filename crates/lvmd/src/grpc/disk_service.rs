//! `proto.DiskService`.

use lvm::Host;
use lvmd_config::tags::EvacuationRequest;
use lvmd_engine::Engine;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::disk_service_server::DiskService;
use topolvm_proto::lvmd::{AddDiskRequest, DiskRequest, Empty, EvacuateDiskRequest, GetNodeLabelsResponse, NodeLabels};
use topolvm_runtime::grpc::into_status;
use tracing::Span;

use super::lv_service::run_change;
use super::{disk_message, message};

pub(super) struct DiskApi<R>(pub(super) Engine<R>);

#[tonic::async_trait]
impl<R: Host> DiskService for DiskApi<R> {
    async fn evacuate_disk(&self, request: Request<EvacuateDiskRequest>) -> Result<Response<Empty>, Status> {
        let EvacuateDiskRequest { volume_group, uuid, bytes_per_second, remove } = request.into_inner();
        let vg = message::volume_group(volume_group)?;
        Span::current().record("volume_group", tracing::field::display(&vg));
        run_change(self.0.evacuate(&vg, uuid, EvacuationRequest { bytes_per_second, remove })).await?;
        Ok(Response::new(Empty {}))
    }

    async fn stop_evacuation(&self, request: Request<DiskRequest>) -> Result<Response<Empty>, Status> {
        let DiskRequest { volume_group, uuid } = request.into_inner();
        let vg = message::volume_group(volume_group)?;
        Span::current().record("volume_group", tracing::field::display(&vg));
        run_change(self.0.stop_evacuation(&vg, uuid)).await?;
        Ok(Response::new(Empty {}))
    }

    async fn add_disk(&self, request: Request<AddDiskRequest>) -> Result<Response<Empty>, Status> {
        let AddDiskRequest { path, stable_name } = request.into_inner();
        self.0.add_disk(path, stable_name).await.map_err(into_status)?;
        Ok(Response::new(Empty {}))
    }

    /// The API server stores no object of more than some 1.5 MiB, and gRPC takes none of more than 4 MiB.
    async fn set_node_labels(&self, request: Request<NodeLabels>) -> Result<Response<Empty>, Status> {
        self.0.set_node_labels(disk_message::parse_node_labels(request.into_inner()));
        Ok(Response::new(Empty {}))
    }

    async fn get_node_labels(&self, _: Request<Empty>) -> Result<Response<GetNodeLabelsResponse>, Status> {
        let labels = self.0.node_labels().borrow().clone();
        let node_labels = labels.map(|labels| disk_message::node_labels(&labels));
        Ok(Response::new(GetNodeLabelsResponse { node_labels }))
    }

    async fn replace_missing_disk(&self, request: Request<DiskRequest>) -> Result<Response<Empty>, Status> {
        let DiskRequest { volume_group, uuid } = request.into_inner();
        let vg = message::volume_group(volume_group)?;
        Span::current().record("volume_group", tracing::field::display(&vg));
        run_change(self.0.replace_missing_disk(&vg, uuid)).await?;
        Ok(Response::new(Empty {}))
    }
}

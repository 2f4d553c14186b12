//! `proto.OrphanService`.

use lvm::Host;
use lvmd_engine::Engine;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::orphan_service_server::OrphanService;
use topolvm_proto::lvmd::{AdoptLvRequest, AdoptLvResponse, Empty, QuarantineLvRequest, RemoveQuarantinedLvRequest};

use super::lv_service::{record_target, run_change};
use super::message;

pub(super) struct OrphanApi<R>(pub(super) Engine<R>);

#[tonic::async_trait]
impl<R: Host> OrphanService for OrphanApi<R> {
    async fn quarantine_lv(&self, request: Request<QuarantineLvRequest>) -> Result<Response<Empty>, Status> {
        let QuarantineLvRequest { name, device_class, quarantined_at } = request.into_inner();
        record_target(&self.0, &device_class, &name);
        let name = message::object_uid(name)?;
        run_change(self.0.quarantine(&device_class, name, quarantined_at)).await?;
        Ok(Response::new(Empty {}))
    }

    async fn adopt_lv(&self, request: Request<AdoptLvRequest>) -> Result<Response<AdoptLvResponse>, Status> {
        record_target(&self.0, &request.get_ref().device_class, &request.get_ref().name);
        let wanted = message::adopt_volume(request.into_inner())?;
        let volume = run_change(self.0.adopt(wanted)).await?;
        Ok(Response::new(AdoptLvResponse { volume: Some(message::volume(volume)) }))
    }

    async fn remove_quarantined_lv(
        &self,
        request: Request<RemoveQuarantinedLvRequest>,
    ) -> Result<Response<Empty>, Status> {
        let RemoveQuarantinedLvRequest { name, device_class, quarantined_at } = request.into_inner();
        record_target(&self.0, &device_class, &name);
        let name = message::quarantined_name(name)?;
        run_change(self.0.remove_quarantined(&device_class, name, quarantined_at)).await?;
        Ok(Response::new(Empty {}))
    }
}

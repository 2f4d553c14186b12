//! The CSI Node service: translates requests, gives each volume to one call at a time, and translates answers.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::csi;
use topolvm_proto::csi::node_server::Node;
use topolvm_proto::csi::node_service_capability::{Rpc, Type, rpc};
use topolvm_runtime::{InFlight, Tasks};

use super::request::{ExpandVolume, GetVolumeStats, PublishVolume, UnpublishVolume};
use super::{Agent, Error};
use crate::mount::Mounter;

/// Makes volumes appear in pods.
#[derive(Debug)]
pub struct NodeService<M> {
    flavor: ApiFlavor,
    node: String,
    agent: Arc<Agent<M>>,
    in_flight: InFlight,
    tasks: Tasks,
}

impl<M: Mounter> NodeService<M> {
    /// The service of a node.
    pub fn new(flavor: ApiFlavor, node: String, agent: Arc<Agent<M>>, tasks: Tasks) -> Self {
        Self { flavor, node, agent, in_flight: InFlight::default(), tasks }
    }

    /// Does something that changes a volume or its mounts. Once begun it goes on when the caller hangs up, as kubelet does
    /// after its deadline: a mkfs that is killed half-way helps nobody. The volume stays taken until it has ended.
    async fn change<T, F>(&self, id: &str, change: impl FnOnce(Arc<Agent<M>>) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let turn = self.in_flight.start(id).ok_or_else(|| Error::Busy(id.to_owned()))?;
        let change = change(Arc::clone(&self.agent));
        let work = async move {
            let result = change.await;
            drop(turn);
            result
        };
        self.tasks.finish(work).await?
    }
}

#[tonic::async_trait]
impl<M: Mounter> Node for NodeService<M> {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = PublishVolume::try_from(request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        self.change(&id, |agent| async move { agent.publish(request).await }).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = UnpublishVolume::try_from(request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        self.change(&id, |agent| async move { agent.unpublish(request).await }).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = GetVolumeStats::try_from(request.into_inner()).map_err(Error::from)?;
        let usage = self.agent.stats(request).await?;
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = ExpandVolume::try_from(request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        let bytes = self.change(&id, |agent| async move { agent.expand(request).await }).await?;
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX) }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let capabilities = [rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume]
            .map(|kind| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) })
            .into();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: self.node.clone(),
            max_volumes_per_node: 0,
            accessible_topology: Some(csi::Topology {
                segments: HashMap::from([(self.flavor.topology_key().to_owned(), self.node.clone())]),
            }),
        }))
    }

    async fn node_stage_volume(
        &self,
        _: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        Err(not_served("NodeStageVolume"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        Err(not_served("NodeUnstageVolume"))
    }

    async fn node_get_volume_health(
        &self,
        _: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        Err(not_served("NodeGetVolumeHealth"))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        Err(not_served("NodeGetStorageHealth"))
    }
}

/// The capability for the call is not announced, so nobody who keeps to CSI sends it.
fn not_served(call: &str) -> Status {
    Status::unimplemented(format!("{call} is not among the capabilities of this driver"))
}

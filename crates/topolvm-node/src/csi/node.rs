//! The CSI Node service: translates requests, gives each volume to one call at a time, and translates answers.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::csi;
use topolvm_proto::csi::node_server::Node;
use topolvm_proto::csi::node_service_capability::{Rpc, Type, rpc};
use topolvm_runtime::{InFlight, Tasks};
use tracing::Instrument as _;

use super::request::{
    ExpandVolume, GetVolumeHealth, GetVolumeStats, PublishVolume, StageVolume, UnpublishVolume, UnstageVolume,
};
use super::{Agent, Error};
use crate::mount::Mounter;

/// How many volumes begin to appear or grow at the same time, and how many go away; the others wait. Each runs a program or two, and
/// a pod's start should not wait for the repair of more than a few other volumes. Its end waits for none.
const CHANGES: usize = 32;

/// Makes volumes appear in pods.
#[derive(Debug)]
pub struct NodeService<M> {
    flavor: ApiFlavor,
    node: String,
    agent: Arc<Agent<M>>,
    in_flight: InFlight,
    begins: Arc<Semaphore>,
    ends: Arc<Semaphore>,
    tasks: Tasks,
    /// Is told the ids of volumes that have gone from a pod.
    unpublished: Option<mpsc::UnboundedSender<String>>,
}

impl<M: Mounter> NodeService<M> {
    /// The service of a node.
    pub fn new(flavor: ApiFlavor, node: String, agent: Arc<Agent<M>>, tasks: Tasks) -> Self {
        let turns = || Arc::new(Semaphore::new(CHANGES));
        Self {
            flavor,
            node,
            agent,
            in_flight: InFlight::default(),
            begins: turns(),
            ends: turns(),
            tasks,
            unpublished: None,
        }
    }

    /// Names each volume that was unpublished or unstaged to `unpublished`: a removal may wait for that.
    #[must_use]
    pub fn telling(self, unpublished: mpsc::UnboundedSender<String>) -> Self {
        Self { unpublished: Some(unpublished), ..self }
    }

    fn tell_unpublished(&self, id: String) {
        if let Some(unpublished) = &self.unpublished {
            // Nobody listens only when everything ends
            drop(unpublished.send(id));
        }
    }

    /// Does something that changes a volume or its mounts. Once begun it goes on when the caller hangs up, as kubelet does
    /// after its deadline: a mkfs that is killed half-way helps nobody. The volume stays taken until it has ended.
    async fn change<T, F>(
        &self,
        turns: &Arc<Semaphore>,
        id: &str,
        change: impl FnOnce(Arc<Agent<M>>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        tracing::Span::current().record("volume", id);
        let turn = self.in_flight.start(id).ok_or_else(|| Error::Busy(id.to_owned()))?;
        let change = change(Arc::clone(&self.agent));
        let turns = Arc::clone(turns);
        let work = async move {
            let permit = turns.acquire_owned().await;
            let result = change.await;
            drop(permit);
            match result.as_ref().err().and_then(Error::stuck) {
                // Nobody can tell what a mount or a mkfs that hangs in the kernel will do yet
                Some(stuck) => stuck.keep(turn),
                None => drop(turn),
            }
            result
        };
        self.tasks.finish(work.in_current_span()).await?
    }
}

#[tonic::async_trait]
impl<M: Mounter> Node for NodeService<M> {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = PublishVolume::read(self.flavor, request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        self.change(&self.begins, &id, |agent| async move { agent.publish(request).await }).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = UnpublishVolume::try_from(request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        self.change(&self.ends, &id, |agent| async move { agent.unpublish(request).await }).await?;
        self.tell_unpublished(id);
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = GetVolumeStats::try_from(request.into_inner()).map_err(Error::from)?;
        Ok(Response::new(self.agent.stats(request).await?))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = ExpandVolume::try_from(request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        let bytes = self.change(&self.begins, &id, |agent| async move { agent.expand(request).await }).await?;
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX) }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let kinds = [
            rpc::Type::GetVolumeStats,
            rpc::Type::ExpandVolume,
            // For kubelets that do not know CSI 1.13
            rpc::Type::VolumeCondition,
            rpc::Type::GetVolumeHealth,
            rpc::Type::GetStorageHealth,
            // ReadWriteOncePod arrives as a mode of its own only with this
            rpc::Type::SingleNodeMultiWriter,
        ];
        let staging = self.agent.stages.then_some(rpc::Type::StageUnstageVolume);
        let capabilities = kinds
            .into_iter()
            .chain(staging)
            .map(|kind| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) })
            .collect();
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
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        // Nobody who keeps to CSI sends what is not announced
        if !self.agent.stages {
            return Err(Status::unimplemented("NodeStageVolume is served with --stage-volumes only"));
        }
        let request = StageVolume::read(self.flavor, request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        self.change(&self.begins, &id, |agent| async move { agent.stage(request).await }).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = UnstageVolume::try_from(request.into_inner()).map_err(Error::from)?;
        let id = request.id.clone();
        self.change(&self.ends, &id, |agent| async move { agent.unstage(request).await }).await?;
        self.tell_unpublished(id);
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        let request = GetVolumeHealth::try_from(request.into_inner()).map_err(Error::from)?;
        let volume_health = Some(self.agent.volume_health(request).await?);
        Ok(Response::new(csi::NodeGetVolumeHealthResponse { volume_health }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        let backend_health = self.agent.storage_health();
        Ok(Response::new(csi::NodeGetStorageHealthResponse { backend_health }))
    }
}

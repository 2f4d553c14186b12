//! The CSI Node service: parses requests, takes the lock of the volume, and builds responses.

use std::collections::HashMap;
use std::sync::Arc;

use linux_mount::Mounter;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status};
use topolvm_api::ApiFlavor;
use topolvm_proto::csi;
use topolvm_proto::csi::node_server::Node;
use topolvm_proto::csi::node_service_capability::{Rpc, Type, rpc};
use topolvm_runtime::{CancellationToken, InFlight, Tasks};
use tracing::Instrument as _;

use super::request::{
    ExpandVolume, GetVolumeHealth, GetVolumeStats, PublishVolume, StageVolume, parse_unpublish, parse_unstage,
};
use super::{Agent, CsiError};

/// Volumes that are staged, published or grown at the same time, and that are unpublished; the others wait.
/// Each runs a program or two, and a pod's start should not wait for the repair of more than a few other volumes.
/// Unpublishing waits for none of these.
const MAX_CONCURRENT_CHANGES: usize = 32;

/// Serves the calls of the CSI Node service.
#[derive(Debug)]
pub struct NodeService<M> {
    flavor: ApiFlavor,
    node: String,
    agent: Arc<Agent<M>>,
    in_flight: InFlight,
    setup_slots: Arc<Semaphore>,
    teardown_slots: Arc<Semaphore>,
    tasks: Tasks,
    /// Receives the ids of volumes that were published, unpublished or unstaged.
    published: Option<mpsc::UnboundedSender<String>>,
}

impl<M: Mounter> NodeService<M> {
    /// Makes the service of a node.
    pub fn new(flavor: ApiFlavor, node: String, agent: Arc<Agent<M>>, tasks: Tasks) -> Self {
        let slots = || Arc::new(Semaphore::new(MAX_CONCURRENT_CHANGES));
        Self {
            flavor,
            node,
            agent,
            in_flight: InFlight::default(),
            setup_slots: slots(),
            teardown_slots: slots(),
            tasks,
            published: None,
        }
    }

    /// Sends the id of each volume that was published, unpublished or unstaged to `published`: its deletion may wait
    /// for that, and its condition reports the limits of its pods.
    #[must_use]
    pub(crate) fn notifying_published(self, published: mpsc::UnboundedSender<String>) -> Self {
        Self { published: Some(published), ..self }
    }

    /// Discards the free blocks of new filesystems in the background, until the shutdown begins.
    pub fn discard_free_blocks(
        &self,
        shutdown: CancellationToken,
    ) -> impl Future<Output = anyhow::Result<()>> + Send + use<M> {
        Arc::clone(&self.agent.mounts).discard_free_blocks(shutdown)
    }

    /// Sends the id of a volume that was published, unpublished or unstaged.
    fn notify_published(&self, id: String) {
        if let Some(published) = &self.published {
            // The receiver is dropped only at shutdown
            drop(published.send(id));
        }
    }

    /// Runs work on a volume under the lock of the volume, [`CsiError::Busy`] if another call holds it. Once begun the
    /// work continues if the caller hangs up, as the kubelet does after its deadline: killing a mkfs half-way would
    /// gain nothing. The lock is held until the work has ended.
    async fn run_locked<T, F>(
        &self,
        slots: &Arc<Semaphore>,
        id: &str,
        work: impl FnOnce(Arc<Agent<M>>) -> F,
    ) -> Result<T, CsiError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CsiError>> + Send + 'static,
    {
        tracing::Span::current().record("volume", id);
        let lock = self.in_flight.start(id).ok_or_else(|| CsiError::Busy(id.to_owned()))?;
        let work = work(Arc::clone(&self.agent));
        let slots = Arc::clone(slots);
        let work = async move {
            let slot = slots.acquire_owned().await;
            let result = work.await;
            drop(slot);
            match result.as_ref().err().and_then(CsiError::hung_task) {
                // A mount or a mkfs that hangs in the kernel may still change the device: the task keeps the lock
                Some(hung_task) => hung_task.hold_lock(lock),
                None => drop(lock),
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
        let request = PublishVolume::parse(self.flavor, request.into_inner())?;
        let id = request.id.clone();
        self.run_locked(&self.setup_slots, &id, |agent| async move { agent.publish(request).await }).await?;
        self.notify_published(id);
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let (id, target) = parse_unpublish(request.into_inner())?;
        let volume = id.clone();
        self.run_locked(&self.teardown_slots, &id, |agent| async move { agent.unpublish(&volume, &target).await })
            .await?;
        self.notify_published(id);
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = GetVolumeStats::parse(request.into_inner())?;
        Ok(Response::new(self.agent.health.stats(request).await?))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let request = ExpandVolume::parse(request.into_inner())?;
        let id = request.id.clone();
        let bytes = self.run_locked(&self.setup_slots, &id, |agent| async move { agent.expand(request).await }).await?;
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
            // Only with this, ReadWriteOncePod arrives as a separate mode
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
        // CSI forbids calls of capabilities that are not announced
        if !self.agent.stages {
            return Err(Status::unimplemented("NodeStageVolume is only supported with --stage-volumes"));
        }
        let request = StageVolume::parse(self.flavor, request.into_inner())?;
        let id = request.id.clone();
        self.run_locked(&self.setup_slots, &id, |agent| async move { agent.stage(request).await }).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let (id, staging) = parse_unstage(request.into_inner())?;
        let volume = id.clone();
        self.run_locked(&self.teardown_slots, &id, |agent| async move { agent.unstage(&volume, &staging).await })
            .await?;
        self.notify_published(id);
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_get_volume_health(
        &self,
        request: Request<csi::NodeGetVolumeHealthRequest>,
    ) -> Result<Response<csi::NodeGetVolumeHealthResponse>, Status> {
        let request = GetVolumeHealth::parse(request.into_inner())?;
        let volume_health = Some(self.agent.health.volume_health(request).await?);
        Ok(Response::new(csi::NodeGetVolumeHealthResponse { volume_health }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Result<Response<csi::NodeGetStorageHealthResponse>, Status> {
        let backend_health = self.agent.health.storage_health();
        Ok(Response::new(csi::NodeGetStorageHealthResponse { backend_health }))
    }
}

//! The real lvmd over a fake LVM, in this process or behind a socket, where it can be stopped and started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lvm::Lvm;
use lvmd::routes;
use lvmd_client::LvmdClient;
use lvmd_config::tags::InstanceId;
use lvmd_config::{Config, DiskGroups};
use lvmd_discovery::Discovery;
use lvmd_engine::Engine;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::vg_service_server::{VgService, VgServiceServer};
use topolvm_proto::lvmd::{
    Empty, GetFreeBytesRequest, GetFreeBytesResponse, GetLvListRequest, GetLvListResponse, NodeLabels, WatchResponse,
};
use topolvm_runtime::grpc::{RpcMetrics, serve};
use topolvm_runtime::{CancellationToken, Tasks, unix};
use topolvm_testkit::lvm::FakeLvm;

/// The volume group of the classes below.
pub(crate) const VG: &str = "myvg";
/// One default class without spare.
pub(crate) const ONE_CLASS: &str = "
device-classes:
  - {name: ssd, volume-group: myvg, default: true, spare-gb: 0}
";
/// Two of them.
pub(crate) const TWO_CLASSES: &str = "
device-classes:
  - {name: ssd, volume-group: myvg, default: true, spare-gb: 0}
  - {name: hdd, volume-group: slow, spare-gb: 0}
";

/// A default class in a thin pool with an overprovision ratio of 5.
pub(crate) const THIN_CLASS: &str = "
device-classes:
  - name: thin
    volume-group: myvg
    default: true
    type: thin
    spare-gb: 0
    thin-pool: {name: pool, overprovision-ratio: 5.0}
";

/// A running lvmd. It goes on until it is stopped or dropped.
#[derive(Debug)]
pub(crate) struct LvmdProcess {
    routes: Routes,
    engine: Engine<FakeLvm>,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl LvmdProcess {
    /// Starts lvmd with a configuration.
    pub(crate) async fn start(lvm: &FakeLvm, config: &str) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let classes = Config::parse("lvmd.yaml", config).unwrap().classes;
        let engine = Engine::start(
            Lvm::new(lvm.clone()),
            classes,
            InstanceId::new(Path::new("lvmd.sock"), None),
            &tasks,
            shutdown.clone(),
        )
        .await
        .unwrap();
        let (health, service) = tonic_health::server::health_reporter();
        health.set_service_status("", tonic_health::ServingStatus::Serving).await;
        Self { routes: routes(&engine).add_service(service), engine, tasks, shutdown }
    }

    /// Looks at the disks of this machine once, and does what the disk groups of this configuration ask for.
    pub(crate) async fn look_at_disks(&self, lvm: &FakeLvm, config: &str) {
        let groups = Config::parse("lvmd.yaml", config).unwrap().disk_groups;
        let (_, configured) = watch::channel(Arc::default());
        let engine = self.engine.clone();
        Discovery::new(lvm.clone(), Lvm::new(lvm.clone()), engine, configured).scan_and_act(&groups).await;
    }

    /// Looks at the disks of this machine until it is stopped, when something says that there is a reason.
    pub(crate) fn keep_looking_at_disks(&self, lvm: &FakeLvm, config: &str) -> watch::Sender<Arc<DiskGroups>> {
        let groups = Config::parse("lvmd.yaml", config).unwrap().disk_groups;
        let (sender, configured) = watch::channel(Arc::new(groups));
        let discovery = Discovery::new(lvm.clone(), Lvm::new(lvm.clone()), self.engine.clone(), configured);
        self.tasks.spawn("disk groups", discovery.run(self.shutdown.clone()));
        sender
    }

    /// Waits until lvmd has received the labels of the node, and returns them.
    pub(crate) async fn until_labelled(&self) -> BTreeMap<String, String> {
        let mut client = DiskServiceClient::new(self.routes.clone());
        loop {
            let answer = client.get_node_labels(Empty {}).await.unwrap().into_inner();
            if let Some(NodeLabels { labels }) = answer.node_labels {
                return labels.into_iter().map(|label| (label.key, label.value)).collect();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until these are the labels that lvmd received last.
    pub(crate) async fn until_labelled_as(&self, labels: &BTreeMap<String, String>) {
        while self.until_labelled().await != *labels {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Serves it on a socket, too.
    pub(crate) async fn listen(self, socket: &Path) -> Self {
        let listener = unix::listen(socket).await.unwrap();
        let (routes, shutdown) = (self.routes.clone(), self.shutdown.clone());
        let metrics = RpcMetrics::register(&mut Registry::default());
        self.tasks.spawn("gRPC", async move { serve(listener, routes, &metrics, shutdown).await });
        self
    }

    /// A client in this process.
    pub(crate) fn client(&self) -> LvmdClient {
        LvmdClient::over(self.routes.clone())
    }

    /// A client through which every volume in an answer to GetLVList is counted.
    pub(crate) fn client_counting(&self, listed: &Arc<AtomicUsize>) -> LvmdClient {
        let counting = Counting { vg: VgServiceClient::new(self.routes.clone()), listed: Arc::clone(listed) };
        LvmdClient::over(Routes::new(VgServiceServer::new(counting)))
    }

    /// Ends it in order, its socket included.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.clone().wait().await.unwrap();
    }
}

impl Drop for LvmdProcess {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Asks lvmd, and counts the volumes that it lists.
#[derive(Debug)]
struct Counting {
    vg: VgServiceClient<Routes>,
    listed: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl VgService for Counting {
    type WatchStream = Streaming<WatchResponse>;

    async fn get_lv_list(&self, request: Request<GetLvListRequest>) -> Result<Response<GetLvListResponse>, Status> {
        let answer = self.vg.clone().get_lv_list(request).await?;
        self.listed.fetch_add(answer.get_ref().volumes.len(), Ordering::Relaxed);
        Ok(answer)
    }

    async fn get_free_bytes(
        &self,
        request: Request<GetFreeBytesRequest>,
    ) -> Result<Response<GetFreeBytesResponse>, Status> {
        self.vg.clone().get_free_bytes(request).await
    }

    async fn watch(&self, request: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        self.vg.clone().watch(request).await
    }
}

/// A client of an lvmd that is not running.
pub(crate) fn unreachable_lvmd() -> LvmdClient {
    LvmdClient::connect(&PathBuf::from("/nonexistent/lvmd.sock")).unwrap()
}

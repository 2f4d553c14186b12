//! An lvmd that says what disks there are, and remembers what it was asked to do with them.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use lvmd_client::LvmdClient;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use topolvm_proto::lvmd::disk_service_server::{DiskService, DiskServiceServer};
use topolvm_proto::lvmd::storage_service_server::{StorageService, StorageServiceServer};
use topolvm_proto::lvmd::{
    AddDiskRequest, DiskGroupItem, DiskItem, DiskReport, DiskRequest, Empty, EvacuateDiskRequest, Evacuation,
    GetNodeLabelsResponse, NodeLabels, PhysicalVolumeItem, VolumeGroupItem, WatchStorageResponse,
};

/// UUIDs of the disks of the group `data`.
pub(crate) const MOVED: &str = "moved";
pub(crate) const LEFT: &str = "left";
pub(crate) const MISSING: &str = "missing";

/// The disks of a node and their lvmd. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct FakeDisks {
    storage: watch::Sender<WatchStorageResponse>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<String>,
    /// The received labels of the node, one text per call.
    labels: Vec<String>,
    /// Beginning of the calls that are refused, and the answer.
    refusal: Option<(&'static str, Status)>,
}

impl FakeDisks {
    /// A group of three disks, of which one is missing.
    pub(crate) fn new() -> Self {
        let pv = |uuid: &str, path: &str| PhysicalVolumeItem {
            path: path.to_owned(),
            uuid: uuid.to_owned(),
            size_bytes: 10 << 30,
            missing: path.is_empty(),
            ..PhysicalVolumeItem::default()
        };
        let group = VolumeGroupItem {
            name: "data".to_owned(),
            found: true,
            uuid: "g".to_owned(),
            physical_volumes: vec![pv(MOVED, "/dev/sdb"), pv(LEFT, "/dev/sdc"), pv(MISSING, "")],
            ..VolumeGroupItem::default()
        };
        let disk_group = DiskGroupItem { name: "data".to_owned(), mode: "report".to_owned(), ..Default::default() };
        let report = DiskReport { disk_groups: vec![disk_group], ..DiskReport::default() };
        let storage = WatchStorageResponse {
            volume_groups: vec![group],
            disk_report: Some(report),
            ..WatchStorageResponse::default()
        };
        Self { storage: watch::channel(storage).0, state: Arc::default() }
    }

    pub(crate) fn client(&self) -> LvmdClient {
        let routes = Routes::new(StorageServiceServer::new(self.clone()));
        LvmdClient::over(routes.add_service(DiskServiceServer::new(self.clone())))
    }

    /// Returns what was asked for, in words.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.state.lock().calls.clone()
    }

    /// Returns the received labels of the node, one text per call.
    pub(crate) fn received_labels(&self) -> Vec<String> {
        self.state.lock().labels.clone()
    }

    /// Answers calls that begin like this with an error from now on.
    pub(crate) fn refuse(&self, calls: &'static str, answer: Status) {
        self.state.lock().refusal = Some((calls, answer));
    }

    /// Answers all calls from now on.
    pub(crate) fn agree(&self) {
        self.state.lock().refusal = None;
    }

    /// A blank disk is plugged in.
    pub(crate) fn plug(&self, path: &str, stable_name: &str) {
        let (path, stable_name) = (path.to_owned(), stable_name.to_owned());
        let disk = DiskItem { path, stable_name, state: "candidate".to_owned(), ..DiskItem::default() };
        self.storage.send_modify(|storage| storage.disk_report.as_mut().unwrap().disks.push(disk));
    }

    /// All volumes of a disk have been moved.
    pub(crate) fn empty(&self, uuid: &str) {
        self.change(uuid, |pv| "empty".clone_into(&mut pv.evacuation.as_mut().unwrap().state));
    }

    /// A disk leaves its group.
    pub(crate) fn remove(&self, uuid: &str) {
        self.storage.send_modify(|storage| storage.volume_groups[0].physical_volumes.retain(|pv| pv.uuid != uuid));
    }

    /// A disk is pulled out.
    pub(crate) fn lose(&self, uuid: &str) {
        self.change(uuid, |pv| (pv.missing, pv.path) = (true, String::new()));
    }

    fn change(&self, uuid: &str, change: impl FnOnce(&mut PhysicalVolumeItem)) {
        self.storage.send_modify(|storage| {
            change(storage.volume_groups[0].physical_volumes.iter_mut().find(|pv| pv.uuid == uuid).unwrap());
        });
    }

    fn answer(&self, call: String) -> Result<Response<Empty>, Status> {
        let mut state = self.state.lock();
        let refusal = state.refusal.as_ref().filter(|(calls, _)| call.starts_with(calls)).map(|(_, answer)| answer);
        let answer = refusal.cloned().map_or(Ok(Response::new(Empty {})), Err);
        state.calls.push(call);
        answer
    }
}

#[tonic::async_trait]
impl StorageService for FakeDisks {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchStorageResponse, Status>> + Send>>;

    async fn watch(&self, _: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(WatchStream::new(self.storage.subscribe()).map(Ok).boxed()))
    }
}

#[tonic::async_trait]
impl DiskService for FakeDisks {
    async fn add_disk(&self, request: Request<AddDiskRequest>) -> Result<Response<Empty>, Status> {
        let AddDiskRequest { path, stable_name } = request.into_inner();
        let answer = self.answer(format!("add {path} {stable_name}").trim_end().to_owned())?;
        self.storage.send_modify(|storage| {
            let mut disks = storage.disk_report.as_mut().unwrap().disks.iter_mut();
            "member".clone_into(&mut disks.find(|disk| disk.path == path).unwrap().state);
        });
        Ok(answer)
    }

    async fn evacuate_disk(&self, request: Request<EvacuateDiskRequest>) -> Result<Response<Empty>, Status> {
        let EvacuateDiskRequest { volume_group, uuid, bytes_per_second: rate, remove } = request.into_inner();
        let rate = if rate == 0 { String::new() } else { format!(" at {rate}") };
        let end = if remove { " and remove" } else { "" };
        let answer = self.answer(format!("evacuate {volume_group} {uuid}{rate}{end}"))?;
        let evacuation =
            Evacuation { state: "moving".to_owned(), remaining_bytes: 2 << 30, remove, ..Default::default() };
        self.change(&uuid, |pv| pv.evacuation = Some(evacuation));
        Ok(answer)
    }

    async fn set_node_labels(&self, request: Request<NodeLabels>) -> Result<Response<Empty>, Status> {
        let labels = request.into_inner().labels;
        let labels: Vec<_> = labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect();
        let mut state = self.state.lock();
        state.labels.push(labels.join(","));
        let refusal = state.refusal.as_ref().filter(|(calls, _)| *calls == "labels").map(|(_, answer)| answer);
        refusal.cloned().map_or(Ok(Response::new(Empty {})), Err)
    }

    async fn get_node_labels(&self, _: Request<Empty>) -> Result<Response<GetNodeLabelsResponse>, Status> {
        Err(Status::unimplemented("no test asks"))
    }

    async fn stop_evacuation(&self, request: Request<DiskRequest>) -> Result<Response<Empty>, Status> {
        let DiskRequest { volume_group, uuid } = request.into_inner();
        let answer = self.answer(format!("stop {volume_group} {uuid}"))?;
        self.change(&uuid, |pv| pv.evacuation = None);
        Ok(answer)
    }

    async fn replace_missing_disk(&self, request: Request<DiskRequest>) -> Result<Response<Empty>, Status> {
        let DiskRequest { volume_group, uuid } = request.into_inner();
        let answer = self.answer(format!("replace {volume_group} {uuid}"))?;
        self.remove(&uuid);
        Ok(answer)
    }
}

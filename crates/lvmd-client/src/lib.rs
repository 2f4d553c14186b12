//! The client of lvmd: over its unix socket, or over a service in this process.

mod device_classes;
mod error;
mod grpc;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{Stream, TryStreamExt as _};
use linux_mount::DeviceNumber;
use lvm::LvAttr;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::orphan_service_client::OrphanServiceClient;
use topolvm_proto::lvmd::storage_service_client::StorageServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{
    AddDiskRequest, AdoptLvRequest, CreateLvRequest, CreateLvSnapshotRequest, CreateLvSnapshotsRequest, DiskRequest,
    Empty, EvacuateDiskRequest, GetLvListRequest, LogicalVolume, NodeLabel, NodeLabels, QuarantineLvRequest,
    RemoveLvRequest, RemoveQuarantinedLvRequest, ResizeLvRequest, WatchResponse, WatchStorageResponse,
};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

pub use device_classes::{DeviceClass, DeviceClasses, ThinPool};
pub use error::{Absence, LvmdError};
use grpc::{Transport, TransportError, call, from_status};

/// Deadline of a change: lvmd serialises changes per volume group, and LVM itself can wait for a slow disk.
const CHANGE: Duration = Duration::from_mins(2);
/// Deadline of a call that changes nothing.
const QUESTION: Duration = Duration::from_secs(30);
/// Deadline of a health check. The liveness probe's own limit is 3 seconds.
const HEALTH: Duration = Duration::from_secs(2);
/// Largest message in bytes: a list of some ten thousand LVs.
const LARGEST_ANSWER: usize = 16 << 20;

/// A client of lvmd. Clones share the connection.
#[derive(Clone, Debug)]
pub struct LvmdClient {
    lv: LvServiceClient<Transport>,
    vg: VgServiceClient<Transport>,
    storage: StorageServiceClient<Transport>,
    orphans: OrphanServiceClient<Transport>,
    disks: DiskServiceClient<Transport>,
    health: HealthClient<Transport>,
    remedy: &'static str,
}

/// An LV as lvmd reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lv {
    /// Name in LVM.
    pub name: String,
    /// Path of its device, such as `/dev/vg/lv`.
    pub path: PathBuf,
    /// Real size in bytes.
    pub size_bytes: u64,
    /// Device number; `None` while the LV is not active.
    pub number: Option<DeviceNumber>,
    /// LVM tags.
    pub tags: Vec<String>,
    /// State of the LV as LVM's `lv_attr`; `None` if lvmd sends nothing readable.
    pub attr: Option<LvAttr>,
    /// Bytes that a thin volume uses in its pool; `None` for others, and if lvmd does not send it.
    pub thin_used_bytes: Option<u64>,
}

impl LvmdClient {
    /// Makes a client of lvmd's socket. It connects with the first call and again whenever lvmd was restarted.
    pub fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::try_from(format!("unix:{}", socket.display()))?
            .connect_timeout(Duration::from_secs(5))
            .connect_lazy();
        Ok(Self { remedy: "check that lvmd is running and that --lvmd-socket is its socket", ..Self::over(channel) })
    }

    /// Makes a client of any gRPC service, such as one in this process.
    pub fn over<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        let transport = BoxCloneSyncService::new(service.map_err(|error| TransportError(error.into())));
        Self {
            lv: LvServiceClient::new(transport.clone()),
            vg: VgServiceClient::new(transport.clone()).max_decoding_message_size(LARGEST_ANSWER),
            storage: StorageServiceClient::new(transport.clone()),
            orphans: OrphanServiceClient::new(transport.clone()),
            disks: DiskServiceClient::new(transport.clone()),
            health: HealthClient::new(transport),
            remedy: "check that its volume group exists and that LVM works",
        }
    }

    /// Returns what an administrator checks while lvmd does not answer.
    pub const fn remedy(&self) -> &'static str {
        self.remedy
    }

    /// Creates an LV, unless it exists already; returns its real size in bytes.
    pub async fn create(&self, lv: CreateLvRequest) -> Result<u64, LvmdError> {
        let created = call("CreateLV", CHANGE, self.lv.clone().create_lv(lv)).await?;
        created.volume.map_or(Err(LvmdError::Size), |lv| from_wire(lv.size_bytes))
    }

    /// Creates a copy of an LV, unless it exists already; returns its real size in bytes.
    pub async fn copy(&self, lv: CreateLvSnapshotRequest) -> Result<u64, LvmdError> {
        let created = call("CreateLVSnapshot", CHANGE, self.lv.clone().create_lv_snapshot(lv)).await?;
        created.snapshot.map_or(Err(LvmdError::Size), |lv| from_wire(lv.size_bytes))
    }

    /// Creates read-only copies of LVs with the contents of one moment, unless all exist already; returns their real
    /// sizes in bytes. TopoLVM's lvmd answers that it does not know the call.
    pub async fn copy_together(&self, snapshots: Vec<CreateLvSnapshotRequest>) -> Result<Vec<u64>, LvmdError> {
        let requested = snapshots.len();
        let request = CreateLvSnapshotsRequest { snapshots };
        let created = call("CreateLVSnapshots", CHANGE, self.lv.clone().create_lv_snapshots(request)).await?.snapshots;
        if created.len() != requested {
            return Err(LvmdError::Size);
        }
        created.into_iter().map(|lv| from_wire(lv.size_bytes)).collect()
    }

    /// Removes an LV.
    pub async fn remove(&self, name: &str, device_class: &str) -> Result<(), LvmdError> {
        let request = RemoveLvRequest { name: name.to_owned(), device_class: device_class.to_owned() };
        call("RemoveLV", CHANGE, self.lv.clone().remove_lv(request)).await?;
        Ok(())
    }

    /// Grows an LV to at least this size; returns its real size in bytes, 0 from an lvmd before 0.36.5.
    pub async fn resize(&self, name: &str, device_class: &str, size_bytes: u64) -> Result<u64, LvmdError> {
        let request = ResizeLvRequest {
            name: name.to_owned(),
            device_class: device_class.to_owned(),
            size_bytes: to_wire(size_bytes)?,
        };
        let resized = call("ResizeLV", CHANGE, self.lv.clone().resize_lv(request)).await?;
        from_wire(resized.size_bytes)
    }

    /// Puts the LV of an object that is gone into quarantine. TopoLVM's lvmd answers that it does not know the call.
    pub async fn quarantine(&self, name: &str, device_class: &str, at: i64) -> Result<(), LvmdError> {
        let request =
            QuarantineLvRequest { name: name.to_owned(), device_class: device_class.to_owned(), quarantined_at: at };
        call("QuarantineLV", CHANGE, self.orphans.clone().quarantine_lv(request)).await?;
        Ok(())
    }

    /// Gives an LV to another object; returns its real size in bytes.
    pub async fn adopt(&self, lv: AdoptLvRequest) -> Result<u64, LvmdError> {
        let adopted = call("AdoptLV", CHANGE, self.orphans.clone().adopt_lv(lv)).await?;
        adopted.volume.map_or(Err(LvmdError::Size), |lv| from_wire(lv.size_bytes))
    }

    /// Removes an LV that was put into quarantine at this time.
    pub async fn remove_quarantined(&self, name: &str, device_class: &str, at: i64) -> Result<(), LvmdError> {
        let request = RemoveQuarantinedLvRequest {
            name: name.to_owned(),
            device_class: device_class.to_owned(),
            quarantined_at: at,
        };
        call("RemoveQuarantinedLV", CHANGE, self.orphans.clone().remove_quarantined_lv(request)).await?;
        Ok(())
    }

    /// Adds a blank disk to the disk group that selects it. An lvmd that is older, or TopoLVM's, does not know this
    /// call and the following three.
    pub async fn add_disk(&self, disk: AddDiskRequest) -> Result<(), LvmdError> {
        call("AddDisk", CHANGE, self.disks.clone().add_disk(disk)).await.map(drop)
    }

    /// Has the volumes of a disk moved to the others of its group. Answered when lvmd has it on record.
    pub async fn evacuate_disk(&self, disk: EvacuateDiskRequest) -> Result<(), LvmdError> {
        call("EvacuateDisk", CHANGE, self.disks.clone().evacuate_disk(disk)).await.map(drop)
    }

    /// Ends the evacuation of a disk.
    pub async fn stop_evacuation(&self, disk: DiskRequest) -> Result<(), LvmdError> {
        call("StopEvacuation", CHANGE, self.disks.clone().stop_evacuation(disk)).await.map(drop)
    }

    /// Has the mirrors rebuilt that have lost a missing disk, and the disk forgotten.
    pub async fn replace_missing_disk(&self, disk: DiskRequest) -> Result<(), LvmdError> {
        call("ReplaceMissingDisk", CHANGE, self.disks.clone().replace_missing_disk(disk)).await.map(drop)
    }

    /// Sends the labels of the node. An older lvmd, or TopoLVM's, does not know this call either.
    pub async fn set_node_labels(&self, labels: &BTreeMap<String, String>) -> Result<(), LvmdError> {
        let label = |(key, value): (&String, &String)| NodeLabel { key: key.clone(), value: value.clone() };
        let labels = NodeLabels { labels: labels.iter().map(label).collect() };
        call("SetNodeLabels", QUESTION, self.disks.clone().set_node_labels(labels)).await.map(drop)
    }

    /// Finds an LV by name. lvmd knows where it is, also when its device class has its volumes elsewhere by now or is
    /// no longer configured. TopoLVM's lvmd lists what is in the class.
    pub async fn find(&self, name: &str, device_class: &str) -> Result<Option<Lv>, LvmdError> {
        let found = self.volumes(name, device_class).await?.into_iter().find(|lv| lv.name == name);
        found.map(Lv::try_from).transpose()
    }

    /// Lists the LVs of a device class. A class that cannot be listed is an error and not empty.
    pub async fn list(&self, device_class: &str) -> Result<Vec<Lv>, LvmdError> {
        self.volumes("", device_class).await?.into_iter().map(Lv::try_from).collect()
    }

    /// Lists the LVs of a device class as lvmd reports them.
    pub async fn list_as_reported(&self, device_class: &str) -> Result<Vec<LogicalVolume>, LvmdError> {
        self.volumes("", device_class).await
    }

    /// Calls GetLVList. With a name, lvmd returns that LV alone, wherever it is.
    async fn volumes(&self, name: &str, device_class: &str) -> Result<Vec<LogicalVolume>, LvmdError> {
        let request = GetLvListRequest { device_class: device_class.to_owned(), name: name.to_owned() };
        Ok(call("GetLVList", QUESTION, self.vg.clone().get_lv_list(request)).await?.volumes)
    }

    /// Streams the free space of all device classes: at once, and again after each change.
    pub async fn watch(
        &self,
    ) -> Result<impl Stream<Item = Result<WatchResponse, LvmdError>> + Unpin + use<>, LvmdError> {
        let stream = call("Watch", QUESTION, self.vg.clone().watch(Empty {})).await?;
        Ok(stream.map_err(|status| from_status("Watch", &status)))
    }

    /// Streams what lvmd knows of the storage of the node: at once, and again after each change. TopoLVM's lvmd does
    /// not know the call, see [`LvmdError::is_unimplemented`].
    pub async fn watch_storage(
        &self,
    ) -> Result<impl Stream<Item = Result<WatchStorageResponse, LvmdError>> + Unpin + use<>, LvmdError> {
        let stream = call("StorageService/Watch", QUESTION, self.storage.clone().watch(Empty {})).await?;
        Ok(stream.map_err(|status| from_status("StorageService/Watch", &status)))
    }

    /// Checks that lvmd is serving.
    pub async fn check_health(&self) -> Result<(), LvmdError> {
        let request = HealthCheckRequest::default();
        let answer = call("health check", HEALTH, self.health.clone().check(request)).await?;
        if answer.status() == ServingStatus::Serving { Ok(()) } else { Err(LvmdError::NotServing) }
    }
}

impl TryFrom<LogicalVolume> for Lv {
    type Error = LvmdError;

    fn try_from(lv: LogicalVolume) -> Result<Self, LvmdError> {
        Ok(Self {
            size_bytes: from_wire(lv.size_bytes)?,
            path: lv.path.into(),
            tags: lv.tags,
            attr: lv.attr.parse().ok(),
            thin_used_bytes: lv.thin_used_bytes,
            // No device has major number 0. TopoLVM's lvmd sends it, too, for what LVM reports as -1
            number: (lv.dev_major != 0).then_some(DeviceNumber { major: lv.dev_major, minor: lv.dev_minor }),
            name: lv.name,
        })
    }
}

/// Converts a size in bytes to the signed integer of the protocol.
pub fn to_wire(bytes: u64) -> Result<i64, LvmdError> {
    i64::try_from(bytes).map_err(|_| LvmdError::Size)
}

fn from_wire(bytes: i64) -> Result<u64, LvmdError> {
    u64::try_from(bytes).map_err(|_| LvmdError::Size)
}

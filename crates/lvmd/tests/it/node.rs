//! A node with lvmd on a fake LVM, called through real tonic clients in the same process.

use std::path::Path;
use std::time::Duration;

use lvm::Lvm;
use lvmd_config::tags::InstanceId;
use lvmd_config::{Config, DeviceClasses};
use lvmd_engine::Engine;
use tonic::service::Routes;
use tonic::{Code, Status};
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::orphan_service_client::OrphanServiceClient;
use topolvm_proto::lvmd::storage_service_client::StorageServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvSnapshotRequest, GetFreeBytesRequest, GetLvListRequest, LogicalVolume, NodeLabel,
    NodeLabels, RemoveLvRequest, ResizeLvRequest,
};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The tag of every volume that lvmd created.
pub(crate) const MANAGED: &str = "topolvm.io/managed-by=lvmd";
/// The socket of a node's lvmd, and so the name of its instance in tags.
pub(crate) const SOCKET: &str = "/run/topolvm/lvmd.sock";
/// The socket of another lvmd on the same machine.
pub(crate) const OTHER_SOCKET: &str = "/run/other/lvmd.sock";
/// The making tag of a volume that the node's lvmd was creating when it died.
pub(crate) const MAKING: &str = "topolvm.io/making=/run/topolvm/lvmd.sock#1.0";
/// The making tag of the other lvmd.
pub(crate) const OTHER_MAKING: &str = "topolvm.io/making=/run/other/lvmd.sock#1.0";

/// `ssd`, the default, keeps 1 GiB of 10; `hdd` keeps nothing of 20.
pub(crate) const CONFIG: &str = r"
device-classes:
  - {name: ssd, volume-group: vg-ssd, default: true, spare-gb: 1}
  - {name: hdd, volume-group: vg-hdd, spare-gb: 0, stripe: 2, stripe-size: 64k, lvcreate-options: [--readahead=8]}
lvcreate-option-classes:
  - {name: mirrored, options: [--type=raid1]}
  - {name: wrong, options: [--compression=y]}
";

/// A thick class and two thin ones on one volume group of 20 GiB. The pool of `thin`, the default, offers 6 GiB with
/// its 4, of which 1 is kept; the pool of `other` offers 10 GiB with its 1.
pub(crate) const THIN_CONFIG: &str = r"
device-classes:
  - {name: thick, volume-group: vg, spare-gb: 1}
  - {name: thin, volume-group: vg, default: true, spare-gb: 1, type: thin,
     thin-pool: {name: pool, overprovision-ratio: 1.5}}
  - {name: other, volume-group: vg, spare-gb: 0, type: thin, thin-pool: {name: pool2, overprovision-ratio: 10}}
";

/// The failure of LVM to report on a group when two have its name.
pub(crate) fn two_of_one_name(vg: &str) -> Fault {
    Fault::says(&format!(
        "WARNING: VG name {vg} is used by VGs p9XfaK and asplef.
  Fix duplicate VG names with vgrename uuid, a device filter, or system IDs.
  Multiple VGs found with the same name: skipping {vg}
  Use --select vg_uuid=<uuid> in place of the VG name."
    ))
}

pub(crate) struct Node {
    pub(crate) lvm: FakeLvm,
    pub(crate) engine: Engine<FakeLvm>,
    pub(crate) lv: LvServiceClient<Routes>,
    pub(crate) vg: VgServiceClient<Routes>,
    pub(crate) storage: StorageServiceClient<Routes>,
    pub(crate) orphans: OrphanServiceClient<Routes>,
    pub(crate) disks: DiskServiceClient<Routes>,
    pub(crate) tasks: Tasks,
    pub(crate) shutdown: CancellationToken,
    socket: &'static str,
}

impl Node {
    pub(crate) async fn start() -> Self {
        let lvm = FakeLvm::new().with_group("vg-ssd", 10 * GIB);
        lvm.add_group("vg-hdd", 20 * GIB, 2);
        Self::start_with(lvm, CONFIG).await
    }

    pub(crate) async fn start_thin() -> Self {
        let lvm = FakeLvm::new().with_group("vg", 20 * GIB);
        lvm.add_volume("vg", "pool", FakeVolume::thin_pool(4 * GIB));
        lvm.add_volume("vg", "pool2", FakeVolume::thin_pool(GIB));
        Self::start_with(lvm, THIN_CONFIG).await
    }

    /// Ends this lvmd and starts the next one on the same LVM.
    pub(crate) async fn restart(&self, config: &str) -> Self {
        self.shutdown.cancel();
        self.tasks.clone().wait().await.unwrap();
        Self::start_as(self.socket, self.lvm.clone(), config).await
    }

    /// Another lvmd, with its own socket, that works on the same LVM at the same time.
    pub(crate) async fn start_beside(&self, config: &str) -> Self {
        Self::start_as(OTHER_SOCKET, self.lvm.clone(), config).await
    }

    pub(crate) async fn start_with(lvm: FakeLvm, config: &str) -> Self {
        Self::start_as(SOCKET, lvm, config).await
    }

    async fn start_as(socket: &'static str, lvm: FakeLvm, config: &str) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let classes = parse(config);
        let instance = InstanceId::new(Path::new(socket), None);
        let engine = Engine::start(Lvm::new(lvm.clone()), classes, instance, &tasks, shutdown.clone()).await.unwrap();
        let routes = lvmd::routes(&engine).prepare();
        Self {
            lvm,
            engine,
            lv: LvServiceClient::new(routes.clone()),
            vg: VgServiceClient::new(routes.clone()),
            storage: StorageServiceClient::new(routes.clone()),
            orphans: OrphanServiceClient::new(routes.clone()),
            disks: DiskServiceClient::new(routes),
            tasks,
            shutdown,
            socket,
        }
    }

    /// Lets lvmd notice what others changed. The clock of these tests stands still unless everybody waits for it.
    pub(crate) async fn notice(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    /// The first `lvcreate`, without the number of the attempt in the making tag.
    pub(crate) fn created(&self) -> String {
        let commands = self.lvm.commands();
        let created = commands.iter().find(|command| command.starts_with("lvcreate")).unwrap();
        let (before, after) = created.split_once('#').unwrap();
        format!(
            "{before}#{}",
            after.trim_start_matches(|character: char| character.is_ascii_digit() || character == '.')
        )
    }

    /// Sends the labels of the node to lvmd.
    pub(crate) async fn label(&self, labels: &[(&str, &str)]) {
        let label = |&(key, value): &(&str, &str)| NodeLabel { key: key.to_owned(), value: value.to_owned() };
        let labels = NodeLabels { labels: labels.iter().map(label).collect() };
        self.disks.clone().set_node_labels(labels).await.unwrap();
    }

    pub(crate) async fn create(&self, class: &str, name: &str, bytes: u64) -> Result<LogicalVolume, Status> {
        self.create_with(create_request(class, name, bytes)).await
    }

    pub(crate) async fn create_with(&self, request: CreateLvRequest) -> Result<LogicalVolume, Status> {
        Ok(self.lv.clone().create_lv(request).await?.into_inner().volume.unwrap())
    }

    pub(crate) async fn snapshot(&self, request: CreateLvSnapshotRequest) -> Result<LogicalVolume, Status> {
        Ok(self.lv.clone().create_lv_snapshot(request).await?.into_inner().snapshot.unwrap())
    }

    pub(crate) async fn remove(&self, class: &str, name: &str) -> Result<(), Status> {
        let request = RemoveLvRequest { name: name.to_owned(), device_class: class.to_owned() };
        self.lv.clone().remove_lv(request).await.map(drop)
    }

    pub(crate) async fn resize(&self, class: &str, name: &str, bytes: i64) -> Result<i64, Status> {
        let request = ResizeLvRequest { name: name.to_owned(), device_class: class.to_owned(), size_bytes: bytes };
        Ok(self.lv.clone().resize_lv(request).await?.into_inner().size_bytes)
    }

    pub(crate) async fn free(&self, class: &str) -> Result<u64, Status> {
        let request = GetFreeBytesRequest { device_class: class.to_owned() };
        Ok(self.vg.clone().get_free_bytes(request).await?.into_inner().free_bytes)
    }

    pub(crate) async fn list(&self, class: &str) -> Result<Vec<LogicalVolume>, Status> {
        self.list_only(class, "").await
    }

    /// The volume of this name alone; all when it is empty.
    pub(crate) async fn list_only(&self, class: &str, name: &str) -> Result<Vec<LogicalVolume>, Status> {
        let request = GetLvListRequest { device_class: class.to_owned(), name: name.to_owned() };
        Ok(self.vg.clone().get_lv_list(request).await?.into_inner().volumes)
    }
}

pub(crate) fn parse(config: &str) -> DeviceClasses {
    Config::parse("lvmd.yaml", config).unwrap().classes
}

pub(crate) fn create_request(class: &str, name: &str, bytes: u64) -> CreateLvRequest {
    CreateLvRequest {
        name: name.to_owned(),
        device_class: class.to_owned(),
        size_bytes: bytes.try_into().unwrap(),
        ..CreateLvRequest::default()
    }
}

/// A writable snapshot of the volume `a`, as large as it is, in the class `thin`.
pub(crate) fn snapshot_request(name: &str) -> CreateLvSnapshotRequest {
    CreateLvSnapshotRequest {
        name: name.to_owned(),
        source_volume: "a".to_owned(),
        device_class: "thin".to_owned(),
        access_type: "rw".to_owned(),
        ..CreateLvSnapshotRequest::default()
    }
}

/// The code of a request that must fail.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.unwrap_err().code()
}

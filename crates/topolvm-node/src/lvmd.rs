//! The client of lvmd: over its unix socket, or over a service in this process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lvm::LvAttr;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use topolvm_api::AccessType;
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{
    CreateLvRequest, CreateLvSnapshotRequest, Empty, GetLvListRequest, LogicalVolume, RemoveLvRequest, ResizeLvRequest,
    WatchResponse,
};
use topolvm_runtime::grpc::{GrpcCode, reason_of};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

use crate::mount::DeviceNumber;

/// How long a change may take: lvmd serialises changes per volume group, and LVM itself can wait for a slow disk.
const CHANGE: Duration = Duration::from_mins(2);
/// How long a question may take.
const QUESTION: Duration = Duration::from_secs(30);
/// How long lvmd may take to say that it is well. The liveness probe's own limit is 3 seconds.
const HEALTH: Duration = Duration::from_secs(2);
/// Whose words lvmd's reasons are.
const DOMAIN: &str = "lvmd.topolvm.io";
/// The word for an LV that is proven not to be there.
const LV_NOT_FOUND: &str = "LV_NOT_FOUND";
/// A list of some ten thousand LVs.
const LARGEST_ANSWER: usize = 16 << 20;

type Transport = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, TransportError>;

/// What the transport below failed with.
#[derive(Debug, thiserror::Error)]
#[error("no connection to lvmd")]
struct TransportError(#[source] BoxError);

/// A client of lvmd. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Lvmd {
    lv: LvServiceClient<Transport>,
    vg: VgServiceClient<Transport>,
    health: HealthClient<Transport>,
    remedy: &'static str,
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct NewLv<'a> {
    /// Name in LVM.
    pub name: &'a str,
    /// Device class; empty means the default class.
    pub device_class: &'a str,
    /// Class of lvcreate options; empty means those of the device class.
    pub lvcreate_option_class: &'a str,
    /// Wanted size in bytes.
    pub size_bytes: u64,
    /// LVM tags to put on it.
    pub tags: &'a [String],
}

/// A copy to make: a snapshot, or a volume that begins as one.
#[derive(Clone, Copy, Debug)]
pub struct NewCopy<'a> {
    /// Name in LVM.
    pub name: &'a str,
    /// Device class of the source and of the copy; empty means the default class.
    pub device_class: &'a str,
    /// Name in LVM of what is copied.
    pub source: &'a str,
    /// Whether the copy can be written to.
    pub access: AccessType,
    /// Wanted size in bytes, not below that of the source.
    pub size_bytes: u64,
    /// LVM tags to put on it.
    pub tags: &'a [String],
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
    /// Number of its device; `None` while it has none, because it is not active.
    pub number: Option<DeviceNumber>,
    /// What LVM says of its state; `None` where lvmd sends nothing readable.
    pub attr: Option<LvAttr>,
}

/// What an error says about whether the LV is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// lvmd read the volume group, and the LV is not in it.
    Proven,
    /// "Not found" from an lvmd that does not say what: TopoLVM's says it of device classes and volume groups as well.
    Claimed,
    /// It says nothing, or that something else is missing.
    Unknown,
}

/// Why lvmd did not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// lvmd, or the way to it, answered with an error.
    #[error("lvmd: {call}: {}", .status.message())]
    Call {
        /// What was asked for.
        call: &'static str,
        /// The answer.
        status: Box<Status>,
    },
    /// No answer came.
    #[error("lvmd did not answer {call} within {} s", .limit.as_secs())]
    Timeout {
        /// What was asked for.
        call: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// lvmd is there, and says that it cannot serve.
    #[error("lvmd is not serving; see its log")]
    NotServing,
    /// A size that no volume can have.
    #[error("lvmd was asked for or answered with an impossible size")]
    Size,
}

impl Error {
    /// Whether the same call may well succeed later without anybody changing anything: lvmd is away, restarting or busy.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::NotServing => true,
            Self::Call { status, .. } => {
                // A status with a cause was not sent by lvmd but made on this side, of a connection that broke
                std::error::Error::source(&**status).is_some()
                    || matches!(
                        status.code(),
                        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted
                    )
            }
            Self::Size => false,
        }
    }

    /// Whether the LV is gone. A reason beside the code counts more than the code.
    pub fn absence(&self) -> Absence {
        let Self::Call { status, .. } = self else { return Absence::Unknown };
        match (status.code(), reason_of(status, DOMAIN).as_deref()) {
            (Code::NotFound, Some(LV_NOT_FOUND)) => Absence::Proven,
            (Code::NotFound, None) => Absence::Claimed,
            _ => Absence::Unknown,
        }
    }

    /// What lvmd said, without where it was said.
    pub fn detail(&self) -> String {
        match self {
            Self::Call { status, .. } => status.message().to_owned(),
            Self::Timeout { .. } | Self::NotServing | Self::Size => self.to_string(),
        }
    }
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            // Whatever broke between the two, the caller may try again
            Self::Call { .. } if self.is_transient() => Code::Unavailable,
            Self::Call { status, .. } => status.code(),
            Self::Timeout { .. } => Code::DeadlineExceeded,
            Self::NotServing => Code::Unavailable,
            Self::Size => Code::Internal,
        }
    }
}

impl Lvmd {
    /// A client over lvmd's socket. It connects with the first call and again whenever lvmd was restarted.
    pub fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::try_from(format!("unix:{}", socket.display()))?
            .connect_timeout(Duration::from_secs(5))
            .connect_lazy();
        Ok(Self { remedy: "is lvmd running, and is --lvmd-socket right?", ..Self::over(channel) })
    }

    /// A client over any gRPC service, such as one in this process.
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
            health: HealthClient::new(transport),
            remedy: "is there its volume group, and does LVM work?",
        }
    }

    /// What to look at while it does not answer.
    pub(crate) const fn remedy(&self) -> &'static str {
        self.remedy
    }

    /// Makes an LV, or finds it made; returns its real size in bytes.
    pub async fn create(&self, lv: NewLv<'_>) -> Result<u64, Error> {
        let request = CreateLvRequest {
            name: lv.name.to_owned(),
            tags: lv.tags.to_vec(),
            device_class: lv.device_class.to_owned(),
            lvcreate_option_class: lv.lvcreate_option_class.to_owned(),
            size_bytes: to_wire(lv.size_bytes)?,
        };
        let made = call("CreateLV", CHANGE, self.lv.clone().create_lv(request)).await?;
        made.volume.map_or(Err(Error::Size), |made| from_wire(made.size_bytes))
    }

    /// Makes a copy of an LV, or finds it made; returns its real size in bytes.
    pub async fn copy(&self, lv: NewCopy<'_>) -> Result<u64, Error> {
        let request = CreateLvSnapshotRequest {
            name: lv.name.to_owned(),
            tags: lv.tags.to_vec(),
            device_class: lv.device_class.to_owned(),
            source_volume: lv.source.to_owned(),
            access_type: lv.access.as_str().to_owned(),
            size_bytes: to_wire(lv.size_bytes)?,
        };
        let made = call("CreateLVSnapshot", CHANGE, self.lv.clone().create_lv_snapshot(request)).await?;
        made.snapshot.map_or(Err(Error::Size), |made| from_wire(made.size_bytes))
    }

    /// Removes an LV.
    pub async fn remove(&self, name: &str, device_class: &str) -> Result<(), Error> {
        let request = RemoveLvRequest { name: name.to_owned(), device_class: device_class.to_owned() };
        call("RemoveLV", CHANGE, self.lv.clone().remove_lv(request)).await?;
        Ok(())
    }

    /// Grows an LV to at least this size; returns its real size in bytes, 0 from an lvmd before 0.36.5.
    pub async fn resize(&self, name: &str, device_class: &str, size_bytes: u64) -> Result<u64, Error> {
        let request = ResizeLvRequest {
            name: name.to_owned(),
            device_class: device_class.to_owned(),
            size_bytes: to_wire(size_bytes)?,
        };
        let resized = call("ResizeLV", CHANGE, self.lv.clone().resize_lv(request)).await?;
        from_wire(resized.size_bytes)
    }

    /// Looks for an LV: lvmd knows where it is, also when its device class has its volumes elsewhere by now or is no longer
    /// configured. TopoLVM's lvmd lists what is in the class.
    pub async fn find(&self, name: &str, device_class: &str) -> Result<Option<Lv>, Error> {
        let found = self.volumes(name, device_class).await?.into_iter().find(|lv| lv.name == name);
        found.map(Lv::try_from).transpose()
    }

    /// All LVs of a device class. An error is no empty class.
    pub async fn list(&self, device_class: &str) -> Result<Vec<Lv>, Error> {
        self.volumes("", device_class).await?.into_iter().map(Lv::try_from).collect()
    }

    /// The LVs of a device class; where a name is given, lvmd answers with that one alone, wherever it is.
    async fn volumes(&self, name: &str, device_class: &str) -> Result<Vec<LogicalVolume>, Error> {
        let request = GetLvListRequest { device_class: device_class.to_owned(), name: name.to_owned() };
        Ok(call("GetLVList", QUESTION, self.vg.clone().get_lv_list(request)).await?.volumes)
    }

    /// The free space of all device classes: once at once, and again after each change.
    pub async fn watch(&self) -> Result<Streaming<WatchResponse>, Error> {
        call("Watch", QUESTION, self.vg.clone().watch(Empty {})).await
    }

    /// Asks lvmd whether it is well.
    pub async fn check_health(&self) -> Result<(), Error> {
        let request = HealthCheckRequest::default();
        let answer = call("health check", HEALTH, self.health.clone().check(request)).await?;
        if answer.status() == ServingStatus::Serving { Ok(()) } else { Err(Error::NotServing) }
    }
}

impl TryFrom<LogicalVolume> for Lv {
    type Error = Error;

    fn try_from(lv: LogicalVolume) -> Result<Self, Error> {
        Ok(Self {
            size_bytes: from_wire(lv.size_bytes)?,
            path: lv.path.into(),
            attr: lv.attr.parse().ok(),
            // No device has major number 0. TopoLVM's lvmd sends it, too, for what LVM reports as -1
            number: (lv.dev_major != 0).then_some(DeviceNumber { major: lv.dev_major, minor: lv.dev_minor }),
            name: lv.name,
        })
    }
}

async fn call<T>(
    call: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, answer).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(Error::Call { call, status: Box::new(status) }),
        Err(_) => Err(Error::Timeout { call, limit }),
    }
}

/// The wire has signed sizes.
fn to_wire(bytes: u64) -> Result<i64, Error> {
    i64::try_from(bytes).map_err(|_| Error::Size)
}

fn from_wire(bytes: i64) -> Result<u64, Error> {
    u64::try_from(bytes).map_err(|_| Error::Size)
}

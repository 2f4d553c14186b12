//! Requests of the Node service, checked before anything is looked up or done.
//!
//! The conformance suite sends requests with a made-up volume and one field missing, and wants `InvalidArgument`.

use std::path::{Path, PathBuf};

use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi;
use topolvm_proto::csi::volume_capability::AccessType;
use topolvm_runtime::grpc::GrpcCode;

use super::access::{Access, access};
use crate::filesystem::Unsupported;
use crate::mount::{MkfsOptionError, OptionError};

/// `NodeStageVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StageVolume {
    pub(crate) id: String,
    pub(crate) staging: PathBuf,
    pub(crate) access: Access,
}

/// `NodeUnstageVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnstageVolume {
    pub(crate) id: String,
    pub(crate) staging: PathBuf,
}

/// `NodePublishVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishVolume {
    pub(crate) id: String,
    /// Where it is staged, if the caller has staged it.
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: PathBuf,
    pub(crate) access: Access,
    /// At no second path.
    pub(crate) exclusive: bool,
}

/// `NodeUnpublishVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnpublishVolume {
    pub(crate) id: String,
    pub(crate) target: PathBuf,
}

/// `NodeGetVolumeStats`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GetVolumeStats {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Where the caller says that it is staged.
    pub(crate) staging: Option<PathBuf>,
}

/// `NodeGetVolumeHealth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GetVolumeHealth {
    pub(crate) id: String,
    /// Where the caller says that it is published.
    pub(crate) path: Option<PathBuf>,
    /// Where the caller says that it is staged.
    pub(crate) staging: Option<PathBuf>,
}

/// `NodeExpandVolume`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpandVolume {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Where the caller says that it is staged.
    pub(crate) staging: Option<PathBuf>,
    /// 0 where nothing was said.
    pub(crate) required_bytes: u64,
    /// The caller knows that there is no filesystem. Where it does not say, the path tells.
    pub(crate) is_block: bool,
}

/// Why a request cannot be served, whatever the state of the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A field that must be there is not.
    #[error("{0} is missing in the request")]
    Missing(&'static str),
    /// A path that cannot be.
    #[error("{field} {path:?} must be an absolute path")]
    RelativePath {
        /// Which field.
        field: &'static str,
        /// Its value.
        path: String,
    },
    /// More than one writer, or none.
    #[error("access mode {0} is not supported; use ReadWriteOnce or ReadWriteOncePod")]
    AccessMode(&'static str),
    /// A filesystem that we do not serve.
    #[error(transparent)]
    Filesystem(#[from] Unsupported),
    /// A mount option that cannot be.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// An option for mkfs that cannot be.
    #[error(transparent)]
    MkfsOptions(#[from] MkfsOptionError),
    /// A size below zero, or a limit below the required size.
    #[error("capacity range from {required} to {limit} bytes is impossible")]
    CapacityRange {
        /// `required_bytes`.
        required: i64,
        /// `limit_bytes`.
        limit: i64,
    },
}

impl GrpcCode for RequestError {
    fn code(&self) -> Code {
        match self {
            // CSI: a volume capability that this node cannot provide
            Self::AccessMode(_) => Code::FailedPrecondition,
            Self::Missing(_)
            | Self::RelativePath { .. }
            | Self::Filesystem(_)
            | Self::Options(_)
            | Self::MkfsOptions(_)
            | Self::CapacityRange { .. } => Code::InvalidArgument,
        }
    }
}

impl PublishVolume {
    /// Reads a request; the flavor says how the options for mkfs are called in the volume's context.
    pub(crate) fn read(flavor: ApiFlavor, request: csi::NodePublishVolumeRequest) -> Result<Self, RequestError> {
        let id = present("volume_id", request.volume_id)?;
        let target = absolute("target_path", request.target_path)?;
        let staging = match request.staging_target_path {
            path if path.is_empty() => None,
            path => Some(absolute("staging_target_path", path)?),
        };
        let mkfs_options = request.volume_context.get(flavor.mkfs_options_parameter());
        let (access, exclusive) = access(request.volume_capability, request.readonly, mkfs_options)?;
        Ok(Self { id, staging, target, access, exclusive })
    }
}

impl StageVolume {
    /// Reads a request; the flavor says how the options for mkfs are called in the volume's context.
    pub(crate) fn read(flavor: ApiFlavor, request: csi::NodeStageVolumeRequest) -> Result<Self, RequestError> {
        let id = present("volume_id", request.volume_id)?;
        let staging = absolute("staging_target_path", request.staging_target_path)?;
        let mkfs_options = request.volume_context.get(flavor.mkfs_options_parameter());
        let (access, _) = access(request.volume_capability, false, mkfs_options)?;
        Ok(Self { id, staging, access })
    }
}

impl TryFrom<csi::NodeUnstageVolumeRequest> for UnstageVolume {
    type Error = RequestError;

    fn try_from(request: csi::NodeUnstageVolumeRequest) -> Result<Self, RequestError> {
        Ok(Self {
            id: present("volume_id", request.volume_id)?,
            staging: absolute("staging_target_path", request.staging_target_path)?,
        })
    }
}

impl TryFrom<csi::NodeUnpublishVolumeRequest> for UnpublishVolume {
    type Error = RequestError;

    fn try_from(request: csi::NodeUnpublishVolumeRequest) -> Result<Self, RequestError> {
        Ok(Self { id: present("volume_id", request.volume_id)?, target: absolute("target_path", request.target_path)? })
    }
}

impl TryFrom<csi::NodeGetVolumeStatsRequest> for GetVolumeStats {
    type Error = RequestError;

    fn try_from(request: csi::NodeGetVolumeStatsRequest) -> Result<Self, RequestError> {
        Ok(Self {
            id: present("volume_id", request.volume_id)?,
            path: present("volume_path", request.volume_path)?.into(),
            staging: given(request.staging_target_path),
        })
    }
}

impl TryFrom<csi::NodeGetVolumeHealthRequest> for GetVolumeHealth {
    type Error = RequestError;

    fn try_from(request: csi::NodeGetVolumeHealthRequest) -> Result<Self, RequestError> {
        Ok(Self {
            id: present("volume_id", request.volume_id)?,
            path: given(request.volume_publish_path),
            staging: given(request.staging_target_path),
        })
    }
}

impl TryFrom<csi::NodeExpandVolumeRequest> for ExpandVolume {
    type Error = RequestError;

    fn try_from(request: csi::NodeExpandVolumeRequest) -> Result<Self, RequestError> {
        let id = present("volume_id", request.volume_id)?;
        let path = present("volume_path", request.volume_path)?.into();
        let staging = given(request.staging_target_path);
        let range = request.capacity_range.unwrap_or_default();
        let impossible = RequestError::CapacityRange { required: range.required_bytes, limit: range.limit_bytes };
        let (Ok(required_bytes), Ok(limit)) = (u64::try_from(range.required_bytes), u64::try_from(range.limit_bytes))
        else {
            return Err(impossible);
        };
        if limit != 0 && limit < required_bytes {
            return Err(impossible);
        }
        let access_type = request.volume_capability.and_then(|capability| capability.access_type);
        Ok(Self { id, path, staging, required_bytes, is_block: matches!(access_type, Some(AccessType::Block(_))) })
    }
}

fn present(field: &'static str, value: String) -> Result<String, RequestError> {
    if value.is_empty() { Err(RequestError::Missing(field)) } else { Ok(value) }
}

fn given(path: String) -> Option<PathBuf> {
    Some(path).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The root directory is no place for a volume either.
fn absolute(field: &'static str, value: String) -> Result<PathBuf, RequestError> {
    let value = present(field, value)?;
    let path = Path::new(&value);
    if path.is_absolute() && path.file_name().is_some() {
        Ok(value.into())
    } else {
        Err(RequestError::RelativePath { field, path: value })
    }
}

#[cfg(test)]
mod tests {
    use csi::VolumeCapability;
    use csi::volume_capability::access_mode::Mode;
    use csi::volume_capability::{AccessMode, BlockVolume, MountVolume};
    use rstest::rstest;

    use super::*;
    use crate::Filesystem;
    use crate::mount::{MkfsOptions, MountOptions};

    fn read(request: csi::NodePublishVolumeRequest) -> Result<PublishVolume, RequestError> {
        PublishVolume::read(ApiFlavor::TopoLvm, request)
    }

    fn capability(access_type: Option<AccessType>) -> VolumeCapability {
        VolumeCapability { access_type, access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }) }
    }

    fn publish() -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            volume_id: "v".to_owned(),
            target_path: "/t".to_owned(),
            volume_capability: Some(capability(Some(AccessType::Mount(MountVolume {
                fs_type: String::new(),
                mount_flags: vec!["noatime".to_owned()],
                volume_mount_group: String::new(),
            })))),
            readonly: true,
            ..csi::NodePublishVolumeRequest::default()
        }
    }

    #[test]
    fn an_unset_filesystem_type_is_ext4_and_readonly_comes_first() {
        let expected = PublishVolume {
            id: "v".to_owned(),
            staging: None,
            target: "/t".into(),
            access: Access::Mount {
                filesystem: Filesystem::Ext4,
                options: MountOptions::parse(true, &["noatime"]).unwrap(),
                mkfs_options: Ok(MkfsOptions::default()),
            },
            exclusive: false,
        };
        assert_eq!(read(publish()), Ok(expected));
    }

    #[test]
    fn block_access_is_told_apart_from_a_filesystem() {
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(capability(Some(AccessType::Block(BlockVolume {})))),
            ..publish()
        };
        assert_eq!(read(request).unwrap().access, Access::Block { readonly: true });
    }

    #[rstest]
    #[case(Mode::SingleNodeWriter, false)]
    #[case(Mode::SingleNodeMultiWriter, false)]
    #[case(Mode::SingleNodeSingleWriter, true)]
    fn only_a_volume_for_one_pod_is_exclusive(#[case] mode: Mode, #[case] expected: bool) {
        let mut request = publish();
        request.volume_capability.as_mut().unwrap().access_mode = Some(AccessMode { mode: mode.into() });
        assert_eq!(read(request).unwrap().exclusive, expected);
    }

    #[test]
    fn options_for_mkfs_come_with_the_volume() {
        let mut request = publish();
        request.volume_context.insert("topolvm.io/mkfs-options".to_owned(), "-i 4096".to_owned());
        let Access::Mount { mkfs_options, .. } = read(request).unwrap().access else { panic!("no mount") };
        assert_eq!(mkfs_options.unwrap().as_slice(), ["-i", "4096"]);
    }

    type Publish = csi::NodePublishVolumeRequest;

    #[rstest]
    #[case(|r: &mut Publish| r.volume_id.clear(), Code::InvalidArgument)]
    #[case(|r: &mut Publish| r.target_path.clear(), Code::InvalidArgument)]
    #[case(|r: &mut Publish| r.target_path = "relative".to_owned(), Code::InvalidArgument)]
    #[case(|r: &mut Publish| r.target_path = "/".to_owned(), Code::InvalidArgument)]
    #[case(|r: &mut Publish| r.volume_capability = None, Code::InvalidArgument)]
    #[case(|r: &mut Publish| r.volume_capability = Some(capability(None)), Code::InvalidArgument)]
    #[case(|r: &mut Publish| r.volume_capability.as_mut().unwrap().access_mode = None, Code::FailedPrecondition)]
    #[case(
        |r: &mut Publish| r.volume_capability.as_mut().unwrap().access_mode.as_mut().unwrap().mode = Mode::MultiNodeMultiWriter.into(),
        Code::FailedPrecondition
    )]
    fn wrong_publish_requests_are_refused(#[case] spoil: fn(&mut Publish), #[case] code: Code) {
        let mut request = publish();
        spoil(&mut request);
        assert_eq!(read(request).unwrap_err().code(), code);
    }

    #[rstest]
    #[case("zfs", "noatime")]
    #[case("ext4", "rw")]
    #[case("ext4", "bind")]
    fn filesystems_and_options_that_cannot_be_are_refused(#[case] fs_type: &str, #[case] option: &str) {
        let mount = MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: vec![option.to_owned()],
            volume_mount_group: String::new(),
        };
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(capability(Some(AccessType::Mount(mount)))),
            ..publish()
        };
        assert_eq!(read(request).unwrap_err().code(), Code::InvalidArgument);
    }

    #[rstest]
    #[case(0, 0, Ok(0))]
    #[case(5, 0, Ok(5))]
    #[case(5, 5, Ok(5))]
    #[case(0, 5, Ok(0))]
    #[case(-1, 0, Err(Code::InvalidArgument))]
    #[case(0, -1, Err(Code::InvalidArgument))]
    #[case(6, 5, Err(Code::InvalidArgument))]
    fn capacity_ranges_are_checked(#[case] required: i64, #[case] limit: i64, #[case] expected: Result<u64, Code>) {
        let request = csi::NodeExpandVolumeRequest {
            volume_id: "v".to_owned(),
            volume_path: "some/path".to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: required, limit_bytes: limit }),
            ..csi::NodeExpandVolumeRequest::default()
        };
        let parsed = ExpandVolume::try_from(request);
        assert_eq!(parsed.map(|request| request.required_bytes).map_err(|error| error.code()), expected);
    }
}

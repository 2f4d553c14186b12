//! Parses requests of the Node service, before any lookup or change.
//!
//! The conformance suite sends requests with a made-up volume and one field missing, and expects `InvalidArgument`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use published_pods::PodInfo;
use topolvm_api::ApiFlavor;
use topolvm_proto::csi;
use topolvm_proto::csi::volume_capability::AccessType;

use super::capability::{Access, parse_capability};
use super::error::RequestError;

/// A parsed `NodeStageVolume` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StageVolume {
    pub(crate) id: String,
    pub(crate) staging: PathBuf,
    pub(crate) access: Access,
}

/// A parsed `NodePublishVolume` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishVolume {
    pub(crate) id: String,
    /// Staging path, if the caller has staged the volume.
    pub(crate) staging: Option<PathBuf>,
    pub(crate) target: PathBuf,
    pub(crate) access: Access,
    /// The volume may be published at one target path only.
    pub(crate) exclusive: bool,
    /// The pod, if the caller names it.
    pub(crate) pod: Option<PodInfo>,
}

/// A parsed `NodeGetVolumeStats` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GetVolumeStats {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Staging path, if the caller names one.
    pub(crate) staging: Option<PathBuf>,
}

/// A parsed `NodeGetVolumeHealth` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GetVolumeHealth {
    pub(crate) id: String,
    /// Target path, if the caller names one.
    pub(crate) path: Option<PathBuf>,
    /// Staging path, if the caller names one.
    pub(crate) staging: Option<PathBuf>,
}

/// A parsed `NodeExpandVolume` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpandVolume {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Staging path, if the caller names one.
    pub(crate) staging: Option<PathBuf>,
    /// Requested size in bytes; 0 if none is given.
    pub(crate) required_bytes: u64,
    /// True if the capability is block volume. Without a capability the path decides.
    pub(crate) is_block: bool,
}

impl PublishVolume {
    /// Parses a request. The flavor gives the key of the options for mkfs in the volume context.
    pub(crate) fn parse(flavor: ApiFlavor, request: csi::NodePublishVolumeRequest) -> Result<Self, RequestError> {
        let id = parse_present("volume_id", request.volume_id)?;
        let target = parse_absolute_path("target_path", request.target_path)?;
        let staging = match request.staging_target_path {
            path if path.is_empty() => None,
            path => Some(parse_absolute_path("staging_target_path", path)?),
        };
        let mkfs_options = request.volume_context.get(flavor.mkfs_options_parameter());
        let (access, exclusive) = parse_capability(request.volume_capability, request.readonly, mkfs_options)?;
        let pod = parse_pod(&request.volume_context);
        Ok(Self { id, staging, target, access, exclusive, pod })
    }
}

impl StageVolume {
    /// Parses a request. The flavor gives the key of the options for mkfs in the volume context.
    pub(crate) fn parse(flavor: ApiFlavor, request: csi::NodeStageVolumeRequest) -> Result<Self, RequestError> {
        let id = parse_present("volume_id", request.volume_id)?;
        let staging = parse_absolute_path("staging_target_path", request.staging_target_path)?;
        let mkfs_options = request.volume_context.get(flavor.mkfs_options_parameter());
        let (access, _) = parse_capability(request.volume_capability, false, mkfs_options)?;
        Ok(Self { id, staging, access })
    }
}

/// Parses a `NodeUnstageVolume` request: volume id and staging path.
pub(crate) fn parse_unstage(request: csi::NodeUnstageVolumeRequest) -> Result<(String, PathBuf), RequestError> {
    let id = parse_present("volume_id", request.volume_id)?;
    Ok((id, parse_absolute_path("staging_target_path", request.staging_target_path)?))
}

/// Parses a `NodeUnpublishVolume` request: volume id and target path.
pub(crate) fn parse_unpublish(request: csi::NodeUnpublishVolumeRequest) -> Result<(String, PathBuf), RequestError> {
    let id = parse_present("volume_id", request.volume_id)?;
    Ok((id, parse_absolute_path("target_path", request.target_path)?))
}

impl GetVolumeStats {
    /// Parses a request.
    pub(crate) fn parse(request: csi::NodeGetVolumeStatsRequest) -> Result<Self, RequestError> {
        Ok(Self {
            id: parse_present("volume_id", request.volume_id)?,
            path: parse_present("volume_path", request.volume_path)?.into(),
            staging: parse_optional_path(request.staging_target_path),
        })
    }
}

impl GetVolumeHealth {
    /// Parses a request.
    pub(crate) fn parse(request: csi::NodeGetVolumeHealthRequest) -> Result<Self, RequestError> {
        Ok(Self {
            id: parse_present("volume_id", request.volume_id)?,
            path: parse_optional_path(request.volume_publish_path),
            staging: parse_optional_path(request.staging_target_path),
        })
    }
}

impl ExpandVolume {
    /// Parses a request.
    pub(crate) fn parse(request: csi::NodeExpandVolumeRequest) -> Result<Self, RequestError> {
        let id = parse_present("volume_id", request.volume_id)?;
        let path = parse_present("volume_path", request.volume_path)?.into();
        let staging = parse_optional_path(request.staging_target_path);
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

/// Parses the pod, which the kubelet names if the CSIDriver sets `podInfoOnMount`.
fn parse_pod(context: &HashMap<String, String>) -> Option<PodInfo> {
    let field = |name: &str| context.get(&format!("csi.storage.k8s.io/pod.{name}")).cloned();
    let namespace = field("namespace").unwrap_or_default();
    Some(PodInfo { namespace, name: field("name")?, uid: field("uid")? })
}

fn parse_present(field: &'static str, value: String) -> Result<String, RequestError> {
    if value.is_empty() { Err(RequestError::Missing(field)) } else { Ok(value) }
}

fn parse_optional_path(path: String) -> Option<PathBuf> {
    Some(path).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Parses an absolute path. The root directory is no place for a volume either.
fn parse_absolute_path(field: &'static str, value: String) -> Result<PathBuf, RequestError> {
    let value = parse_present(field, value)?;
    let path = Path::new(&value);
    if path.is_absolute() && path.file_name().is_some() {
        Ok(value.into())
    } else {
        Err(RequestError::RelativePath { field, path: value })
    }
}

#[cfg(test)]
mod tests;

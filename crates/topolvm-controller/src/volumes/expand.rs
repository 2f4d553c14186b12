//! Expands a volume.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use topolvm_api::{CREATED_BY, LogicalVolume, format_bytes, parse_bytes};

use super::objects::api_error;
use super::{VolumeError, VolumeKind, Volumes};
use crate::volume_size::VolumeSize;

impl Volumes {
    /// Expands the volume to at least this size and waits until its node has done so. Returns the real size in bytes; a
    /// volume that is as large already is left alone.
    pub(crate) async fn expand(&self, id: &str, size: VolumeSize, deadline: Instant) -> Result<u64, VolumeError> {
        let bytes = size.bytes;
        loop {
            let volume = self.objects.find_live(VolumeKind::Volume, id).await?;
            if let Some(current) = size_if_at_least(&volume, bytes) {
                if self.withdraw_pending_size(&volume, size, current).await? {
                    return Ok(current);
                }
                continue;
            }
            let request = (self.now)().to_string();
            if let Some(patched) = self.request_size(&volume, size, bytes, &request).await? {
                return self.wait_expanded(&patched, bytes, &request, deadline).await;
            }
            // The object has changed meanwhile: read it again
        }
    }

    /// Withdraws a requested size that the node could not provide, once the user has stepped back to the current size.
    /// Otherwise the volume would grow as soon as there is enough free space, although it is not requested any more.
    /// Returns `false` if the object has changed since it was read.
    async fn withdraw_pending_size(
        &self,
        volume: &LogicalVolume,
        size: VolumeSize,
        current: u64,
    ) -> Result<bool, VolumeError> {
        let asks_for_more = parse_bytes(&volume.spec.size).is_ok_and(|asked| asked > current);
        if volume.failure().is_none() || !asks_for_more {
            return Ok(true);
        }
        let request = (self.now)().to_string();
        self.request_size(volume, size, current, &request).await.map(|patched| patched.is_some())
    }

    /// Writes the bytes to grow to, those that were asked for, and the annotation that makes the agent try again even
    /// if the size is not new. `None` if the object has changed since it was read.
    async fn request_size(
        &self,
        volume: &LogicalVolume,
        asked: VolumeSize,
        bytes: u64,
        request: &str,
    ) -> Result<Option<LogicalVolume>, VolumeError> {
        let name = volume.name();
        // While the real size is not known the agent is about to find out; the requested size must not shrink
        // meanwhile. Otherwise it may: the user has stepped back from a size that did not fit.
        let asked_before = parse_bytes(&volume.spec.size).unwrap_or(0);
        let size = if volume.current_bytes().is_none() { bytes.max(asked_before) } else { bytes };
        let patch = json!({
            "metadata": {
                "resourceVersion": volume.metadata.resource_version,
                "annotations": {
                    self.objects.flavor.resize_requested_at(): request,
                    self.objects.flavor.requested_size(): asked.requested_other_than(size).map(format_bytes),
                },
            },
            "spec": { "size": format_bytes(size) },
        });
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        match self.objects.api().patch(name, &params, &Patch::Merge(&patch)).await {
            Ok(patched) => {
                let node = patched.spec.node_name.as_str();
                tracing::info!(name, node, bytes = size, "requested the expansion of the volume");
                Ok(Some(patched))
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
            Err(error) => Err(api_error("change the size of", name)(error)),
        }
    }

    /// Waits for the agent's answer to exactly this request.
    async fn wait_expanded(
        &self,
        patched: &LogicalVolume,
        bytes: u64,
        request: &str,
        deadline: Instant,
    ) -> Result<u64, VolumeError> {
        let check = |cached: &LogicalVolume| {
            if let Some(current) = size_if_at_least(cached, bytes) {
                return Some(Ok(current));
            }
            // The status that our own write returned is the answer to an earlier request. The agent clears it when it
            // begins again, so that even the same message is a new answer in a later version.
            let is_old = cached.metadata.resource_version == patched.metadata.resource_version;
            // Another request is older than ours, or a later one
            let is_answer = !is_old && cached.annotation(self.objects.flavor.resize_requested_at()) == Some(request);
            if is_answer { node_failure(cached).map(Err) } else { None }
        };
        if let Some(answer) = self.objects.wait_until(patched, deadline, check).await? {
            return answer;
        }
        // A failure that remains at the deadline counts now: TopoLVM's agent does not clear it, and writing the same
        // status again is no change and triggers no event
        let volume = self.objects.reread(patched).await?;
        let error = || node_failure(&volume).unwrap_or_else(|| VolumeError::timeout("expanded", &volume));
        size_if_at_least(&volume, bytes).ok_or_else(error)
    }
}

/// Returns the real size in bytes if it is at least this large.
fn size_if_at_least(volume: &LogicalVolume, bytes: u64) -> Option<u64> {
    volume.current_bytes().filter(|&current| current >= bytes)
}

/// Returns the failure that the node agent wrote.
fn node_failure(volume: &LogicalVolume) -> Option<VolumeError> {
    volume.failure().map(|(code, message)| VolumeError::ExpandFailed {
        node: volume.spec.node_name.clone(),
        code,
        message: message.to_owned(),
    })
}

//! Growing a volume.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use tonic::Code;
use topolvm_api::{CREATED_BY, LogicalVolume, format_bytes, parse_bytes};

use super::{Error, Kind, Volumes, failed};

/// What the node agent answered to a request to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// The real size in bytes.
    Grown(u64),
    Failed {
        code: i32,
        message: String,
    },
    Vanished,
}

impl Volumes {
    /// Grows the volume to at least this many bytes and waits until its node has done so. Returns the real size in bytes;
    /// a volume that is as large already is left alone.
    pub(crate) async fn expand(&self, id: &str, bytes: u64, deadline: Instant) -> Result<u64, Error> {
        loop {
            let volume = self
                .find(Kind::Volume, id)
                .await?
                .filter(|volume| !volume.is_deleting())
                .ok_or_else(|| Error::Unknown { kind: Kind::Volume, id: id.to_owned() })?;
            if let Some(current) = grown(&volume, bytes) {
                if self.withdraw(&volume, current).await? {
                    return Ok(current);
                }
                continue;
            }
            let request = (self.now)().to_string();
            if let Some(patched) = self.request_size(&volume, bytes, &request).await? {
                return self.await_grown(&patched, bytes, &request, deadline).await;
            }
            // Somebody changed the object meanwhile: look at it again
        }
    }

    /// The user has stepped back to what there is from a size that could not be had. Were that size still asked for, the volume
    /// would take it as soon as there is room, which nobody wants any more. Whether that is done; otherwise the object has changed
    /// since it was read.
    async fn withdraw(&self, volume: &LogicalVolume, current: u64) -> Result<bool, Error> {
        let asks_for_more = parse_bytes(&volume.spec.size).is_ok_and(|asked| asked > current);
        if volume.failure().is_none() || !asks_for_more {
            return Ok(true);
        }
        let request = (self.now)().to_string();
        self.request_size(volume, current, &request).await.map(|patched| patched.is_some())
    }

    /// Writes the wanted size, and the annotation that makes the agent try again even if the size is not new. `None` if
    /// the object has changed since it was read.
    async fn request_size(
        &self,
        volume: &LogicalVolume,
        bytes: u64,
        request: &str,
    ) -> Result<Option<LogicalVolume>, Error> {
        let name = volume.name();
        // While the real size is not known the agent is about to find out; the wanted size must not shrink meanwhile.
        // Otherwise it may: the user has stepped back from a size that did not fit.
        let asked_before = parse_bytes(&volume.spec.size).unwrap_or(0);
        let size = if volume.current_bytes().is_none() { bytes.max(asked_before) } else { bytes };
        let patch = json!({
            "metadata": {
                "resourceVersion": volume.metadata.resource_version,
                "annotations": { self.flavor.resize_requested_at(): request },
            },
            "spec": { "size": format_bytes(size) },
        });
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        match self.api().patch(name, &params, &Patch::Merge(&patch)).await {
            Ok(patched) => {
                let node = patched.spec.node_name.as_str();
                tracing::info!(name, node, bytes = size, "asked the node to expand the volume");
                Ok(Some(patched))
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
            Err(error) => Err(failed("change the size of", name)(error)),
        }
    }

    /// Waits for the agent's answer to exactly this request.
    async fn await_grown(
        &self,
        patched: &LogicalVolume,
        bytes: u64,
        request: &str,
        deadline: Instant,
    ) -> Result<u64, Error> {
        let name = patched.metadata.name.clone().unwrap_or_default();
        let uid = patched.uid();
        let key = self.flavor.resize_requested_at();
        let mut seen = false;
        let look = |watched: Option<&LogicalVolume>| {
            let Some(watched) = watched.filter(|watched| watched.uid() == uid) else {
                return seen.then_some(Answer::Vanished);
            };
            seen = true;
            if let Some(current) = grown(watched, bytes) {
                return Some(Answer::Grown(current));
            }
            let annotations = watched.metadata.annotations.as_ref();
            if annotations.and_then(|all| all.get(key)).map(String::as_str) != Some(request) {
                // Older than our request, or about a later one
                return None;
            }
            // What stands in the status that our own write returned is the answer to an earlier request. The agent clears
            // it when it begins again, so that even the same words are a new answer in a later version.
            let is_old = watched.metadata.resource_version == patched.metadata.resource_version;
            failure(watched).filter(|_| !is_old)
        };
        let answer = match self.wait(&name, deadline, look).await? {
            Some(answer) => answer,
            None => self.last_answer(&name, uid, bytes).await?,
        };
        match answer {
            Answer::Grown(current) => Ok(current),
            Answer::Vanished => Err(Error::Vanished(name)),
            Answer::Failed { code, message } => {
                Err(Error::NotExpanded { node: patched.spec.node_name.clone(), code: Code::from_i32(code), message })
            }
        }
    }

    /// What the API server says at the deadline. A failure that still stands counts now: TopoLVM's agent does not clear it,
    /// and writing the same status again is no change and wakes nobody.
    async fn last_answer(&self, name: &str, uid: &str, bytes: u64) -> Result<Answer, Error> {
        let Some(volume) = self.get(name).await?.filter(|volume| volume.uid() == uid) else {
            return Ok(Answer::Vanished);
        };
        if let Some(current) = grown(&volume, bytes) {
            return Ok(Answer::Grown(current));
        }
        failure(&volume).ok_or_else(|| Error::Late {
            what: "expanded",
            name: name.to_owned(),
            node: volume.spec.node_name,
        })
    }
}

fn grown(volume: &LogicalVolume, bytes: u64) -> Option<u64> {
    volume.current_bytes().filter(|&current| current >= bytes)
}

fn failure(volume: &LogicalVolume) -> Option<Answer> {
    volume.failure().map(|(code, message)| Answer::Failed { code, message: message.to_owned() })
}

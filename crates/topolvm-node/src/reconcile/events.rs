//! Events of LogicalVolumes, as `kubectl describe` shows them.

use std::time::Duration;

use kube::Resource as _;
use kube::runtime::events::{Event, EventType};
use topolvm_api::{ApiFlavor, LogicalVolume, Readiness};
use topolvm_kube::EventRecorder;
use topolvm_runtime::error_chain;

use super::FIELD_MANAGER;

/// No volume waits longer for an event.
const LIMIT: Duration = Duration::from_secs(5);

/// Tells users what the status says in a code.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    flavor: ApiFlavor,
    recorder: EventRecorder,
}

impl Events {
    pub(crate) fn new(flavor: ApiFlavor, node: &str, client: kube::Client) -> Self {
        Self { flavor, recorder: EventRecorder::new(client, FIELD_MANAGER, node.to_owned()) }
    }

    /// The volume could not be made or grown.
    pub(super) async fn failed(&self, volume: &LogicalVolume, message: &str) {
        let (reason, action) = if volume.volume_id().is_none() {
            (Readiness::CreateFailed, "Create")
        } else {
            (Readiness::ExpandFailed, "Expand")
        };
        self.warn(volume, reason.as_str(), action, message).await;
    }

    /// LVM has the volume no more.
    pub(super) async fn lost(&self, volume: &LogicalVolume, message: &str) {
        self.warn(volume, Readiness::VolumeLost.as_str(), "Compare", message).await;
    }

    /// The object has to stay.
    pub(super) async fn stays(&self, volume: &LogicalVolume, message: &str) {
        self.warn(volume, "RemoveFailed", "Remove", message).await;
    }

    /// The filesystem that was made on the volume cannot be seen any more.
    pub(crate) async fn filesystem_missing(&self, volume: &LogicalVolume, message: &str) {
        self.warn(volume, "FilesystemMissing", "Publish", message).await;
    }

    /// Nobody depends on an event, so a failure stays here.
    async fn warn(&self, volume: &LogicalVolume, reason: &str, action: &str, message: &str) {
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(message.to_owned()),
            action: action.to_owned(),
            secondary: None,
        };
        let regarding = volume.object_ref(&self.flavor);
        let published = self.recorder.publish(event, &regarding);
        let error = match tokio::time::timeout(LIMIT, published).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error_chain(&error),
            Err(_) => "the Kubernetes API server did not answer in time".to_owned(),
        };
        tracing::debug!(volume = volume.name(), reason, error, "cannot publish an event");
    }
}

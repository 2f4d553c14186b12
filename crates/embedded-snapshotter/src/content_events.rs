//! Events about VolumeSnapshotContents.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use topolvm_api::SnapshotContent;
use topolvm_kube::EventPublisher;

/// Publishes Events about VolumeSnapshotContents.
#[derive(Clone)]
pub(crate) struct ContentEvents(pub(crate) EventPublisher);

impl ContentEvents {
    /// Publishes an Event of type Warning.
    pub(crate) async fn publish_warning(&self, content: &SnapshotContent, reason: &str, action: &str, note: String) {
        // Its version would make each Event another one
        let about = ObjectReference { resource_version: None, ..content.object_ref(&()) };
        self.0.publish_warning(&about, reason, action, note).await;
    }
}

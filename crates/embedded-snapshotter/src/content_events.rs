//! Events about contents.

use k8s_openapi::api::core::v1::ObjectReference;
use topolvm_kube::EventPublisher;

use crate::content::Content;

/// Publishes Events about contents.
#[derive(Clone)]
pub(crate) struct ContentEvents(pub(crate) EventPublisher);

impl ContentEvents {
    /// Publishes an Event of type Warning.
    pub(crate) async fn publish_warning<C: Content>(&self, content: &C, reason: &str, action: &str, note: String) {
        // Its version would make each Event another one
        let about = ObjectReference { resource_version: None, ..content.object_ref(&()) };
        self.0.publish_warning(&about, reason, action, note).await;
    }
}

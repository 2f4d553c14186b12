//! Publishes Kubernetes Events about claims, volumes and pods.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use topolvm_kube::EventRecorder;
use topolvm_runtime::error_chain;

/// Name of the component in Events, as TopoLVM's label on LogicalVolumes has it.
const COMPONENT: &str = "topolvm-controller";

/// Publishes Events. Clones share the counts of repeated ones.
#[derive(Clone)]
pub(crate) struct EventPublisher {
    recorder: EventRecorder,
}

impl EventPublisher {
    pub(crate) fn new(client: Client, instance: String) -> Self {
        Self { recorder: EventRecorder::new(client, COMPONENT, instance) }
    }

    /// Publishes an Event of type Normal.
    pub(super) async fn publish_normal(&self, about: &ObjectReference, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, about, reason, action, note).await;
    }

    /// Publishes an Event of type Warning.
    pub(super) async fn publish_warning(&self, about: &ObjectReference, reason: &str, action: &str, note: String) {
        self.publish(EventType::Warning, about, reason, action, note).await;
    }

    /// Publishes an Event. A failure is not returned, so that it holds up nothing; the recorder warns of the first.
    async fn publish(&self, type_: EventType, about: &ObjectReference, reason: &str, action: &str, note: String) {
        let event =
            Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(event, about).await {
            tracing::debug!(reason, object = about.name, error = error_chain(&error), "cannot write an Event");
        }
    }
}

//! Publishes Kubernetes Events, and holds up nothing when that fails.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use topolvm_runtime::error_chain;

use crate::events::EventRecorder;

/// Publishes Events. Clones share the counts of repeated ones.
#[derive(Clone, Debug)]
pub struct EventPublisher {
    recorder: EventRecorder,
}

impl EventPublisher {
    /// Makes a publisher of this component, and of the one of its processes that is `instance`.
    pub fn new(client: Client, component: &str, instance: String) -> Self {
        Self { recorder: EventRecorder::new(client, component, instance) }
    }

    /// Publishes an Event of type Normal.
    pub async fn publish_normal(&self, about: &ObjectReference, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, about, reason, action, note).await;
    }

    /// Publishes an Event of type Warning.
    pub async fn publish_warning(&self, about: &ObjectReference, reason: &str, action: &str, note: String) {
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

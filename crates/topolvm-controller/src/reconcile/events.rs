//! Kubernetes Events: what a user must know about a claim or volume, where the user looks.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use topolvm_kube::EventRecorder;
use topolvm_runtime::error_chain;

/// Name of the component in Events, as TopoLVM's label on LogicalVolumes has it.
const COMPONENT: &str = "topolvm-controller";

/// Writes Events. Clones share what they remember.
#[derive(Clone)]
pub(super) struct Events {
    recorder: EventRecorder,
}

impl Events {
    pub(super) fn new(client: Client, instance: String) -> Self {
        Self { recorder: EventRecorder::new(client, COMPONENT, instance) }
    }

    /// Something happened as it should.
    pub(super) async fn normal(&self, about: &ObjectReference, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, about, reason, action, note).await;
    }

    /// Somebody should look at it.
    pub(super) async fn warning(&self, about: &ObjectReference, reason: &str, action: &str, note: String) {
        self.publish(EventType::Warning, about, reason, action, note).await;
    }

    /// An Event that cannot be written holds up nothing. The recorder warns of the first.
    async fn publish(&self, type_: EventType, about: &ObjectReference, reason: &str, action: &str, note: String) {
        let event =
            Event { type_, reason: reason.to_owned(), note: Some(note), action: action.to_owned(), secondary: None };
        if let Err(error) = self.recorder.publish(event, about).await {
            tracing::debug!(reason, object = about.name, error = error_chain(&error), "cannot write an Event");
        }
    }
}

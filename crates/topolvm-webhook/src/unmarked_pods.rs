//! Publishes Events for the owners of pods that did not get the resource `topolvm.io/capacity`, with the reason.
//!
//! A call of the webhook only hands the pod over; one task writes the Events, for each owner one in ten minutes at
//! most. The rest is dropped: the webhook must not wait, and an owner with a thousand pods needs one Event.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use tokio::sync::mpsc;
use tokio::time::Instant;
use topolvm_api::ApiFlavor;
use topolvm_kube::EventRecorder;
use topolvm_runtime::{CancellationToken, error_chain};

use crate::objects::Owner;

/// Name of the component in Events.
const COMPONENT: &str = "topolvm-controller";
/// Pods that wait for their Event; further ones are dropped.
const QUEUE: usize = 64;
/// Time between two Events about the same object.
const INTERVAL: Duration = Duration::from_mins(10);
/// Objects that are remembered; while there are so many, no others get an Event.
const MAX_OBJECTS: usize = 1000;

/// The queue of pods that did not get the resource. Clones share it.
#[derive(Clone)]
pub(crate) struct UnmarkedPods(mpsc::Sender<Report>);

/// An object and the reason why its pod did not get the resource.
struct Report {
    about: ObjectReference,
    reason: String,
}

impl UnmarkedPods {
    /// Returns the queue, and the task that writes the Events until `shutdown` is cancelled.
    pub(crate) fn new(
        client: Client,
        flavor: ApiFlavor,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = anyhow::Result<()>> + Send) {
        let (sender, mut queue) = mpsc::channel(QUEUE);
        let mut events = RateLimitedEvents {
            recorder: EventRecorder::new(client, COMPONENT, "webhook".to_owned()),
            flavor,
            published: HashMap::new(),
        };
        let writing = async move {
            let all = async {
                while let Some(report) = queue.recv().await {
                    events.publish(report).await;
                }
            };
            shutdown.run_until_cancelled(all).await;
            Ok(())
        };
        (Self(sender), writing)
    }

    /// Has an Event written on the owner of a pod, or on its namespace if it has none.
    pub(crate) fn report(&self, namespace: &str, owner: Option<&Owner>, reason: String) {
        let about = match owner {
            Some(Owner { api_version, kind, name, uid, .. }) => ObjectReference {
                api_version: Some(api_version.clone()),
                kind: Some(kind.clone()),
                name: Some(name.clone()),
                namespace: Some(namespace.to_owned()),
                uid: Some(uid.clone()),
                ..ObjectReference::default()
            },
            // In the namespace itself, where users look for the Events of their pods
            None => ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Namespace".to_owned()),
                name: Some(namespace.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectReference::default()
            },
        };
        // Full, or at the end of the process
        drop(self.0.try_send(Report { about, reason }));
    }
}

/// Writes Events, not too many.
struct RateLimitedEvents {
    recorder: EventRecorder,
    flavor: ApiFlavor,
    /// The time of the last Event by namespace, kind and name.
    published: HashMap<[Option<String>; 3], Instant>,
}

impl RateLimitedEvents {
    async fn publish(&mut self, Report { about, reason }: Report) {
        let now = Instant::now();
        self.published.retain(|_, last| now.duration_since(*last) < INTERVAL);
        let key = [about.namespace.clone(), about.kind.clone(), about.name.clone()];
        if self.published.contains_key(&key) || self.published.len() >= MAX_OBJECTS {
            return;
        }
        self.published.insert(key, now);
        let resource = self.flavor.capacity_resource();
        let note = format!(
            "new pods do not get the resource {resource}, and are scheduled without regard to free space: {reason}. \
             Configure kube-scheduler with the file of scheduler-config/ for topolvm-scheduler, or set the scheduling \
             mode to capacity (docs/scheduling.md)"
        );
        let event = Event {
            type_: EventType::Warning,
            reason: "ExtenderNotProven".to_owned(),
            note: Some(note),
            action: "Schedule".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(event, &about).await {
            tracing::debug!(object = about.name, error = error_chain(&error), "cannot write an Event");
        }
    }
}

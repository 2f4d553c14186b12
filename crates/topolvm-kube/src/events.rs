//! A recorder of Kubernetes Events that shows users each text and counts what repeats.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource as _};
use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_runtime::error_chain;

use crate::api_server;

/// Time after its last use for which kube's recorder counts an Event instead of writing a new one.
const REMEMBERED: Duration = Duration::from_mins(6);
/// Deadline of an Event of the agent. No volume waits longer for one.
const DEADLINE: Duration = Duration::from_secs(5);
/// The longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Writes Events: repetitions of an Event are counted, and an Event with another note is a separate Event. Clones share
/// what they remember.
///
/// Events that differ only in the note are the same to kube's recorder, which shows the first note as long as they
/// come. So each note has its own recorder.
///
/// The first Event that cannot be written is a warning in the log, and the next one only after one could be written.
#[derive(Clone)]
pub struct EventRecorder {
    client: Client,
    reporter: Reporter,
    by_note: Arc<Mutex<HashMap<String, Recent>>>,
    /// True when the last Event could not be written.
    is_failing: Arc<AtomicBool>,
}

/// The recorder of a note, and when it was last used.
struct Recent {
    recorder: Recorder,
    used: Instant,
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRecorder").field("reporter", &self.reporter).finish_non_exhaustive()
    }
}

impl EventRecorder {
    /// Makes a recorder of this component (`controller`) and of the one of its processes that is `instance`.
    pub fn new(client: Client, controller: &str, instance: String) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance) };
        Self { client, reporter, by_note: Arc::default(), is_failing: Arc::default() }
    }

    /// Writes or counts an Event. A note that is too long for the API server is cut.
    pub async fn publish(&self, mut event: Event, regarding: &ObjectReference) -> Result<(), kube::Error> {
        let mut note = event.note.take().unwrap_or_default();
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        event.note = Some(note.clone());
        let written = match self.recorder_of(&note).publish(&event, regarding).await {
            // The Event to count has expired, or was deleted
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.by_note.lock().remove(&note);
                self.recorder_of(&note).publish(&event, regarding).await
            }
            written => written,
        };
        let was_failing = self.is_failing.swap(written.is_err(), Ordering::Relaxed);
        if let (Err(error), false) = (&written, was_failing) {
            tracing::warn!(
                object = regarding.name,
                reason = event.reason,
                error = error_chain(error),
                "cannot write Events, which show users what failed; if this is forbidden, allow create and patch of \
                 events (events.k8s.io) in the ClusterRole"
            );
        }
        written
    }

    /// Publishes a warning until a deadline. A failure is only logged, because nothing depends on an Event.
    pub async fn publish_warning(&self, regarding: &ObjectReference, reason: &str, action: &str, note: &str) {
        self.publish_of(EventType::Warning, regarding, reason, action, note).await;
    }

    /// Publishes until a deadline that something is as it should be. A failure is only logged.
    pub async fn publish_normal(&self, regarding: &ObjectReference, reason: &str, action: &str, note: &str) {
        self.publish_of(EventType::Normal, regarding, reason, action, note).await;
    }

    async fn publish_of(&self, type_: EventType, regarding: &ObjectReference, reason: &str, action: &str, note: &str) {
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note.to_owned()),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = api_server::call(DEADLINE, self.publish(event, regarding)).await {
            tracing::debug!(object = regarding.name, reason, error = error_chain(&error), "cannot publish an Event");
        }
    }

    fn recorder_of(&self, note: &str) -> Recorder {
        let used = Instant::now();
        let mut by_note = self.by_note.lock();
        by_note.retain(|_, recent| used.duration_since(recent.used) < REMEMBERED);
        let new = || Recent { recorder: Recorder::new(self.client.clone(), self.reporter.clone()), used };
        let recent = by_note.entry(note.to_owned()).or_insert_with(new);
        recent.used = used;
        recent.recorder.clone()
    }
}

/// Returns the reference to a Node for Events about it.
pub fn node_reference(node: &PartialObjectMeta<Node>) -> ObjectReference {
    ObjectReference {
        api_version: Some(Node::api_version(&()).into_owned()),
        kind: Some(Node::kind(&()).into_owned()),
        name: node.metadata.name.clone(),
        uid: node.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_testkit::{ApiServer, Log};

    use super::*;

    const EVENTS: &str = "events.events.k8s.io";

    fn recorder(server: &ApiServer) -> EventRecorder {
        EventRecorder::new(server.client(), "tester", "me".to_owned())
    }

    async fn publish(recorder: &EventRecorder, object: &str, note: &str) {
        try_to_publish(recorder, object, note).await.unwrap();
    }

    async fn try_to_publish(recorder: &EventRecorder, object: &str, note: &str) -> Result<(), kube::Error> {
        let event = Event {
            type_: EventType::Warning,
            reason: "Failed".to_owned(),
            note: Some(note.to_owned()),
            action: "Try".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference { name: Some(object.to_owned()), ..ObjectReference::default() };
        recorder.publish(event, &regarding).await
    }

    /// Object, note and count of each Event, sorted.
    fn shown(server: &ApiServer) -> Vec<(String, String, u64)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = server.list_json(EVENTS);
        let of = |event: &Value| {
            let count = event["series"]["count"].as_u64().unwrap_or(1);
            (text(&event["regarding"]["name"]), text(&event["note"]), count)
        };
        let mut shown: Vec<_> = events.iter().map(of).collect();
        shown.sort();
        shown
    }

    #[tokio::test]
    async fn each_text_is_shown_and_the_same_text_again_is_counted() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        for note in ["full", "full", "disk is gone", "full"] {
            publish(&recorder, "a", note).await;
        }
        publish(&recorder, "b", "full").await;
        let expected = [("a", "disk is gone", 1), ("a", "full", 3), ("b", "full", 1)];
        assert_eq!(shown(&server), expected.map(|(object, note, count)| (object.to_owned(), note.to_owned(), count)));
        assert_eq!(server.list_json(EVENTS)[0]["reportingController"], json!("tester"));
    }

    #[tokio::test]
    async fn event_note_is_truncated_to_1024_bytes_at_a_character() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        // Three bytes each, of which 341 are 1023
        publish(&recorder, "a", &"€".repeat(400)).await;
        publish(&recorder, "b", &"e".repeat(1024)).await;
        let notes: Vec<_> = shown(&server).into_iter().map(|(_, note, _)| note).collect();
        assert_eq!(notes, ["€".repeat(341), "e".repeat(1024)]);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_are_not_reported_any_more_are_forgotten() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        publish(&recorder, "a", "full").await;
        tokio::time::advance(REMEMBERED).await;
        publish(&recorder, "a", "disk is gone").await;
        let by_note = recorder.by_note.lock();
        assert_eq!(by_note.keys().collect::<Vec<_>>(), ["disk is gone"]);
    }

    #[tokio::test]
    async fn deleted_event_is_recreated_instead_of_counted() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        publish(&recorder, "a", "full").await;
        let name = server.list_json(EVENTS)[0]["metadata"]["name"].as_str().unwrap().to_owned();
        server.delete(EVENTS, "default", &name);
        publish(&recorder, "a", "full").await;
        publish(&recorder, "a", "full").await;
        assert_eq!(shown(&server), [("a".to_owned(), "full".to_owned(), 2)]);
    }

    #[tokio::test]
    async fn event_refusal_warns_once_until_an_event_is_written() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        for _ in 0..2 {
            server.fail_next("create", EVENTS, 2, 403);
            try_to_publish(&recorder, "a", "full").await.unwrap_err();
            try_to_publish(&recorder.clone(), "b", "full").await.unwrap_err();
            publish(&recorder, "c", "full").await;
            // So that the next one is created and not counted
            publish(&recorder, "d", "no disk").await;
        }
        let lines = log.take();
        let warnings: Vec<_> = lines.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 2, "{lines}");
        assert!(
            warnings.iter().all(|line| line.contains("object=\"a\"") && line.contains("reason=\"Failed\"")),
            "{lines}"
        );
    }
}

//! Kubernetes Events of which users see each text.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, Recorder, Reporter};
use tokio::time::Instant;

/// For how long kube's recorder takes an Event for the same as the last one.
const REMEMBERED: Duration = Duration::from_mins(6);
/// What the API server takes of a note, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Writes Events: the same again is counted and not repeated, and with another note it is another Event. Clones share what they remember.
///
/// Events that differ in nothing but the note are the same to kube's recorder, which shows the first note for as long as they come. So each
/// note has a recorder of its own.
#[derive(Clone)]
pub struct EventRecorder {
    client: Client,
    reporter: Reporter,
    by_note: Arc<Mutex<HashMap<String, Recent>>>,
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
    /// A recorder of this component (`controller`) and of the one of its processes that is `instance`.
    pub fn new(client: Client, controller: &str, instance: String) -> Self {
        let reporter = Reporter { controller: controller.to_owned(), instance: Some(instance) };
        Self { client, reporter, by_note: Arc::default() }
    }

    /// Writes or counts an Event. A note that is too long for the API server is cut.
    pub async fn publish(&self, mut event: Event, regarding: &ObjectReference) -> Result<(), kube::Error> {
        let mut note = event.note.take().unwrap_or_default();
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let recorder = self.recorder_of(&note);
        event.note = Some(note);
        recorder.publish(&event, regarding).await
    }

    fn recorder_of(&self, note: &str) -> Recorder {
        let used = Instant::now();
        let mut by_note = self.by_note.lock().unwrap_or_else(PoisonError::into_inner);
        by_note.retain(|_, recent| used.duration_since(recent.used) < REMEMBERED);
        let new = || Recent { recorder: Recorder::new(self.client.clone(), self.reporter.clone()), used };
        let recent = by_note.entry(note.to_owned()).or_insert_with(new);
        recent.used = used;
        recent.recorder.clone()
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::events::EventType;
    use serde_json::{Value, json};
    use topolvm_testkit::ApiServer;

    use super::*;

    const EVENTS: &str = "events.events.k8s.io";

    fn recorder(server: &ApiServer) -> EventRecorder {
        EventRecorder::new(server.client(), "tester", "me".to_owned())
    }

    async fn publish(recorder: &EventRecorder, object: &str, note: &str) {
        let event = Event {
            type_: EventType::Warning,
            reason: "Failed".to_owned(),
            note: Some(note.to_owned()),
            action: "Try".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference { name: Some(object.to_owned()), ..ObjectReference::default() };
        recorder.publish(event, &regarding).await.unwrap();
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
    async fn a_note_is_as_long_as_the_api_server_takes_and_ends_with_a_whole_character() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        // Three bytes each, of which 341 are 1023
        publish(&recorder, "a", &"€".repeat(400)).await;
        publish(&recorder, "b", &"e".repeat(1024)).await;
        let notes: Vec<_> = shown(&server).into_iter().map(|(_, note, _)| note).collect();
        assert_eq!(notes, ["€".repeat(341), "e".repeat(1024)]);
    }

    #[tokio::test(start_paused = true)]
    async fn texts_that_nobody_reports_any_more_are_forgotten() {
        let server = ApiServer::new();
        let recorder = recorder(&server);
        publish(&recorder, "a", "full").await;
        tokio::time::advance(REMEMBERED).await;
        publish(&recorder, "a", "disk is gone").await;
        let by_note = recorder.by_note.lock().unwrap();
        assert_eq!(by_note.keys().collect::<Vec<_>>(), ["disk is gone"]);
    }
}

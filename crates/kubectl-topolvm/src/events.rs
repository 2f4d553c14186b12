//! `events`: Events about our objects, the newest last.

use std::collections::BTreeSet;

use cli_runtime::connection::Cluster;
use cli_runtime::objects::Objects;
use cli_runtime::output::{self, Format, Row};
use cli_runtime::request;
use cli_runtime::table::table;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use serde::Serialize;
use topolvm_api::{ApiFlavor, claim_names};

use crate::error::Error;

/// Namespace of Events about objects without a namespace.
const CLUSTER_EVENTS: &str = "default";

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventRow {
    time: Timestamp,
    #[serde(rename = "type")]
    type_: String,
    reason: String,
    /// `kind/name`.
    object: String,
    /// Of the object; empty where it has none.
    namespace: String,
    message: String,
    /// Number of occurrences.
    count: i32,
    /// Controller that reported it.
    reporter: String,
    #[serde(skip)]
    event: String,
}

impl Row for EventRow {
    fn name(&self) -> Option<String> {
        Some(format!("event.events.k8s.io/{}", self.event))
    }
}

/// Claims of ours and the pods that use them, by namespace and name.
#[derive(Debug, Default)]
struct OurObjects {
    claims: BTreeSet<(String, String)>,
    pods: BTreeSet<(String, String)>,
}

/// Prints the Events of one namespace and of objects without one, or all.
pub(crate) async fn run(
    cluster: &Cluster,
    format: Format,
    namespace: Option<&str>,
    now: Timestamp,
) -> Result<(), Error> {
    let objects = Objects::list(cluster, namespace).await?;
    let pods = request::list_within::<Pod>(&cluster.client, namespace).await?;
    let mut events = request::list_within::<Event>(&cluster.client, namespace).await?;
    if namespace.is_some_and(|namespace| namespace != CLUSTER_EVENTS) {
        let of_cluster = request::list_within::<Event>(&cluster.client, Some(CLUSTER_EVENTS)).await?;
        events.extend(of_cluster.into_iter().filter(|event| {
            event.regarding.as_ref().is_some_and(|about| about.namespace.as_deref().unwrap_or_default().is_empty())
        }));
    }
    let rows = rows(cluster.flavor, &objects, &pods, &events);
    Ok(output::print(&output::render(format, &rows, |wide| in_table(&rows, wide, now))?)?)
}

/// Returns Events about LogicalVolumes, claims of ours and their pods; of Nodes those that our programs and sidecars
/// have written.
pub(crate) fn rows(flavor: ApiFlavor, objects: &Objects, pods: &[Pod], events: &[Event]) -> Vec<EventRow> {
    let ours = OurObjects::find(flavor, objects, pods);
    let mut rows: Vec<_> = events.iter().filter(|event| ours.contain(flavor, event)).filter_map(row).collect();
    rows.sort_by(|a, b| (a.time, &a.object, &a.reason).cmp(&(b.time, &b.object, &b.reason)));
    rows
}

impl OurObjects {
    fn find(flavor: ApiFlavor, objects: &Objects, pods: &[Pod]) -> Self {
        let key = |namespace: Option<String>, name: String| (namespace.unwrap_or_default(), name);
        let claims = objects.our_claims(flavor).into_iter();
        let claims: BTreeSet<_> = claims.map(|claim| key(claim.namespace(), claim.name_any())).collect();
        let uses = |pod: &&Pod| claim_names(pod).into_iter().any(|name| claims.contains(&key(pod.namespace(), name)));
        let pods = pods.iter().filter(uses).map(|pod| key(pod.namespace(), pod.name_any())).collect();
        Self { claims, pods }
    }

    fn contain(&self, flavor: ApiFlavor, event: &Event) -> bool {
        let Some(about) = &event.regarding else { return false };
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let key = (text(&about.namespace), text(&about.name));
        match about.kind.as_deref().unwrap_or_default() {
            "LogicalVolume" => {
                about.api_version.as_deref().and_then(|version| version.split('/').next()) == Some(flavor.group())
            }
            "PersistentVolumeClaim" => self.claims.contains(&key),
            "Pod" => self.pods.contains(&key),
            // For deleted objects only the reporter of the Event shows whose they were
            _ => is_by_us(flavor, &reporter(event)),
        }
    }
}

/// Returns true for our programs, known by their names, and for the sidecars, known by the name of the driver.
fn is_by_us(flavor: ApiFlavor, reporter: &str) -> bool {
    reporter.starts_with("topolvm-") || reporter.contains(flavor.driver_name())
}

fn reporter(event: &Event) -> String {
    let new = event.reporting_controller.clone().filter(|name| !name.is_empty());
    new.or_else(|| event.deprecated_source.as_ref()?.component.clone()).unwrap_or_default()
}

fn row(event: &Event) -> Option<EventRow> {
    let about = event.regarding.as_ref()?;
    let series = event.series.as_ref();
    let time = series
        .map(|series| series.last_observed_time.0)
        .or_else(|| event.deprecated_last_timestamp.as_ref().map(|time| time.0))
        .or_else(|| event.event_time.as_ref().map(|time| time.0))
        .or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))?;
    let kind = about.kind.as_deref().unwrap_or_default().to_lowercase();
    Some(EventRow {
        time,
        type_: event.type_.clone().unwrap_or_default(),
        reason: event.reason.clone().unwrap_or_default(),
        object: format!("{kind}/{}", about.name.as_deref().unwrap_or_default()),
        namespace: about.namespace.clone().unwrap_or_default(),
        message: event.note.clone().unwrap_or_default(),
        count: series.map(|series| series.count).or(event.deprecated_count).unwrap_or(1),
        reporter: reporter(event),
        event: event.name_any(),
    })
}

fn in_table(rows: &[EventRow], wide: bool, now: Timestamp) -> String {
    table(
        rows,
        wide,
        &[
            ("AGE", false, &|row| age(row.time, now)),
            ("NAMESPACE", false, &|row| row.namespace.clone()),
            ("TYPE", false, &|row| row.type_.clone()),
            ("REASON", false, &|row| row.reason.clone()),
            ("OBJECT", false, &|row| row.object.clone()),
            ("COUNT", true, &|row| row.count.to_string()),
            ("REPORTER", true, &|row| row.reporter.clone()),
            ("TIME", true, &|row| row.time.to_string()),
            // A message may have lines
            ("MESSAGE", false, &|row| row.message.split_whitespace().collect::<Vec<_>>().join(" ")),
        ],
    )
}

/// Formats an age like kubectl: in the largest unit of which there are two or more.
fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_api::ApiFlavor::TopoLvm;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

    fn event(minute: u8, kind: &str, name: &str, more: &Value) -> Event {
        let mut event = json!({
            "metadata": {"name": format!("{name}.{minute}"), "namespace": "default"}, "type": "Warning", "reason": "R",
            "note": "two\nlines", "reportingController": "kubelet",
            "eventTime": format!("2026-01-01T00:{minute:02}:00.000000Z"),
            "regarding": {"apiVersion": "v1", "kind": kind, "name": name, "namespace": "default"},
        });
        for (key, value) in more.as_object().unwrap() {
            event[key] = value.clone();
        }
        serde_json::from_value(event).unwrap()
    }

    fn shown(events: &[Event]) -> Vec<EventRow> {
        let objects = Objects {
            claims: vec![
                serde_json::from_value(json!({
                    "metadata": {"name": "web-data", "namespace": "default"}, "spec": {"storageClassName": "fast"},
                }))
                .unwrap(),
                serde_json::from_value(json!({
                    "metadata": {"name": "foreign", "namespace": "default"}, "spec": {"storageClassName": "nfs"},
                }))
                .unwrap(),
            ],
            classes: vec![
                serde_json::from_value(json!({"metadata": {"name": "fast"}, "provisioner": "topolvm.io"})).unwrap(),
            ],
            ..Objects::default()
        };
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [], "volumes": [{"name": "data", "ephemeral": {}}]},
        }))
        .unwrap();
        rows(TopoLvm, &objects, &[pod], events)
    }

    #[test]
    fn events_about_our_objects_come_in_the_order_of_time() {
        let group = json!({"regarding": {"apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "name": "v"}});
        let other = json!({"regarding": {"apiVersion": "other.io/v1", "kind": "LogicalVolume", "name": "v"}});
        let series = json!({"series": {"count": 7, "lastObservedTime": "2026-01-01T00:50:00.000000Z"}});
        let events = [
            event(9, "Pod", "web", &json!({})),
            event(1, "PersistentVolumeClaim", "web-data", &series),
            event(3, "PersistentVolumeClaim", "foreign", &json!({})),
            event(4, "Pod", "foreign", &json!({})),
            event(5, "LogicalVolume", "v", &group),
            event(6, "LogicalVolume", "v", &other),
            event(7, "Node", "n1", &json!({})),
            event(8, "Node", "n1", &json!({"reportingController": "topolvm-node"})),
        ];
        let rows = shown(&events);
        let objects: Vec<_> = rows.iter().map(|row| (row.object.as_str(), row.count)).collect();
        let expected = [("logicalvolume/v", 1), ("node/n1", 1), ("pod/web", 1), ("persistentvolumeclaim/web-data", 7)];
        assert_eq!(objects, expected);
        let table = in_table(&rows, false, NOW);
        let last = table.lines().last().unwrap();
        assert_eq!(last, "10m   default     Warning   R        persistentvolumeclaim/web-data   two lines");
    }

    #[test]
    fn ages_are_short() {
        let ages = [59, 150, 7300, 200_000].map(|seconds| age(NOW - jiff::SignedDuration::from_secs(seconds), NOW));
        assert_eq!(ages, ["59s", "2m", "2h", "2d"]);
    }
}

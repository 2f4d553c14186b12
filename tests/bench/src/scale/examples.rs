//! The objects of one node and one volume as the programs have written them, and copies of them for etcd.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use kube::Client;
use serde_json::Value;
use testbed::sidecars::NAMESPACE;

/// Name of the node in a cluster with one volume.
pub(super) const NODE: &str = "example-node";
/// Name of the claim there.
pub(super) const CLAIM: &str = "example-claim";

/// Time until all objects have been written.
const LIMIT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// A JSON text with places for the names and UIDs of a copy.
struct Template {
    /// Text before each place, and the number of the marker there.
    places: Vec<(String, usize)>,
    end: String,
}

/// An object with its key in etcd.
struct Example {
    key: Template,
    json: Template,
}

/// The objects of one node and one volume.
pub(super) struct Examples {
    of_node: Vec<Example>,
    of_volume: Vec<Example>,
    /// Number of UIDs among the markers.
    uids: usize,
}

impl Examples {
    /// Reads the objects when the claim is Bound, and waits for the others.
    pub(super) async fn read(client: &Client) -> Result<Self> {
        let claim = get(client, &format!("/api/v1/namespaces/default/persistentvolumeclaims/{CLAIM}")).await?;
        let volume = claim.pointer("/spec/volumeName").and_then(Value::as_str).context("no volume")?.to_owned();
        let capacities = format!("/apis/storage.k8s.io/v1/namespaces/{NAMESPACE}/csistoragecapacities");
        let capacity = first(client, &capacities).await?;
        let capacity_name = capacity.pointer("/metadata/name").and_then(Value::as_str).context("no name")?.to_owned();
        let of_node = [
            (format!("minions/{NODE}"), get(client, &format!("/api/v1/nodes/{NODE}")).await?),
            (format!("csinodes/{NODE}"), get(client, &format!("/apis/storage.k8s.io/v1/csinodes/{NODE}")).await?),
            (format!("topolvm.io/nodestorages/{NODE}"), first(client, "/apis/topolvm.io/v1/nodestorages").await?),
            (format!("csistoragecapacities/{NAMESPACE}/{capacity_name}"), capacity),
        ];
        let logical = get(client, &format!("/apis/topolvm.io/v1/logicalvolumes/{volume}")).await?;
        let persistent = get(client, &format!("/api/v1/persistentvolumes/{volume}")).await?;
        let of_volume = [
            (format!("persistentvolumeclaims/default/{CLAIM}"), claim),
            (format!("topolvm.io/logicalvolumes/{volume}"), logical),
            (format!("persistentvolumes/{volume}"), persistent),
        ];
        let mut markers = vec![NODE.to_owned(), CLAIM.to_owned(), capacity_name];
        let names = markers.len();
        for (key, object) in of_node.iter().chain(&of_volume) {
            let uid = object.pointer("/metadata/uid").and_then(Value::as_str);
            markers.push(uid.with_context(|| format!("no UID of {key}"))?.to_owned());
        }
        let examples = |objects: &[(String, Value)]| {
            let example = |(key, object): &(String, Value)| Example::new(key, object, &markers);
            objects.iter().map(example).collect()
        };
        let uids = markers.len() - names;
        Ok(Self { of_node: examples(&of_node), of_volume: examples(&of_volume), uids })
    }

    /// Returns the name of a copied node.
    pub(super) fn node_name(node: usize) -> String {
        format!("node-{node:05}")
    }

    /// Returns the name of a copied claim.
    pub(super) fn claim_name(volume: usize) -> String {
        format!("claim-{volume:06}")
    }

    /// Returns the name of the CSIStorageCapacity of a copied node.
    pub(super) fn capacity_name(node: usize) -> String {
        format!("csisc-{node:05}")
    }

    /// Returns keys and contents of the objects of a copied node.
    pub(super) fn node(&self, node: usize) -> Vec<(String, String)> {
        copy(&self.of_node, &self.values(node, 0, node))
    }

    /// Returns keys and contents of the objects of a copied volume.
    pub(super) fn volume(&self, volume: usize, node: usize) -> Vec<(String, String)> {
        copy(&self.of_volume, &self.values(node, volume, volume))
    }

    /// Returns the values that replace the markers.
    fn values(&self, node: usize, volume: usize, number: usize) -> Vec<String> {
        let names = [Self::node_name(node), Self::claim_name(volume), Self::capacity_name(node)];
        let uid = |kind| format!("{kind:08x}-0000-4000-8000-{number:012x}");
        names.into_iter().chain((0..self.uids).map(uid)).collect()
    }
}

fn copy(examples: &[Example], values: &[String]) -> Vec<(String, String)> {
    examples.iter().map(|example| (example.key.fill(values), example.json.fill(values))).collect()
}

impl Example {
    fn new(key: &str, object: &Value, markers: &[String]) -> Self {
        let mut object = object.clone();
        if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        let template = |text: &str| Template::new(text, markers);
        Self { key: template(&format!("/registry/{key}")), json: template(&object.to_string()) }
    }
}

impl Template {
    fn new(text: &str, markers: &[String]) -> Self {
        let (mut places, mut rest) = (Vec::new(), text);
        let first = |rest: &str| {
            let found = markers.iter().enumerate();
            found.filter_map(|(number, marker)| Some((rest.find(marker.as_str())?, number))).min()
        };
        while let Some((_, number)) = first(rest) {
            let Some((before, after)) = markers.get(number).and_then(|marker| rest.split_once(marker.as_str())) else {
                break;
            };
            places.push((before.to_owned(), number));
            rest = after;
        }
        Self { places, end: rest.to_owned() }
    }

    /// Returns the text with the values of the markers.
    fn fill(&self, values: &[String]) -> String {
        let mut filled = String::with_capacity(self.places.iter().map(|(text, _)| text.len() + 40).sum::<usize>());
        for (text, number) in &self.places {
            filled.push_str(text);
            filled.push_str(values.get(*number).map_or("", String::as_str));
        }
        filled.push_str(&self.end);
        filled
    }
}

/// Reads an object.
async fn get(client: &Client, path: &str) -> Result<Value> {
    client.request(Request::get(path).body(Vec::new())?).await.with_context(|| format!("read {path}"))
}

/// Reads the first object of a list, when there is one.
async fn first(client: &Client, path: &str) -> Result<Value> {
    let start = Instant::now();
    loop {
        let list = get(client, path).await?;
        if let Some(name) = list.pointer("/items/0/metadata/name").and_then(Value::as_str) {
            // The objects of a list lack their kind
            return get(client, &format!("{path}/{name}")).await;
        }
        ensure!(start.elapsed() < LIMIT, "no object in {path} after {LIMIT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_filled_with_the_values_of_its_markers() {
        let markers = ["example-node".to_owned(), "1-2".to_owned()];
        let template = Template::new("a example-node b pvc-1-2 c", &markers);
        assert_eq!(template.fill(&["n".to_owned(), "u".to_owned()]), "a n b pvc-u c");
        assert_eq!(Template::new("none", &markers).fill(&[]), "none");
    }
}

//! The JSON of the extender protocol (`k8s.io/kube-scheduler/extender/v1`).
//!
//! Nodes are kept as the text that kube-scheduler sent: it takes them back as they are, with all fields of its version,
//! and a big cluster's nodes are never copied.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use topolvm_api::ApiFlavor;

/// Bytes of free or requested space as an annotation has them, by the annotation's name without the prefix.
pub(crate) type Annotations = BTreeMap<String, String>;

/// `ExtenderArgs`. The Go type has no JSON names, so that kube-scheduler sends `Pod`; other senders write `pod`.
#[derive(Deserialize)]
struct Arguments<'a> {
    #[serde(alias = "Pod")]
    pod: Option<Object>,
    #[serde(borrow, alias = "Nodes")]
    nodes: Option<NodeList<'a>>,
    #[serde(alias = "NodeNames", alias = "nodeNames")]
    nodenames: Option<IgnoredAny>,
}

/// A pod or a node.
#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
struct Metadata {
    name: Option<String>,
    annotations: Option<Annotations>,
}

/// `NodeList`, item by item.
#[derive(Deserialize)]
struct NodeList<'a> {
    #[serde(borrow, rename = "apiVersion")]
    api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

/// A request about a pod and some nodes.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Requested bytes by device class.
    pub(crate) requested: BTreeMap<String, u64>,
    pub(crate) nodes: Vec<Node<'a>>,
    /// The text before the first node and after the last.
    list: [String; 2],
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) name: String,
    pub(crate) capacity: Annotations,
    text: &'a str,
}

/// Error of a request that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the body is not the JSON of an extender request")]
    Json(#[from] serde_json::Error),
    #[error("the request has no pod or no nodes")]
    Incomplete,
    /// kube-scheduler sends names where it takes the extender to have a cache of nodes of its own.
    #[error(
        "kube-scheduler sent the names of nodes only, but the free space is in their annotations; \
         set nodeCacheCapable: false for this extender in the KubeSchedulerConfiguration"
    )]
    NamesOnly,
}

impl<'a> Request<'a> {
    /// Reads a request body.
    pub(crate) fn parse(flavor: ApiFlavor, body: &'a [u8]) -> Result<Self, Error> {
        let Arguments { pod, nodes, nodenames } = serde_json::from_slice(body)?;
        let pod = pod.ok_or(Error::Incomplete)?;
        let list = match (nodes, nodenames) {
            (Some(nodes), _) => nodes,
            (None, Some(_)) => return Err(Error::NamesOnly),
            (None, None) => return Err(Error::Incomplete),
        };
        let requested = with_prefix(flavor, pod.metadata.annotations)
            .into_iter()
            // What is no number is not ours
            .filter_map(|(class, bytes)| Some((class, bytes.parse().ok()?)))
            .collect();
        let frame = list.frame();
        let nodes = list.items.into_iter().flatten().map(|text| Node::parse(flavor, text));
        Ok(Self { requested, nodes: nodes.collect::<Result<_, _>>()?, list: frame })
    }
}

impl NodeList<'_> {
    fn frame(&self) -> [String; 2] {
        let fields = [("apiVersion", self.api_version), ("kind", self.kind), ("metadata", self.metadata)];
        let head = fields.iter().fold(String::new(), |head, (name, value)| match value {
            Some(value) => format!("{head}\"{name}\":{value},"),
            None => head,
        });
        [format!("{{{head}\"items\":["), "]}".to_owned()]
    }
}

impl<'a> Node<'a> {
    fn parse(flavor: ApiFlavor, text: &'a RawValue) -> Result<Self, serde_json::Error> {
        let Object { metadata } = serde_json::from_str(text.get())?;
        Ok(Self {
            name: metadata.name.unwrap_or_default(),
            capacity: with_prefix(flavor, metadata.annotations),
            text: text.get(),
        })
    }
}

fn with_prefix(flavor: ApiFlavor, annotations: Option<Annotations>) -> Annotations {
    let ours = |(key, value): (String, String)| Some((key.strip_prefix(flavor.capacity_prefix())?.to_owned(), value));
    annotations.into_iter().flatten().filter_map(ours).collect()
}

/// The parts of an `ExtenderFilterResult`; nodes are slices of the request's body.
pub(crate) fn filter_result(
    body: &Bytes,
    request: &Request<'_>,
    kept: &[&Node<'_>],
    failed: &BTreeMap<String, String>,
) -> Result<Vec<Bytes>, serde_json::Error> {
    let [before, after] = &request.list;
    let mut parts = vec![Bytes::from(format!("{{\"nodes\":{before}"))];
    for (position, node) in kept.iter().enumerate() {
        if position > 0 {
            parts.push(Bytes::from_static(b","));
        }
        parts.push(body.slice_ref(node.text.as_bytes()));
    }
    let mut end = after.clone();
    if !failed.is_empty() {
        end = format!("{end},\"failedNodes\":{}", serde_json::to_string(failed)?);
    }
    parts.push(Bytes::from(end + "}"));
    Ok(parts)
}

/// An `ExtenderFilterResult` that makes kube-scheduler show a reason in the pod's events.
#[derive(Serialize)]
pub(crate) struct Failure {
    pub(crate) error: String,
}

/// One element of a `HostPriorityList`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostPriority {
    pub(crate) host: String,
    pub(crate) score: u8,
}

//! The JSON of the extender protocol (`k8s.io/kube-scheduler/extender/v1`).
//!
//! Nodes are kept as the text that kube-scheduler sent: it takes them back as they are, with all fields of its version,
//! and a big cluster's nodes are never copied.

mod annotations;
mod arguments;
mod pod;
mod preemption;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use topolvm_api::ApiFlavor;

use crate::binding_pods::PodIdentity;
use crate::capacity::{Capacity, Requested};

use annotations::CapacityAnnotations;
use arguments::{Arguments, NodeList, NodeObject};
pub(crate) use preemption::{PreemptionCandidate, PreemptionRequest, PreemptionResult};

/// Size up to which an answer is copied into one piece. Below it many small pieces would take longer to send.
const COPIED_BYTES: usize = 1 << 20;

/// Metadata of a node.
#[derive(Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Option<Name<'a>>,
    #[serde(borrow)]
    annotations: Option<CapacityAnnotations<'a>>,
}

/// A request about a pod and some nodes.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) pod: PodIdentity,
    pub(crate) requested: Requested,
    pub(crate) candidates: Candidates,
}

/// The nodes in question.
#[derive(Debug)]
pub(crate) enum Candidates {
    /// Whole Node objects, as kube-scheduler sends them with `nodeCacheCapable: false`.
    Nodes(Nodes),
    /// Names of Nodes, as with `nodeCacheCapable: true`.
    Names(Vec<String>),
}

/// A list of Node objects.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) items: Vec<Node>,
    /// The text before the first node.
    head: String,
}

/// A Node object.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) capacity: Capacity,
    /// Its place in the body.
    text: Range<usize>,
}

/// Name of a Node.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Error of a request that cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the body is not a JSON extender request")]
    Json(#[from] serde_json::Error),
    #[error("the request has no pod or no nodes")]
    Incomplete,
    /// kube-scheduler sends only names if its configuration marks the extender as one with a node cache.
    #[error(
        "kube-scheduler sent only node names, but the free space is in node annotations; set nodeCacheCapable: false \
         for this extender in the KubeSchedulerConfiguration, or node-cache: true in the configuration of \
         topolvm-scheduler"
    )]
    NamesOnly,
    /// The cache of Nodes is empty yet. kube-scheduler tries again.
    #[error(
        "topolvm-scheduler has not listed the Nodes yet; check that the API server is reachable, and allow list and \
         watch of Nodes"
    )]
    NotListed,
    /// The objects that reserve are not known yet. kube-scheduler tries again.
    #[error(
        "topolvm-scheduler has not listed claims, LogicalVolumes and StorageClasses yet; check that the API server is \
         reachable, and allow list and watch of them"
    )]
    ReservationsNotListed,
}

impl Request {
    /// Parses the body of a request.
    pub(crate) fn parse(flavor: ApiFlavor, body: &[u8]) -> Result<Self, Error> {
        let Arguments { pod, nodes, names } = serde_json::from_slice(body)?;
        let pod = pod.ok_or(Error::Incomplete)?;
        let candidates = match (nodes, names) {
            (Some(list), _) => Candidates::Nodes(Nodes::parse(flavor, body, list)?),
            (None, Some(names)) => Candidates::Names(names.into_iter().map(|name| name.0.into_owned()).collect()),
            (None, None) => return Err(Error::Incomplete),
        };
        Ok(Self { pod: pod.identity(), requested: pod.requested(flavor), candidates })
    }

    /// Returns the names of all nodes of the request.
    pub(crate) fn node_names(&self) -> impl Iterator<Item = &str> {
        let (nodes, names): (&[Node], &[String]) = match &self.candidates {
            Candidates::Nodes(nodes) => (&nodes.items, &[]),
            Candidates::Names(names) => (&[], names),
        };
        nodes.iter().map(|node| node.name.as_str()).chain(names.iter().map(String::as_str))
    }
}

impl Name<'_> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Nodes {
    fn parse(flavor: ApiFlavor, body: &[u8], list: NodeList<'_>) -> Result<Self, Error> {
        let NodeList { api_version, kind, metadata, items } = list;
        let fields = [("apiVersion", api_version), ("kind", kind), ("metadata", metadata)];
        let head = fields.into_iter().fold(String::from("{"), |head, (name, value)| match value {
            Some(value) => format!("{head}\"{name}\":{value},"),
            None => head,
        });
        let items = items.unwrap_or_default().into_iter().map(|node| Node::parse(flavor, body, &node));
        Ok(Self { items: items.collect::<Result<_, _>>()?, head: head + "\"items\":[" })
    }
}

impl Node {
    fn parse(flavor: ApiFlavor, body: &[u8], node: &NodeObject<'_>) -> Result<Self, Error> {
        let metadata: Option<Metadata<'_>> =
            node.metadata.map(|metadata| serde_json::from_str(metadata.get())).transpose()?;
        let Metadata { name, annotations } = metadata.unwrap_or_default();
        Ok(Self {
            name: name.map(|name| name.0.into_owned()).unwrap_or_default(),
            capacity: annotations.unwrap_or_default().of(flavor).collect(),
            text: node.place_in(body).ok_or(Error::Incomplete)?,
        })
    }
}

/// Reasons for which nodes are filtered out, by name.
pub(crate) type FailedNodes<'a> = BTreeMap<&'a str, String>;

/// The fields of an `ExtenderFilterResult` about the nodes that are filtered out.
///
/// No eviction helps there. Claims outlive their pods. Those of generic ephemeral volumes do not, but kube-scheduler
/// selects victims with its own plugins, which the node passes with all its pods: it would find none and report an
/// error. `failedNodes` is for kube-schedulers before 1.21 and for other readers; the second field takes precedence.
#[derive(Serialize)]
struct FailedFields<'a> {
    #[serde(rename = "failedNodes")]
    failed: &'a FailedNodes<'a>,
    #[serde(rename = "failedAndUnresolvableNodes")]
    unresolvable: &'a FailedNodes<'a>,
}

impl<'a> FailedFields<'a> {
    /// Returns the fields; none if no node is filtered out.
    fn of(failed: &'a FailedNodes<'a>) -> Option<Self> {
        (!failed.is_empty()).then_some(Self { failed, unresolvable: failed })
    }
}

/// The parts of an `ExtenderFilterResult` with Node objects, which are slices of the request's body.
pub(crate) fn nodes_result(
    body: &Bytes,
    nodes: &Nodes,
    kept: &[&Node],
    failed: &FailedNodes<'_>,
) -> Result<Vec<Bytes>, serde_json::Error> {
    let mut parts = vec![Bytes::from(format!("{{\"nodes\":{}", nodes.head))];
    for (position, place) in join_neighbours(body, kept).into_iter().enumerate() {
        if position > 0 {
            parts.push(Bytes::from_static(b","));
        }
        parts.push(body.slice(place));
    }
    let end = match FailedFields::of(failed) {
        // They follow in the object that has begun
        Some(fields) => serde_json::to_string(&fields)?.replacen('{', "]},", 1),
        None => "]}}".to_owned(),
    };
    parts.push(Bytes::from(end));
    Ok(copy_if_short(parts))
}

/// Returns the places of the nodes in the body, as one where nothing but a comma is between two.
fn join_neighbours(body: &[u8], nodes: &[&Node]) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> = Vec::new();
    for node in nodes {
        match places.last_mut() {
            Some(last) if body.get(last.end..node.text.start) == Some(b",") => last.end = node.text.end,
            _ => places.push(node.text.clone()),
        }
    }
    places
}

fn copy_if_short(parts: Vec<Bytes>) -> Vec<Bytes> {
    let length = parts.iter().map(Bytes::len).sum();
    if length > COPIED_BYTES {
        return parts;
    }
    let mut copy = BytesMut::with_capacity(length);
    for part in &parts {
        copy.extend_from_slice(part);
    }
    vec![copy.freeze()]
}

/// An `ExtenderFilterResult` with names. kube-scheduler takes a result without `nodenames` for one with Node objects.
#[derive(Serialize)]
pub(crate) struct NamesResult<'a> {
    nodenames: Vec<&'a str>,
    #[serde(flatten)]
    failed: Option<FailedFields<'a>>,
}

impl<'a> NamesResult<'a> {
    pub(crate) fn new(nodenames: Vec<&'a str>, failed: &'a FailedNodes<'a>) -> Self {
        Self { nodenames, failed: FailedFields::of(failed) }
    }
}

/// An `ExtenderFilterResult` that makes kube-scheduler show a reason in the pod's events.
#[derive(Serialize)]
pub(crate) struct Failure {
    pub(crate) error: String,
}

/// One element of a `HostPriorityList`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostPriority<'a> {
    pub(crate) host: &'a str,
    pub(crate) score: u8,
}

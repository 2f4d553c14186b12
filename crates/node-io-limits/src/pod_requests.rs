//! Limits that the pods of this node ask for in their annotations, kept by a watch of the pods' metadata.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use published_pods::PodInfo;
use tokio::sync::mpsc;
use topolvm_api::{ApiFlavor, IoLimitError, IoLimits};
use topolvm_kube::{Cache, CacheWriter, api_server, list_selected, watch_selected};
use topolvm_runtime::{CancellationToken, error_chain};

type PodMeta = PartialObjectMeta<Pod>;

/// Deadline for the annotations of a pod that the watch has not shown yet. The pod waits meanwhile.
const QUESTION: Duration = Duration::from_secs(5);

/// Limits that a pod asks for.
pub(crate) type PodRequest = Result<IoLimits, IoLimitError>;

/// Watches the pods of a node.
#[derive(Debug)]
pub struct PodWatch {
    flavor: ApiFlavor,
    api: Api<PodMeta>,
    node: String,
    cache: CacheWriter<PodMeta>,
}

impl PodWatch {
    /// Makes the watch of the pods of `node`.
    pub fn new(flavor: ApiFlavor, client: Client, node: String) -> Self {
        Self { flavor, api: Api::all(client), node, cache: CacheWriter::default() }
    }

    /// Returns what the pods ask for.
    pub fn requests(&self) -> PodRequests {
        let watched = Watched { flavor: self.flavor, api: self.api.clone(), cache: self.cache.as_reader() };
        PodRequests(Some(watched))
    }

    /// Keeps the requested limits, and sends the UID of each pod to `changed` after its change: all after the first
    /// list. Ends with `shutdown`.
    pub async fn follow(
        mut self,
        changed: mpsc::UnboundedSender<String>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        topolvm_kube::wait_until_reachable(&self.api.clone().into_client(), &shutdown).await;
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        watch_selected("pods", self.api.clone(), of_node, shutdown, move |mut event| {
            if let Event::Apply(pod) | Event::InitApply(pod) = &mut event {
                prune(self.flavor, pod);
            }
            self.cache.apply(&event);
            let pods = match event {
                Event::Apply(pod) => pod.metadata.uid.into_iter().collect(),
                Event::InitDone => self.cache.as_reader().state().iter().filter_map(|pod| uid(pod)).collect(),
                Event::Delete(_) | Event::Init | Event::InitApply(_) => Vec::new(),
            };
            for pod in pods {
                // The receiver is dropped only at shutdown
                drop(changed.send(pod));
            }
        })
        .await
    }
}

/// Reads what pods ask for. Clones share it.
#[derive(Clone, Debug)]
pub struct PodRequests(Option<Watched>);

impl PodRequests {
    /// Makes the requests of pods whose annotations are not read: none asks for limits.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Returns whether all pods were listed once, as far as they are read at all.
    pub(crate) fn is_listed(&self) -> bool {
        self.0.as_ref().is_none_or(|watched| watched.cache.is_listed())
    }

    /// Returns what a pod asks for, as the watch has shown it.
    pub(crate) fn get(&self, uid: &str) -> Option<PodRequest> {
        self.0.as_ref().map_or_else(|| Some(Ok(IoLimits::default())), |watched| watched.get(uid))
    }

    /// Returns the limits that a pod requests, also of one that the watch has not shown yet. `None` if the API server
    /// does not answer in time.
    pub(crate) async fn ask(&self, pod: &PodInfo) -> Option<PodRequest> {
        match &self.0 {
            Some(watched) => watched.ask(pod).await,
            None => Some(Ok(IoLimits::default())),
        }
    }
}

/// The pods of a node that are watched.
#[derive(Clone, Debug)]
struct Watched {
    flavor: ApiFlavor,
    api: Api<PodMeta>,
    cache: Cache<PodMeta>,
}

impl Watched {
    fn get(&self, uid: &str) -> Option<PodRequest> {
        let pod = self.cache.find(|pod| pod.metadata.uid.as_deref() == Some(uid))?;
        Some(self.parse(&pod))
    }

    async fn ask(&self, pod: &PodInfo) -> Option<PodRequest> {
        if let Some(request) = self.get(&pod.uid) {
            return Some(request);
        }
        if pod.namespace.is_empty() {
            return None;
        }
        let api: Api<PodMeta> = Api::namespaced(self.api.clone().into_client(), &pod.namespace);
        let name = format!("metadata.name={}", pod.name);
        let is_it = |found: &PodMeta| found.metadata.uid.as_deref() == Some(&pod.uid);
        let found = api_server::call(QUESTION, list_selected(&api, &name, is_it)).await.inspect_err(|error| {
            tracing::warn!(
                pod = pod.name,
                error = error_chain(error),
                "cannot read the annotations of the pod; the I/O limits that it requests are set later"
            );
        });
        found.ok()?.first().map(|found| self.parse(found))
    }

    fn parse(&self, pod: &PodMeta) -> PodRequest {
        pod.metadata
            .annotations
            .as_ref()
            .map_or_else(|| Ok(IoLimits::default()), |annotations| IoLimits::parse_pod(self.flavor, annotations))
    }
}

fn uid(pod: &PodMeta) -> Option<String> {
    pod.metadata.uid.clone()
}

/// Drops the fields that this agent does not read, which is nearly all of it.
fn prune(flavor: ApiFlavor, pod: &mut PodMeta) {
    let metadata = std::mem::take(&mut pod.metadata);
    pod.types = None;
    pod.metadata.name = metadata.name;
    pod.metadata.namespace = metadata.namespace;
    pod.metadata.uid = metadata.uid;
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.retain(|name, _| IoLimits::is_pod_annotation(flavor, name));
    pod.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
}

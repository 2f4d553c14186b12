//! Test harness: the page, and the writers of what it reads.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::Event;
use serde_json::Value;
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_capacity::{Capacity, MinimumAllocation, NodeMeta};
use topolvm_doctor::Checked;
use topolvm_kube::{CacheWriter, LogicalVolumeWriter};
use topolvm_runtime::CancellationToken;
use topolvm_testkit::ApiServer;
use tower::ServiceExt as _;

use crate::{Cluster, WebPage};

pub(super) struct Harness {
    pub(super) server: ApiServer,
    pub(super) page: WebPage,
    pub(super) checked: watch::Sender<Option<Arc<Checked>>>,
    pub(super) shutdown: CancellationToken,
    volumes: LogicalVolumeWriter,
    changed: watch::Sender<()>,
    nodes: CacheWriter<NodeMeta>,
    capacity: Capacity,
}

impl Harness {
    /// Makes a page of these nodes and volumes.
    pub(super) fn new(nodes: Vec<Node>, volumes: Vec<LogicalVolume>) -> Self {
        let minimums = MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 };
        let (server, shutdown, checked) = (ApiServer::new(), CancellationToken::new(), watch::Sender::default());
        let (volume_writer, node_writer) = (LogicalVolumeWriter::of_cluster(), CacheWriter::default());
        let (changed, volumes_changed) = watch::channel(());
        let cluster = Cluster {
            flavor: ApiFlavor::TopoLvm,
            volumes: volume_writer.as_reader(),
            volumes_changed,
            nodes: node_writer.as_reader(),
            capacity: Capacity::new(ApiFlavor::TopoLvm, minimums, now),
            checked: checked.subscribe(),
            client: server.client(),
            namespace: "topolvm-system".to_owned(),
            now,
        };
        let (capacity, page) = (cluster.capacity.clone(), WebPage::new(cluster, shutdown.clone()));
        let mut harness =
            Self { server, page, checked, shutdown, volumes: volume_writer, changed, nodes: node_writer, capacity };
        harness.list(nodes, volumes);
        harness
    }

    fn list(&mut self, nodes: Vec<Node>, volumes: Vec<LogicalVolume>) {
        let nodes = nodes.into_iter().map(node_meta).map(Event::InitApply);
        for event in std::iter::once(Event::Init).chain(nodes).chain([Event::InitDone]) {
            self.capacity.apply_node(&event);
            self.nodes.apply(&event);
        }
        let volumes = volumes.into_iter().map(Event::InitApply);
        for event in std::iter::once(Event::Init).chain(volumes).chain([Event::InitDone]) {
            self.apply_event(event);
        }
    }

    /// Applies a volume as the watch of volumes does.
    pub(super) fn apply(&mut self, volume: LogicalVolume) {
        self.apply_event(Event::Apply(volume));
    }

    fn apply_event(&mut self, event: Event<LogicalVolume>) {
        self.capacity.apply_volume(&event);
        self.volumes.apply(event);
        self.changed.send_replace(());
    }

    /// Sends a request as a browser does that shows the page.
    pub(super) async fn send(&self, path: &str) -> Response<Body> {
        self.send_with(path, &[("host", "localhost:8082"), ("sec-fetch-site", "same-origin")]).await
    }

    pub(super) async fn send_with(&self, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.page.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    /// Returns the JSON of an answer.
    pub(super) async fn get(&self, path: &str) -> Value {
        let answer = self.send(path).await;
        assert_eq!(
            (answer.status(), &answer.headers()["content-type"]),
            (StatusCode::OK, &"application/json".parse().unwrap())
        );
        serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
    }
}

/// Returns the text of an answer.
pub(super) async fn text(answer: Response<Body>) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

fn node_meta(node: Node) -> NodeMeta {
    serde_json::from_value(serde_json::to_value(node).unwrap()).unwrap()
}

/// The time in all tests.
pub(super) fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}

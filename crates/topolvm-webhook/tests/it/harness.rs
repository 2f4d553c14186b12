//! The webhooks over a fake API server, and questions to ask them.

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use k8s_openapi::ByteString;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::Value;
use topolvm_api::ApiFlavor;
use topolvm_capacity::MinimumAllocation;
use topolvm_kube::ExtenderInformer;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{creation_review, storage_class};
use topolvm_webhook::{CapacityResource, Certificates, WebhookConfig, WebhookContext, Webhooks};
use tower::ServiceExt as _;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// The webhooks of one controller. They have listed all StorageClasses.
pub(crate) struct Harness {
    pub(crate) api: ApiServer,
    pub(crate) webhooks: Webhooks,
    registry: Registry,
}

impl Harness {
    /// With the classes `topolvm`, `ssd` and `hdd` (of device classes of these names), and `foreign` (of another
    /// driver).
    pub(crate) async fn new(capacity_resource: CapacityResource) -> Self {
        let api = ApiServer::new();
        api.apply_json(storage_class("topolvm").build());
        api.apply_json(storage_class("ssd").device_class("ssd").build());
        api.apply_json(storage_class("hdd").device_class("hdd").build());
        api.apply_json(storage_class("foreign").provisioner("ebs.example").build());
        Self::on(api, capacity_resource, ApiFlavor::TopoLvm, true).await
    }

    /// On this server.
    pub(crate) async fn on(
        api: ApiServer,
        capacity_resource: CapacityResource,
        flavor: ApiFlavor,
        pvc_finalizer: bool,
    ) -> Self {
        Self::start(api, capacity_resource, flavor, pvc_finalizer, false).await
    }

    /// With the class `topolvm`, where the extender has to be proven before pods get the resource.
    pub(crate) async fn with_probe() -> Self {
        let api = ApiServer::new();
        api.apply_json(storage_class("topolvm").build());
        Self::start(api, CapacityResource::Marker, ApiFlavor::TopoLvm, false, true).await
    }

    async fn start(
        api: ApiServer,
        capacity_resource: CapacityResource,
        flavor: ApiFlavor,
        pvc_finalizer: bool,
        has_probe: bool,
    ) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let minimums = MinimumAllocation { block: 8 * MIB, ext4: 32 * MIB, xfs: 300 * MIB, btrfs: 200 * MIB };
        let mut registry = Registry::default();
        let extender = has_probe
            .then(|| ExtenderInformer::start(&api.client(), "topolvm-system", &mut registry, &tasks, &shutdown));
        let now = || jiff::Timestamp::UNIX_EPOCH;
        let context = WebhookContext { client: api.client(), flavor, minimums, extender: extender.clone(), now };
        let config = WebhookConfig {
            address: ":0".parse().unwrap(),
            client_authorities: None,
            certificates: Certificates::Files("/nowhere".into()),
            capacity_resource,
            pvc_finalizer,
        };
        let webhooks = Webhooks::start(context, &config, &mut registry, &tasks, &shutdown).unwrap();
        let harness = Self { api, webhooks, registry };
        while harness.webhooks.ready() != Err("waiting for the certificate of the webhooks".to_owned())
            || harness.api.count("watch", "storageclasses") == 0
            || extender.as_ref().is_some_and(|extender| !extender.is_listed())
        {
            tokio::task::yield_now().await;
        }
        harness.api.clear_requests();
        harness
    }

    /// The lines of the metrics page about calls.
    pub(crate) fn calls(&self) -> Vec<String> {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        let mut calls: Vec<_> = page.lines().filter(|line| line.starts_with("topolvm_webhook_calls_total{")).collect();
        calls.sort_unstable();
        calls.into_iter().map(str::to_owned).collect()
    }

    /// Status and body of the answer to a POST.
    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::post(path).header("content-type", "application/json").body(body.into()).unwrap();
        let response = self.webhooks.router().oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.into()).unwrap())
    }

    /// The response to a review.
    pub(crate) async fn ask(&self, path: &str, review: &Value) -> Value {
        let (status, body) = self.post(path, review.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["apiVersion"], review["apiVersion"]);
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        answer["response"].clone()
    }

    /// The patch for a new pod; null when it is taken as it is.
    pub(crate) async fn pod(&self, pod: impl Serialize) -> Value {
        patch(&self.ask("/pod/mutate", &creation_review("pods", pod)).await)
    }

    /// The patch for a new claim.
    pub(crate) async fn claim(&self, claim: impl Serialize) -> Value {
        patch(&self.ask("/pvc/mutate", &creation_review("persistentvolumeclaims", claim)).await)
    }
}

/// The patch of a response that allows the object.
fn patch(response: &Value) -> Value {
    assert_eq!(response["allowed"], true, "{response}");
    if response["patch"].is_null() {
        assert!(response["patchType"].is_null());
        return Value::Null;
    }
    assert_eq!(response["patchType"], "JSONPatch");
    // The API server reads base64, as of every []byte
    let ByteString(patch) = serde_json::from_value(response["patch"].clone()).unwrap();
    serde_json::from_slice(&patch).unwrap()
}

//! The admission webhooks that the API server calls when pods and claims are created.
//!
//! - `pod` and `claim` decide what to add to an object; `requested_capacity` and `patch` are their pure parts.
//! - `admission_review` and `objects` parse what the API server sends, `http` serves it over the HTTPS server of
//!   `topolvm_runtime::tls`.
//! - `self_managed` creates and renews the certificate where none comes from files.
//! - `unmarked_pods` publishes Events for the owners of pods that did not get the resource, with the reason.
//! - `args` has the flags.
//!
//! Nothing here depends on CSI, leader election or the scheduling mode.

mod admission_review;
mod args;
mod claim;
mod http;
mod metrics;
mod object_name;
mod objects;
mod patch;
mod pod;
mod request_limit;
mod requested_capacity;
mod self_managed;
mod storage_class_informer;
mod unmarked_pods;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use jiff::Timestamp;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use topolvm_api::ApiFlavor;
use topolvm_capacity::MinimumAllocation;
use topolvm_kube::ExtenderInformer;
use topolvm_runtime::http_server::Limit;
use topolvm_runtime::listen::ListenAddress;
use topolvm_runtime::tls::{ServedCertificate, TlsServer};
use topolvm_runtime::{CancellationToken, Tasks};

pub use args::WebhookArgs;
pub use pod::CapacityResource;
pub use self_managed::SelfManaged;

use claim::ClaimWebhook;
use http::{Hooks, LARGE_BODIES};
use metrics::WebhookMetrics;
use pod::PodWebhook;
use request_limit::RequestLimit;
use storage_class_informer::StorageClassInformer;
use unmarked_pods::UnmarkedPods;

/// Connections at most. kube-apiserver opens one for each question that it asks at the same time, and keeps 25 of them;
/// more than these are answered after each other.
const MAX_CONNECTIONS: usize = 256;

/// The configuration of the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// The address to listen on.
    pub address: ListenAddress,
    /// The source of the certificate.
    pub certificates: Certificates,
    /// File with the authorities of clients' certificates; without one everybody is answered.
    pub client_authorities: Option<PathBuf>,
    /// The value of the resource that pods get.
    pub capacity_resource: CapacityResource,
    /// True if claims get the finalizer.
    pub pvc_finalizer: bool,
}

/// The source of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// `tls.crt` and `tls.key` of this directory.
    Files(PathBuf),
    /// The controller issues it. An empty namespace is that of the pod.
    SelfManaged(SelfManaged),
}

/// The dependencies of the webhooks.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct WebhookContext {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The smallest sizes of volumes.
    pub minimums: MinimumAllocation,
    /// The state of the scheduler extender, without which pods do not get the resource; `None` where nothing has to be
    /// proven.
    pub extender: Option<ExtenderInformer>,
    /// The wall clock.
    pub now: fn() -> Timestamp,
}

/// The webhooks.
#[expect(missing_debug_implementations, reason = "the client in them has none")]
#[derive(Clone)]
pub struct Webhooks {
    hooks: Hooks,
    server: TlsServer,
    config: WebhookConfig,
    client: Client,
    now: fn() -> Timestamp,
}

impl Webhooks {
    /// Makes the webhooks and starts the informer that they need; it ends when `shutdown` is cancelled. Returns at
    /// once, also while the API server cannot be reached.
    pub fn start(
        context: WebhookContext,
        config: &WebhookConfig,
        registry: &mut Registry,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let WebhookContext { client, flavor, minimums, extender, now } = context;
        let metrics = WebhookMetrics::register(registry);
        let request_limit = RequestLimit::default();
        let (classes, task) =
            StorageClassInformer::new(Api::all(client.clone()), flavor, request_limit.clone(), shutdown.clone());
        tasks.spawn("watch of StorageClasses", task);
        let extender = extender.map(|informer| {
            let (unmarked_pods, reporting) = UnmarkedPods::new(client.clone(), flavor, shutdown.clone());
            tasks.spawn("Events of the pod webhook", reporting);
            (informer, unmarked_pods)
        });
        let resource = config.capacity_resource;
        let certificate = ServedCertificate::new("webhooks", metrics.expiry.clone());
        let server = match &config.client_authorities {
            Some(_) => TlsServer::for_known_clients(certificate),
            None => TlsServer::for_all_clients(certificate).context("cannot configure TLS")?,
        };
        Ok(Self {
            server,
            config: config.clone(),
            client: client.clone(),
            now,
            hooks: Hooks {
                claims: ClaimWebhook { flavor, classes: classes.clone(), finalizer: config.pvc_finalizer },
                pods: PodWebhook { client, flavor, minimums, resource, classes, request_limit, extender },
                metrics,
                bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
            },
        })
    }

    /// Returns the handlers that are served over HTTPS.
    pub fn router(&self) -> Router {
        http::router(self.hooks.clone())
    }

    /// Starts to serve on `address`, and to renew the certificate.
    pub fn serve(&self, address: ListenAddress, tasks: &Tasks, shutdown: &CancellationToken) {
        let (certificate, end) = (self.server.certificate().clone(), shutdown.clone());
        match self.config.certificates.clone() {
            Certificates::Files(directory) => {
                tasks.spawn("webhook certificate", certificate.follow_files(directory, end));
            }
            Certificates::SelfManaged(mut settings) => {
                if settings.namespace.is_empty() {
                    self.client.default_namespace().clone_into(&mut settings.namespace);
                }
                let reconciler =
                    self_managed::CertificateReconciler::new(self.client.clone(), settings, self.now, certificate);
                tasks.spawn("webhook certificate", reconciler.run(end));
            }
        }
        if let Some(path) = self.config.client_authorities.clone() {
            let following = self.server.clone().follow_client_authorities(path, shutdown.clone());
            tasks.spawn("authorities of webhook clients", following);
        }
        let (router, server, end) = (self.router(), self.server.clone(), shutdown.clone());
        let limit = Limit { connections: MAX_CONNECTIONS, metrics: self.hooks.metrics.connections.clone() };
        tasks.spawn("webhooks", async move {
            server.serve(address.listen().await?, limit, router, end).await;
            Ok(())
        });
    }

    /// Checks that the webhooks can answer calls; the error names the missing part.
    pub fn ready(&self) -> Result<(), String> {
        if self.server.certificate().current().is_none() {
            Err("waiting for the certificate of the webhooks".to_owned())
        } else if !self.server.knows_clients() {
            Err("waiting for the file of --webhook-client-ca".to_owned())
        } else if !self.hooks.pods.classes.cache.is_listed() {
            Err("waiting for the list of StorageClasses".to_owned())
        } else if self.hooks.pods.extender.as_ref().is_some_and(|(informer, _)| !informer.is_listed()) {
            Err("waiting for the outcome of the extender probe; allow list and watch of its ConfigMap".to_owned())
        } else {
            Ok(())
        }
    }
}

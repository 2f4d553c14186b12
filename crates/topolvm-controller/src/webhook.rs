//! The admission webhooks that the API server calls when pods and claims are created.
//!
//! - `pod` and `claim` decide what to add to an object; `demand` and `patch` are their pure parts.
//! - `admission` and `http` speak with the API server; `server` is the HTTPS socket.
//! - `certificate` holds what TLS serves; `certificate::files` and `self_managed` are where it comes from.

mod admission;
mod args;
mod certificate;
mod claim;
mod demand;
mod http;
mod metrics;
mod names;
mod patch;
mod pod;
mod self_managed;
mod server;
mod storage_classes;

use std::fmt;
use std::path::PathBuf;

use axum::Router;
use jiff::Timestamp;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_runtime::{CancellationToken, Tasks};

use crate::MinimumAllocation;

pub use args::WebhookArgs;
pub use pod::CapacityResource;
pub use self_managed::SelfManaged;

use certificate::Served;
use claim::ClaimWebhook;
use http::Hooks;
use metrics::WebhookMetrics;
use pod::PodWebhook;
use storage_classes::StorageClasses;

/// How to serve the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Where; `:9443` means every interface.
    pub address: String,
    /// With which certificate.
    pub certificates: Certificates,
    /// What pods get.
    pub capacity_resource: CapacityResource,
    /// Whether claims get our finalizer.
    pub pvc_finalizer: bool,
}

/// Where the certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// `tls.crt` and `tls.key` of this directory.
    Files(PathBuf),
    /// We make it. An empty namespace is that of the pod.
    SelfManaged(SelfManaged),
}

/// What all parts of the controller share.
#[derive(Clone)]
pub struct Surroundings {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The smallest volumes.
    pub minimums: MinimumAllocation,
    /// The wall clock.
    pub now: fn() -> Timestamp,
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client has no debug form
        f.debug_struct("Surroundings").field("flavor", &self.flavor).finish_non_exhaustive()
    }
}

/// The webhooks.
#[derive(Clone)]
pub struct Webhooks {
    hooks: Hooks,
    served: Served,
    certificates: Certificates,
    client: Client,
    now: fn() -> Timestamp,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

impl Webhooks {
    /// Makes the webhooks and starts the watch that they need; it ends when `shutdown` is cancelled. Returns at once, also
    /// while the API server cannot be reached.
    pub fn start(
        surroundings: Surroundings,
        config: &WebhookConfig,
        registry: &mut Registry,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Self {
        let Surroundings { client, flavor, minimums, now } = surroundings;
        let metrics = WebhookMetrics::register(registry);
        let (classes, task) = StorageClasses::new(Api::all(client.clone()), flavor, shutdown.clone());
        tasks.spawn("watch of StorageClasses", task);
        let resource = config.capacity_resource;
        Self {
            served: Served::new(metrics.expiry.clone()),
            certificates: config.certificates.clone(),
            client: client.clone(),
            now,
            hooks: Hooks {
                claims: ClaimWebhook { flavor, classes: classes.clone(), finalizer: config.pvc_finalizer },
                pods: PodWebhook { client, flavor, minimums, resource, classes },
                metrics,
            },
        }
    }

    /// What is served over HTTPS.
    pub fn router(&self) -> Router {
        http::router(self.hooks.clone())
    }

    /// Starts to serve on `address`, and to look after the certificate.
    pub fn serve(&self, address: String, tasks: &Tasks, shutdown: &CancellationToken) {
        let (served, end) = (self.served.clone(), shutdown.clone());
        match self.certificates.clone() {
            Certificates::Files(directory) => {
                tasks.spawn("webhook certificate", certificate::files::follow(directory, served, end));
            }
            Certificates::SelfManaged(mut settings) => {
                if settings.namespace.is_empty() {
                    self.client.default_namespace().clone_into(&mut settings.namespace);
                }
                let keeper = self_managed::Keeper::new(self.client.clone(), settings, self.now, served);
                tasks.spawn("webhook certificate", keeper.run(end));
            }
        }
        let (router, served, end) = (self.router(), self.served.clone(), shutdown.clone());
        tasks.spawn("webhooks", async move { server::serve(&address, router, served, end).await });
    }

    /// Whether calls can be answered, or what is missing.
    pub fn ready(&self) -> Result<(), String> {
        if !self.served.is_there() {
            Err("waiting for the certificate of the webhooks".to_owned())
        } else if !self.hooks.pods.classes.is_synced() {
            Err("waiting for the list of StorageClasses".to_owned())
        } else {
            Ok(())
        }
    }
}

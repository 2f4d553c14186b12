//! The admission webhooks that the API server calls when pods and claims are created.
//!
//! - `pod` and `claim` decide what to add to an object; `demand` and `patch` are their pure parts.
//! - `admission`, `review` and `http` speak with the API server; `server` is the HTTPS socket, and `client_authorities` says who may use it.
//! - `certificate` holds what TLS serves; `certificate::files` and `self_managed` are where it comes from.

mod admission;
mod args;
mod certificate;
mod claim;
mod client_authorities;
mod demand;
mod http;
mod metrics;
mod names;
mod patch;
mod pod;
mod reads;
mod review;
mod self_managed;
mod server;
mod storage_classes;

use std::fmt;
use std::path::PathBuf;

use anyhow::Context as _;
use axum::Router;
use jiff::Timestamp;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_runtime::listen::ListenAddress;
use topolvm_runtime::{CancellationToken, Tasks};

use crate::MinimumAllocation;

pub use args::WebhookArgs;
pub use pod::CapacityResource;
pub use self_managed::SelfManaged;

use certificate::Served;
use claim::ClaimWebhook;
use client_authorities::TlsConfig;
use http::{Bodies, Hooks};
use metrics::WebhookMetrics;
use pod::PodWebhook;
use reads::Reads;
use storage_classes::StorageClasses;

/// How to serve the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookConfig {
    /// Where.
    pub address: ListenAddress,
    /// With which certificate.
    pub certificates: Certificates,
    /// File with the authorities of clients' certificates; without one everybody is answered.
    pub client_authorities: Option<PathBuf>,
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
    tls: TlsConfig,
    client_authorities: Option<PathBuf>,
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
    ) -> anyhow::Result<Self> {
        let Surroundings { client, flavor, minimums, now } = surroundings;
        let metrics = WebhookMetrics::register(registry);
        let reads = Reads::default();
        let (classes, task) = StorageClasses::new(Api::all(client.clone()), flavor, reads.clone(), shutdown.clone());
        tasks.spawn("watch of StorageClasses", task);
        let resource = config.capacity_resource;
        let served = Served::new(metrics.expiry.clone());
        let tls = match &config.client_authorities {
            Some(_) => TlsConfig::for_nobody(served.clone()),
            None => TlsConfig::for_everybody(served.clone()).context("cannot speak TLS")?,
        };
        Ok(Self {
            served,
            certificates: config.certificates.clone(),
            tls,
            client_authorities: config.client_authorities.clone(),
            client: client.clone(),
            now,
            hooks: Hooks {
                claims: ClaimWebhook { flavor, classes: classes.clone(), finalizer: config.pvc_finalizer },
                pods: PodWebhook { client, flavor, minimums, resource, classes, reads },
                metrics,
                bodies: Bodies::default(),
            },
        })
    }

    /// What is served over HTTPS.
    pub fn router(&self) -> Router {
        http::router(self.hooks.clone())
    }

    /// Starts to serve on `address`, and to look after the certificate.
    pub fn serve(&self, address: ListenAddress, tasks: &Tasks, shutdown: &CancellationToken) {
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
        if let Some(path) = self.client_authorities.clone() {
            tasks.spawn("authorities of webhook clients", self.tls.clone().follow(path, shutdown.clone()));
        }
        let (router, tls, end) = (self.router(), self.tls.clone(), shutdown.clone());
        let connections = self.hooks.metrics.connections.clone();
        tasks.spawn("webhooks", async move { Ok(server::serve(&address, router, tls, connections, end).await?) });
    }

    /// Whether calls can be answered, or what is missing.
    pub fn ready(&self) -> Result<(), String> {
        if !self.served.is_there() {
            Err("waiting for the certificate of the webhooks".to_owned())
        } else if self.tls.current().is_none() {
            Err("waiting for the file of --webhook-client-ca".to_owned())
        } else if !self.hooks.pods.classes.is_synced() {
            Err("waiting for the list of StorageClasses".to_owned())
        } else {
            Ok(())
        }
    }
}

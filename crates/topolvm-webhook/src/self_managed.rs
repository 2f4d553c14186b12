//! A certificate that the controllers create themselves and renew without a refused request.
//!
//! An own authority, which is valid ten times as long as a certificate, signs the certificates. Both are in a Secret
//! with their private keys, so that all replicas serve the same certificate, and the authority is written into the
//! `caBundle`s of the webhook configuration. Every replica does everything: a replica that is second to a change finds
//! it made, because writes are conditional on the version that was read.
//!
//! - A certificate is renewed after two thirds of its life. The authority stays, so that the webhook configuration does
//!   too.
//! - A new authority is created before the old one cannot sign for a whole certificate's life any more, when the Secret
//!   is lost, and for a Secret of an earlier version, which forgot the private keys of its authorities. It is written
//!   into the configuration next to the old one; its first certificate is created when API servers have had time to
//!   load it, and the old certificate is served until then. The old authority stays until everything that it has signed
//!   has expired, for replicas that have not loaded the new one yet.
//! - A `caBundle` that another client changes is written again.
//! - Only if there is nothing that API servers could trust (the first start; all certificates expired; the Secret lost
//!   while no replica ran; everything created while the clock was ahead) is a new certificate served at once.
//! - If the clock is behind the API server's last write of the Secret, the time of that write is used: certificates
//!   that others created with the right time are not from the future.

mod args;
mod ca_bundles;
mod certificate;
mod content;
mod issue;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::time::Instant;
use topolvm_kube::watch_one;
use topolvm_runtime::tls::{CertificateError, ServedCertificate};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

pub use self::args::SelfManaged;

use self::ca_bundles::CaBundles;
use self::certificate::CertificateAndKey;
use self::content::Content;
use self::issue::{IssueError, new_authority, sign};
use self::step::{Step, next_step};

/// Longest pause between two reconciles. What changes ends it anyway.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// Interval at which the clock is compared with the time that has passed. A clock that was set ends a pause.
const CLOCK_CHECK: Duration = Duration::from_mins(1);
/// Difference from which on the clock was set.
const CLOCK_STEP: SignedDuration = SignedDuration::from_secs(10);
/// Timeout of one reconcile.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pauses after failures.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_mins(1);
/// Attempts against others who write at the same time.
const ATTEMPTS: u32 = 16;
/// Time that API servers get to hear of a new authority before it signs what is served.
const SETTLE: SignedDuration = SignedDuration::from_secs(60);

/// A reconcile that failed.
#[derive(Debug, thiserror::Error)]
enum SelfManagedError {
    #[error("cannot {verb} {object}")]
    Kube { verb: &'static str, object: String, source: kube::Error },
    #[error("cannot create a certificate")]
    Issue(#[from] IssueError),
    #[error("the certificate in the Secret is unusable")]
    Certificate(#[from] CertificateError),
    #[error("the Secret {0} or the webhook configuration changes constantly")]
    Conflicts(String),
    #[error("the API server does not answer")]
    Timeout,
}

/// Reconciles the Secret, the webhook configuration and what is served.
pub(super) struct CertificateReconciler {
    settings: SelfManaged,
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    client: Client,
    now: fn() -> Timestamp,
    served: ServedCertificate,
    /// DNS names of the certificate.
    names: Vec<String>,
    /// Content of the Secret when it was last read, in case it is deleted.
    held: Option<Content>,
    /// The authorities in the configuration, and the time since when they are known to be in it.
    published: Option<(String, Instant)>,
    /// Set when it was logged that there is no configuration.
    is_missing: bool,
}

impl CertificateReconciler {
    pub(super) fn new(
        client: Client,
        settings: SelfManaged,
        now: fn() -> Timestamp,
        served: ServedCertificate,
    ) -> Self {
        let SelfManaged { namespace, service, .. } = &settings;
        // The API server calls the first of them
        let names = ["svc", "svc.cluster.local"].map(|end| format!("{service}.{namespace}.{end}"));
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client.clone()),
            names: names.into(),
            settings,
            client,
            now,
            served,
            held: None,
            published: None,
            is_missing: false,
        }
    }

    /// Serves, publishes and renews until `shutdown` is cancelled.
    pub(super) async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let changed = Arc::new(Notify::new());
        let (for_secret, for_configuration) = (Arc::clone(&changed), Arc::clone(&changed));
        let SelfManaged { namespace, secret, configuration, .. } = self.settings.clone();
        let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(self.client.clone(), &namespace);
        let on_change = move |_| for_secret.notify_one();
        let secrets = watch_one("webhook Secret", secrets, &secret, shutdown.clone(), on_change);
        let configurations: Api<PartialObjectMeta<MutatingWebhookConfiguration>> = Api::all(self.client.clone());
        let on_change = move |_| for_configuration.notify_one();
        let token = shutdown.clone();
        let configurations = watch_one("webhook configuration", configurations, &configuration, token, on_change);
        let reconciling = async {
            shutdown.run_until_cancelled(self.reconcile_on_changes(&changed)).await;
            Ok(())
        };
        tokio::try_join!(secrets, configurations, reconciling).map(drop)
    }

    async fn reconcile_on_changes(&mut self, changed: &Notify) {
        let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        loop {
            let reconciled = tokio::time::timeout(RECONCILE_TIMEOUT, self.reconcile()).await;
            let pause = match reconciled.unwrap_or(Err(SelfManagedError::Timeout)) {
                Ok(due) => {
                    backoff.reset();
                    Duration::try_from(due.duration_since((self.now)())).unwrap_or_default().min(LONGEST_PAUSE)
                }
                Err(error) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "cannot maintain the certificate of the webhooks; allow get, patch and create of the Secret \
                         and get and patch of the webhook configuration in the roles of this service account; trying \
                         again"
                    );
                    backoff.fail()
                }
            };
            self.wait(changed, pause).await;
        }
    }

    /// Waits for a change, for the end of a pause, or until the clock was set.
    async fn wait(&self, changed: &Notify, pause: Duration) {
        let (began, clock) = (Instant::now(), (self.now)());
        let end = began + pause;
        loop {
            let check = end.min(Instant::now() + CLOCK_CHECK);
            // What changes during the reconcile leaves a permit
            let is_changed = tokio::time::timeout_at(check, changed.notified()).await.is_ok();
            let elapsed = SignedDuration::try_from(began.elapsed()).unwrap_or(SignedDuration::MAX);
            let step = (self.now)().duration_since(clock).saturating_sub(elapsed);
            if is_changed || check == end || step.abs() > CLOCK_STEP {
                return;
            }
        }
    }

    /// Does what is to be done now, and returns when there will be something to do again.
    async fn reconcile(&mut self) -> Result<Timestamp, SelfManagedError> {
        for _ in 0..ATTEMPTS {
            let (bundles, secret) = self.read().await?;
            let now = (self.now)().max(secret.as_ref().and_then(Content::written_at).unwrap_or(Timestamp::MIN));
            let content = secret.as_ref().and_then(|secret| self.read_content(secret));
            if let Some(content) = &content {
                self.served.serve(content.served.parse()?);
                self.held = Some(content.clone());
                if !self.publish(bundles, content, now).await? {
                    continue;
                }
            }
            let content = match self.next_step(content.as_ref(), now) {
                Step::Wait(until) => return Ok(until),
                Step::StartOver => {
                    let signer = self.new_authority(now)?;
                    let certificate = self.sign(&signer, now)?;
                    Content::new(signer, certificate)
                }
                Step::NewAuthority(content) => content.with_signer(self.new_authority(now)?),
                Step::NewCertificate { content, signer } => {
                    content.with_certificate(self.sign(&signer, now)?, self.settings.lifetime, now)
                }
            };
            self.write(secret.as_ref(), &content).await?;
        }
        Err(SelfManagedError::Conflicts(self.settings.secret.clone()))
    }

    /// Reads the configuration and the Secret, in this order. Who publishes an authority has written it into the Secret
    /// before, so the Secret is at least as new as the configuration, and a write that is conditional on the
    /// configuration cannot take back a newer one's authority.
    async fn read(&self) -> Result<(Option<CaBundles>, Option<Secret>), SelfManagedError> {
        let bundles = CaBundles::read(&self.configurations, &self.settings.configuration).await;
        let bundles = bundles.map_err(self.configuration_error("get"))?;
        let secret = self.secrets.get_opt(&self.settings.secret).await.map_err(self.secret_error("get"))?;
        Ok((bundles, secret))
    }

    /// Reads the content of the Secret; `None` if it is not one of ours.
    fn read_content(&self, secret: &Secret) -> Option<Content> {
        let content = Content::read(secret).inspect_err(|error| {
            let (secret, error) = (&self.settings.secret, error_chain(error));
            tracing::warn!(secret, error, "the Secret has no valid certificate; replacing it");
        });
        content.ok()
    }

    fn next_step(&self, content: Option<&Content>, now: Timestamp) -> Step {
        let settled = self.published.as_ref().and_then(|(_, since)| {
            let left = self.settle_time().saturating_sub(SignedDuration::try_from(since.elapsed()).ok()?);
            now.checked_add(left.max(SignedDuration::ZERO)).ok()
        });
        next_step(content, self.held.as_ref(), &self.names, self.settings.lifetime, now, settled)
    }

    fn new_authority(&self, now: Timestamp) -> Result<CertificateAndKey, IssueError> {
        tracing::info!("creating a CA for the webhook certificates");
        new_authority(now, self.settings.lifetime)
    }

    fn sign(&self, authority: &CertificateAndKey, now: Timestamp) -> Result<CertificateAndKey, IssueError> {
        tracing::info!(names = self.names.join(","), "creating a webhook certificate");
        sign(authority, &self.names, now, self.settings.lifetime)
    }

    /// Returns how long API servers get to hear of an authority; less for certificates that do not live long, as in
    /// tests.
    fn settle_time(&self) -> SignedDuration {
        SETTLE.min(self.settings.lifetime / 12)
    }

    /// Writes the authorities into the configuration unless it has them. Returns false if another client has changed it
    /// meanwhile.
    async fn publish(
        &mut self,
        bundles: Option<CaBundles>,
        content: &Content,
        now: Timestamp,
    ) -> Result<bool, SelfManagedError> {
        let Some(bundles) = bundles else {
            self.published = None;
            if !std::mem::replace(&mut self.is_missing, true) {
                let configuration = &self.settings.configuration;
                tracing::warn!(
                    configuration,
                    "the webhook configuration does not exist; webhooks are not called before it is applied"
                );
            }
            return Ok(true);
        };
        self.is_missing = false;
        let bundle = content.bundle(now);
        if !bundles.all_are(&bundle) {
            self.published = None;
            let written = bundles.write(&self.configurations, &bundle).await;
            if !written.map_err(self.configuration_error("patch"))? {
                return Ok(false);
            }
            tracing::info!(
                configuration = self.settings.configuration,
                "wrote the CA certificates to the webhook configuration"
            );
        }
        if self.published.as_ref().is_none_or(|(known, _)| *known != bundle) {
            self.published = Some((bundle, Instant::now()));
        }
        Ok(true)
    }

    /// Writes the Secret if it is as it was read. Whether it was is known after the next read.
    async fn write(&self, read: Option<&Secret>, content: &Content) -> Result<(), SelfManagedError> {
        let name = &self.settings.secret;
        let (verb, written) = match read {
            None => ("create", self.secrets.create(&PostParams::default(), &content.secret(name)).await),
            Some(read) => {
                let patch = Patch::Merge(content.patch(read));
                ("patch", self.secrets.patch(name, &PatchParams::default(), &patch).await)
            }
        };
        match written {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                tracing::debug!("another replica has already updated it");
                Ok(())
            }
            Err(source) => Err(self.secret_error(verb)(source)),
        }
    }

    fn secret_error(&self, verb: &'static str) -> impl FnOnce(kube::Error) -> SelfManagedError {
        let object = format!("the Secret {}/{}", self.settings.namespace, self.settings.secret);
        move |source| SelfManagedError::Kube { verb, object, source }
    }

    fn configuration_error(&self, verb: &'static str) -> impl FnOnce(kube::Error) -> SelfManagedError {
        let object = format!("the MutatingWebhookConfiguration {}", self.settings.configuration);
        move |source| SelfManagedError::Kube { verb, object, source }
    }
}

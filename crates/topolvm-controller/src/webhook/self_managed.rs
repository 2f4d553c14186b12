//! A certificate that the controllers make themselves and renew without a refused request.
//!
//! It is kept in a Secret, so that all replicas serve the same one, and its authority is written into the `caBundle`s of the
//! webhook configuration. Every replica does everything: who comes second to a change finds it made, because writes are
//! conditional on what was read.
//!
//! A renewal has three steps, and the old certificate is served until the third:
//! 1. a new certificate, with an authority of its own, is kept beside the old one (`Stage`),
//! 2. the configuration gets both authorities, and the API servers some time to hear of it,
//! 3. the new certificate becomes the one that is served (`Promote`). The old authority stays in the configuration until it
//!    expires, for replicas that have not heard yet.
//!
//! An authority signs one certificate, and its private key is forgotten at once: nobody can steal it.

mod issue;
mod publish;
mod step;
mod stored;
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
use topolvm_kube::watch_one;
use topolvm_runtime::CancellationToken;
use topolvm_runtime::tls::{CertificateError, ServedCertificate};

use self::issue::{IssueError, issue};
use self::publish::Publication;
use self::step::{Step, next_step};
use self::stored::{Stored, StoredError};

/// Longest pause between two looks: a clock that was set is noticed then. What changes wakes us anyway.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// How long the API server may take for one look.
const LOOK_LIMIT: Duration = Duration::from_secs(30);
/// Pause after the first failure; it doubles up to a minute.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Attempts against others who write at the same time.
const ATTEMPTS: u32 = 16;
/// How long API servers get to hear of a new authority before its certificate is served.
const SETTLE: SignedDuration = SignedDuration::from_secs(60);

/// What is made, and where it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfManaged {
    /// Namespace of the Secret and of the Service.
    pub namespace: String,
    /// The Service through which the API server calls.
    pub service: String,
    /// The Secret with the certificate.
    pub secret: String,
    /// The MutatingWebhookConfiguration whose `caBundle`s are written.
    pub configuration: String,
    /// How long a certificate is valid; it is renewed after two thirds of that.
    pub lifetime: SignedDuration,
}

/// Why the certificate could not be looked after.
#[derive(Debug, thiserror::Error)]
enum SelfManagedError {
    #[error("cannot {verb} {object}")]
    Kube { verb: &'static str, object: String, source: kube::Error },
    #[error("cannot make a certificate")]
    Issue(#[from] IssueError),
    #[error("the certificate in the Secret cannot be served")]
    Certificate(#[from] CertificateError),
    #[error("others change the Secret {0} or the webhook configuration all the time")]
    Restless(String),
    #[error("the API server does not answer")]
    Silent,
}

/// Looks after the certificate.
pub(super) struct Keeper {
    settings: SelfManaged,
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    client: Client,
    now: fn() -> Timestamp,
    served: ServedCertificate,
    names: Vec<String>,
    /// What was last read, in case the Secret is deleted.
    held: Option<Stored>,
    /// Which authorities the configuration has, and since when we know.
    published: Option<(String, Timestamp)>,
    /// Whether it was said that there is no configuration.
    is_missing: bool,
}

impl Keeper {
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
        let notify = || {
            let changed = changed.clone();
            move || changed.notify_one()
        };
        let (secret_changed, configuration_changed) = (notify(), notify());
        let SelfManaged { namespace, secret, configuration, .. } = self.settings.clone();
        let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(self.client.clone(), &namespace);
        let secrets = watch_one("webhook Secret", secrets, &secret, shutdown.clone(), move |_| secret_changed());
        let configurations: Api<PartialObjectMeta<MutatingWebhookConfiguration>> = Api::all(self.client.clone());
        let token = shutdown.clone();
        let configurations = watch_one("webhook configuration", configurations, &configuration, token, move |_| {
            configuration_changed();
        });
        let keeping = async {
            shutdown.run_until_cancelled(self.keep(&changed)).await;
            Ok(())
        };
        tokio::try_join!(secrets, configurations, keeping).map(drop)
    }

    async fn keep(&mut self, changed: &Notify) {
        let mut retry = FIRST_RETRY;
        loop {
            let looked = tokio::time::timeout(LOOK_LIMIT, self.look()).await;
            let pause = match looked.unwrap_or(Err(SelfManagedError::Silent)) {
                Ok(due) => {
                    retry = FIRST_RETRY;
                    Duration::try_from(due.duration_since((self.now)())).unwrap_or_default().min(LONGEST_PAUSE)
                }
                Err(error) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(
                        error,
                        "cannot look after the certificate of the webhooks; allow get, patch and create of the Secret and \
                         get and patch of the webhook configuration in the roles of this service account; trying again"
                    );
                    let longer = (retry * 2).min(Duration::from_mins(1));
                    std::mem::replace(&mut retry, longer)
                }
            };
            // What changes during the look leaves a permit
            drop(tokio::time::timeout(pause, changed.notified()).await);
        }
    }

    /// Does what is to be done now, and returns when there will be something to do again.
    async fn look(&mut self) -> Result<Timestamp, SelfManagedError> {
        for _ in 0..ATTEMPTS {
            // In this order. Who publishes has staged before, so the Secret that we read is at least as new as the
            // configuration, and a write that is conditional on the configuration cannot take back a newer one's authority
            let publication = Publication::read(&self.configurations, &self.settings.configuration).await;
            let publication = publication.map_err(|source| self.kube("get", Object::Configuration, source))?;
            let secret = self.secrets.get_opt(&self.settings.secret).await;
            let secret = secret.map_err(|source| self.kube("get", Object::Secret, source))?;
            let stored = secret.as_ref().map(Stored::read).transpose().unwrap_or_else(|error| {
                self.warn_unreadable(&error);
                None
            });
            if let Some(stored) = &stored {
                self.served.serve(stored.current.keyed()?);
                if self.held.as_ref() != Some(stored) {
                    self.held = Some(stored.clone());
                }
                if !self.publish(publication, stored).await? {
                    continue;
                }
            }
            let now = (self.now)();
            let settled = self.published.as_ref().and_then(|(_, since)| since.checked_add(self.settle()).ok());
            let write = match next_step(stored.as_ref(), self.held.as_ref(), &self.names, now, settled) {
                Step::Wait(until) => return Ok(until),
                Step::Replace => Stored::fresh(self.issue(now)?),
                Step::Stage(current) => current.staged(self.issue(now)?, now),
                Step::Promote(next) => next,
            };
            self.write(secret.as_ref(), &write).await?;
        }
        Err(SelfManagedError::Restless(self.settings.secret.clone()))
    }

    fn issue(&self, now: Timestamp) -> Result<issue::Issued, IssueError> {
        tracing::info!(names = self.names.join(","), "making a certificate for the webhooks");
        issue(&self.names, now, self.settings.lifetime)
    }

    /// How long API servers get; less for certificates that do not live long, as in tests.
    fn settle(&self) -> SignedDuration {
        SETTLE.min(self.settings.lifetime / 12)
    }

    /// Sees to it that the configuration has all authorities. False when somebody else has changed it meanwhile.
    async fn publish(&mut self, publication: Option<Publication>, stored: &Stored) -> Result<bool, SelfManagedError> {
        let Some(publication) = publication else {
            self.published = None;
            if !std::mem::replace(&mut self.is_missing, true) {
                let configuration = &self.settings.configuration;
                tracing::warn!(
                    configuration,
                    "there is no such webhook configuration; webhooks are not called before it is applied"
                );
            }
            return Ok(true);
        };
        self.is_missing = false;
        let now = (self.now)();
        let bundle = stored.bundle(now);
        if !publication.has(&bundle) {
            self.published = None;
            let written = publication.write(&self.configurations, &bundle).await;
            if !written.map_err(|source| self.kube("patch", Object::Configuration, source))? {
                return Ok(false);
            }
            tracing::info!(configuration = self.settings.configuration, "wrote the authorities of our certificates");
        }
        if self.published.as_ref().is_none_or(|(known, _)| *known != bundle) {
            self.published = Some((bundle, (self.now)()));
        }
        Ok(true)
    }

    /// Writes the Secret if it is as it was read. Whether it was is told by the next look.
    async fn write(&self, read: Option<&Secret>, stored: &Stored) -> Result<(), SelfManagedError> {
        let name = &self.settings.secret;
        let (verb, written) = match read {
            None => ("create", self.secrets.create(&PostParams::default(), &stored.secret(name)).await),
            Some(read) => {
                let patch = Patch::Merge(stored.patch(read));
                ("patch", self.secrets.patch(name, &PatchParams::default(), &patch).await)
            }
        };
        match written {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status))
                if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
            {
                tracing::debug!("another replica was faster");
                Ok(())
            }
            Err(source) => Err(self.kube(verb, Object::Secret, source)),
        }
    }

    fn warn_unreadable(&self, error: &StoredError) {
        let error = format!("{error:#}");
        tracing::warn!(secret = self.settings.secret, error, "the Secret is no certificate of ours and is made anew");
    }

    fn kube(&self, verb: &'static str, object: Object, source: kube::Error) -> SelfManagedError {
        let object = match object {
            Object::Secret => format!("the Secret {}/{}", self.settings.namespace, self.settings.secret),
            Object::Configuration => format!("the MutatingWebhookConfiguration {}", self.settings.configuration),
        };
        SelfManagedError::Kube { verb, object, source }
    }
}

#[derive(Clone, Copy)]
enum Object {
    Secret,
    Configuration,
}

//! Has the driver create the snapshots of a content, or show whether they are ready.
//!
//! The annotation about the creation is in the content before the driver is called, and stays until the outcome is
//! known: the content is not deleted meanwhile, and after a crash the next leader repeats the same call.

use csi_calls::Secrets;
use kube::ResourceExt as _;

use crate::attempt::{Attempt, End, Progress};
use crate::content::{Content, Request};
use crate::content_changes::{creation_begins, creation_ends, failed, found};
use crate::content_step::{Step, next_step};
use crate::error::AttemptError;
use crate::objects::Written;
use crate::secret_reference::{check_secret, snapshot_secret};
use crate::snapshot_request::driver_parameters;

/// A kind of failure, as users see it.
struct Report {
    reason: &'static str,
    action: &'static str,
    /// Text before the error.
    summary: String,
}

impl Attempt {
    /// Creates the snapshots. The same call again shows whether those that exist are ready.
    pub(crate) async fn create<C: Content>(
        &self,
        content: C,
        volumes: C::Volumes,
    ) -> Result<Progress<C>, AttemptError> {
        let request = match self.creation_request(&content, volumes).await {
            Ok(request) => request,
            Err(error) => return self.record_failure(content.clone(), &Report::of_creation(&content), error).await,
        };
        let begun = match self.objects.write_content(&content, creation_begins(&content)).await? {
            Written::Content(begun) => *begun,
            Written::Conflict => return Ok(Progress::next(self.objects.read_again(&content).await?)),
        };
        match C::create(&self.csi, request).await.map_err(AttemptError::from) {
            Ok(shown) => {
                let Some(found) = self.record_found(begun, &shown).await? else { return Ok(Progress::Next(None)) };
                let finished = self.objects.write_content_in_any_version(found, creation_ends).await?;
                Ok(self.progress_of(finished))
            }
            Err(error) => {
                let content = if error.is_final() {
                    self.objects.write_content_in_any_version(begun, creation_ends).await?
                } else {
                    Some(begun)
                };
                let Some(content) = content else { return Err(error) };
                self.record_failure(content.clone(), &Report::of_creation(&content), error).await
            }
        }
    }

    /// Asks the driver for what existed before the content.
    pub(crate) async fn check<C: Content>(&self, content: C, handle: C::Handle) -> Result<Progress<C>, AttemptError> {
        match self.find(&content, handle).await {
            Ok(shown) => {
                let checked = self.record_found(content, &shown).await?;
                Ok(self.progress_of(checked))
            }
            Err(error) => {
                let summary = format!("cannot check the {}", C::NAMES.what);
                let report = Report { reason: C::NAMES.check_failed, action: C::NAMES.check_action, summary };
                self.record_failure(content, &report, error).await
            }
        }
    }

    async fn creation_request<C: Content>(
        &self,
        content: &C,
        volumes: C::Volumes,
    ) -> Result<Request<C::Volumes>, AttemptError> {
        let name = self.names.of(content)?;
        let class = content.class().ok_or(AttemptError::NoClass(C::NAMES))?;
        let parameters = driver_parameters(self.objects.read_class::<C>(class).await?, content)?;
        let secrets = self.objects.read_secret(snapshot_secret(content)?).await?;
        Ok(Request { name, volumes, parameters, secrets })
    }

    async fn find<C: Content>(&self, content: &C, handle: C::Handle) -> Result<C::Shown, AttemptError> {
        let secrets = self.check_secrets(content).await?;
        let id = C::id_in(&handle).to_owned();
        C::find(&self.csi, handle, secrets).await?.ok_or(AttemptError::Missing { names: C::NAMES, id })
    }

    async fn check_secrets<C: Content>(&self, content: &C) -> Result<Secrets, AttemptError> {
        if content.is_check_secret_annotated() {
            return self.objects.read_secret(snapshot_secret(content)?).await;
        }
        let Some(class) = content.class() else { return Ok(Secrets::new()) };
        let parameters = self.objects.read_class::<C>(class).await?;
        self.objects.read_secret(check_secret(&parameters, content)?).await
    }

    /// Writes what the driver has shown to the content. `None` if it does not exist any more.
    async fn record_found<C: Content>(&self, content: C, shown: &C::Shown) -> Result<Option<C>, AttemptError> {
        let name = content.name_any();
        let find = |content: &C| found(content, shown, (self.now)());
        let written = self.objects.write_content_in_any_version(content, find).await?;
        let (what, id, is_ready) = (C::NAMES.what, C::id_of(shown), C::is_ready_in(shown));
        if written.is_some() {
            tracing::info!(content = name, id, is_ready, "recorded a {what}");
        } else {
            tracing::warn!(
                content = name,
                id,
                "the {} was removed while the driver worked on its {what}, which stays; delete its LogicalVolumes if \
                 they are not needed",
                C::NAMES.content,
            );
        }
        Ok(written)
    }

    /// Returns how a step ends after which the status shows what the driver has answered.
    fn progress_of<C: Content>(&self, content: Option<C>) -> Progress<C> {
        let next = content.as_ref().map(|content| next_step(content, self.objects.driver));
        match next {
            Some(Step::Create(_) | Step::Check(_)) => Progress::End(End::NotReady),
            Some(Step::Wait | Step::FinishCreation | Step::Delete(_) | Step::Release) | None => Progress::next(content),
        }
    }

    /// Writes a failure to the status and publishes an Event, unless the status shows the same already. Returns the
    /// error.
    async fn record_failure<C: Content>(
        &self,
        content: C,
        report: &Report,
        error: AttemptError,
    ) -> Result<Progress<C>, AttemptError> {
        if error.is_for_users() {
            let message = format!("{}: {error}", report.summary);
            let fail = |content: &C| failed(content, &message, (self.now)());
            // Before the status, which would be taken for an Event that was published
            if !fail(&content).is_empty() {
                self.events.publish_warning(&content, report.reason, report.action, message.clone()).await;
            }
            self.objects.write_content_in_any_version(content, fail).await?;
        }
        Err(error)
    }
}

impl Report {
    /// Returns how a failed creation is reported. As with csi-snapshotter the reason differs after the first attempt.
    fn of_creation<C: Content>(content: &C) -> Self {
        let (names, action) = (C::NAMES, C::NAMES.create_action);
        if content.has_no_status() {
            Self { reason: names.creation_failed, action, summary: format!("cannot create the {}", names.what) }
        } else {
            Self { reason: names.check_failed, action, summary: format!("still cannot create the {}", names.what) }
        }
    }
}

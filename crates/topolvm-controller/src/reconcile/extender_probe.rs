//! Probes whether kube-scheduler calls the scheduler extender.
//!
//! The leader creates the probe pod, waits for kube-scheduler's answer in its condition, deletes it, and writes the
//! outcome into the ConfigMap that all replicas watch, if it differs from the previous one. There is no other way to
//! find out: kube-scheduler's configuration is a file, and an extender that receives no request cannot know whether
//! there was any pod to schedule.
//!
//! A clear answer counts at once. One probe without a clear answer (kube-scheduler is restarted, the extender cannot be
//! reached, no node exists) leaves the outcome as it is; several in a row revoke the proof.

use std::future;
use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::timeout;
use topolvm_api::{ApiFlavor, EXTENDER_PROBE};
use topolvm_kube::{
    ExtenderInformer, ExtenderState, ReconcileError, ReconcileMetrics, none_if_deleted, none_if_not_found,
};
use topolvm_runtime::{CancellationToken, error_chain};

use super::Controllers;
use super::probe_pod::{Answer, PROBE_POD, probe_pod, read_answer};

/// Longest pause between two probes while the extender is not proven to be called.
const UNPROVEN_INTERVAL: Duration = Duration::from_secs(15);
/// Time that kube-scheduler has for its answer. It takes milliseconds when it has nothing else to do.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of one request. The leader ends only after the last one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Probes in a row without a clear answer that take a proof away.
const MAX_UNCLEAR: u32 = 3;

/// The controller of the extender probe.
pub(super) struct ExtenderProbe {
    client: Client,
    flavor: ApiFlavor,
    namespace: String,
    interval: Duration,
    informer: ExtenderInformer,
    metrics: ReconcileMetrics,
    /// The outcome so far, if this leader knows one.
    outcome: Option<ExtenderState>,
    /// Probes in a row without a clear answer.
    unclear: u32,
}

impl ExtenderProbe {
    /// Makes the controller; `None` where nothing has to be proven.
    pub(super) fn new(shared: &Controllers) -> Option<Self> {
        let settings = shared.scheduling.config.probe.as_ref()?;
        Some(Self {
            client: shared.client.clone(),
            flavor: shared.flavor,
            namespace: settings.namespace_or(&shared.client).to_owned(),
            interval: settings.interval,
            informer: shared.scheduling.extender.clone()?,
            metrics: shared.metrics.clone(),
            outcome: None,
            unclear: 0,
        })
    }

    /// Probes now, and again after each pause, until `term` is cancelled. The pod of a probe that is broken off is
    /// deleted before this returns.
    pub(super) async fn run(mut self, term: CancellationToken) {
        // What an earlier leader has proven goes on
        term.run_until_cancelled(self.informer.wait_until_listed()).await;
        while !term.is_cancelled() {
            let metrics = self.metrics.clone();
            if let Err(error) = metrics.observe("extenderprobe", self.reconcile(&term)).await {
                tracing::warn!(error = error_chain(&error), "cannot probe the scheduler extender; trying again");
            }
            let pause = tokio::time::sleep(self.pause());
            term.run_until_cancelled(pause).await;
        }
    }

    fn pause(&self) -> Duration {
        let is_sure = self.outcome == Some(ExtenderState::Proven) && self.unclear == 0;
        if is_sure { self.interval } else { self.interval.min(UNPROVEN_INTERVAL) }
    }

    /// Probes once and publishes the outcome.
    async fn reconcile(&mut self, term: &CancellationToken) -> Result<(), ReconcileError> {
        let probed = self.probe(term).await;
        let answer = match &probed {
            Ok(Some(answer)) => answer.clone(),
            Ok(None) => return Ok(()),
            Err(error) => Answer::Unclear(error_chain(error)),
        };
        self.evaluate(answer);
        if let Some(outcome) = self.outcome.clone().filter(|outcome| *outcome != self.informer.state()) {
            self.publish(&outcome).await?;
        }
        probed.map(drop)
    }

    /// Changes the outcome according to the answer to a probe.
    fn evaluate(&mut self, answer: Answer) {
        let was_proven = self.outcome.clone().unwrap_or_else(|| self.informer.state()) == ExtenderState::Proven;
        self.unclear = if matches!(answer, Answer::Unclear(_)) { self.unclear.saturating_add(1) } else { 0 };
        self.outcome = Some(match answer {
            Answer::Called => ExtenderState::Proven,
            Answer::Unclear(_) if was_proven && self.unclear < MAX_UNCLEAR => ExtenderState::Proven,
            Answer::NotCalled(message) => {
                ExtenderState::NotProven(format!("kube-scheduler does not call topolvm-scheduler: {message}"))
            }
            Answer::Unclear(message) => {
                ExtenderState::NotProven(format!("the probe of kube-scheduler was inconclusive: {message}"))
            }
        });
    }

    /// Has kube-scheduler try the probe pod, and returns its answer; `None` when the term has ended before.
    async fn probe(&self, term: &CancellationToken) -> Result<Option<Answer>, ReconcileError> {
        let uid = self.create_pod().await?;
        let answered = term.run_until_cancelled(timeout(ANSWER_TIMEOUT, self.wait_for_answer())).await;
        self.delete_pod(uid).await?;
        Ok(match answered {
            None => None,
            Some(Ok(answer)) => Some(answer?),
            Some(Err(_elapsed)) => Some(Answer::Unclear(format!(
                "kube-scheduler did not try to schedule the probe pod within {ANSWER_TIMEOUT:?}"
            ))),
        })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates the pod and returns its UID. One that an earlier leader has left behind is deleted before.
    async fn create_pod(&self) -> Result<Option<String>, ReconcileError> {
        let (api, pod) = (self.pods(), probe_pod(self.flavor));
        let create = async || match api.create(&PostParams::default(), &pod).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            created => created.map(Some),
        };
        let created = self.within_timeout("create", create()).await?;
        let created = if let Some(created) = created {
            created
        } else {
            self.delete_pod(None).await?;
            self.within_timeout("create", api.create(&PostParams::default(), &pod)).await?
        };
        Ok(created.metadata.uid)
    }

    /// Deletes the pod of this UID, or any existing one.
    async fn delete_pod(&self, uid: Option<String>) -> Result<(), ReconcileError> {
        let params =
            DeleteParams::default().grace_period(0).preconditions(Preconditions { uid, resource_version: None });
        let api = self.pods();
        let delete = async { none_if_deleted(api.delete(PROBE_POD, &params).await) };
        self.within_timeout("delete", delete).await.map(drop)
    }

    /// Waits until kube-scheduler has tried the pod.
    async fn wait_for_answer(&self) -> Result<Answer, ReconcileError> {
        let states = watch_object(self.pods(), PROBE_POD);
        let read = |pod: Option<Pod>| pod.and_then(|pod| read_answer(self.flavor, &pod));
        let mut answers = pin!(states.try_filter_map(|pod| future::ready(Ok(read(pod)))));
        let answer = answers.try_next().await.map_err(|source| ReconcileError::Watch { what: PROBE_POD, source })?;
        Ok(answer.unwrap_or_else(|| Answer::Unclear("the watch of the probe pod has ended".to_owned())))
    }

    /// Writes the outcome into the ConfigMap.
    async fn publish(&self, outcome: &ExtenderState) -> Result<(), ReconcileError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let (data, params) = (outcome.to_data(), PatchParams::default());
        let patch = Patch::Merge(json!({ "data": data }));
        let write = async { none_if_not_found(api.patch(EXTENDER_PROBE, &params, &patch).await) };
        if self.within_timeout("write", write).await?.is_some() {
            return Ok(());
        }
        let metadata = ObjectMeta { name: Some(EXTENDER_PROBE.to_owned()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
        self.within_timeout("create", api.create(&PostParams::default(), &map)).await.map(drop)
    }

    /// Runs a request with a timeout.
    async fn within_timeout<T>(
        &self,
        action: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ReconcileError> {
        let object = format!("{PROBE_POD} in the namespace {}", self.namespace);
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(ReconcileError::api(action, object)),
            Err(_elapsed) => Err(ReconcileError::Timeout { action, object }),
        }
    }
}

#[cfg(test)]
mod tests;

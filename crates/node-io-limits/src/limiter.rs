//! The limiter: puts the limits of volumes into force for the pods that have them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use linux_mount::{DeviceNumber, LimitError, LimitsInForce, Mounter, PodLimits};
use lvmd_client::{LvmdClient, LvmdError};
use parking_lot::Mutex;
use published_pods::{PodInfo, PublishedPods};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, IoLimits, LogicalVolume, VolumeIoLimits};
use topolvm_kube::EventRecorder;
use topolvm_runtime::{CancellationToken, error_chain};

use crate::enforcement::{ByPod, Enforcement, FAILED, INVALID, Trouble, volume_limits};
use crate::events::Events;
use crate::pod_requests::{PodRequest, PodRequests};
use crate::port::LimitIo;
use crate::report::IoReport;
use crate::reports::IoReports;

/// Time for the kubelet to create the cgroup of a pod, in parallel with the mounts of its volumes.
const CGROUP_APPEARS: Duration = Duration::from_secs(2);
/// Pause between two polls. There is no event for a directory that appears somewhere in a tree.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of the checks of limits that are in force, so that a change is undone within five seconds.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Number of those checks after which limits that the kernel refused are tried again.
const TRY_AGAIN: u32 = 15;

/// Limits the I/O of the pods that have volumes. Clones share what they know.
#[derive(Clone, Debug)]
pub struct IoLimiter(Arc<Limiter>);

#[derive(Debug)]
struct Limiter {
    flavor: ApiFlavor,
    lvmd: LvmdClient,
    limit_io: LimitIo,
    requests: PodRequests,
    published: PublishedPods,
    events: Events,
    /// Known states of the pods of a volume, by volume id. A pod without an entry may have limits of an earlier
    /// process.
    known: Mutex<HashMap<String, ByPod>>,
    /// Notified when a pod has limits, or is to have some.
    limited: Notify,
    reports: IoReports,
}

impl IoLimiter {
    /// Makes the limiter of the pods to which volumes are `published`, which request limits by `requests`.
    pub fn new(
        flavor: ApiFlavor,
        lvmd: LvmdClient,
        mounter: impl Mounter,
        requests: PodRequests,
        published: PublishedPods,
        events: EventRecorder,
    ) -> Self {
        let (limit_io, events) = (LimitIo::new(mounter), Events(events));
        let (known, limited, reports) = (Mutex::default(), Notify::new(), IoReports::default());
        Self(Arc::new(Limiter { flavor, lvmd, limit_io, requests, published, events, known, limited, reports }))
    }

    /// Limits a pod that is about to get a volume. A failure does not keep the pod from starting: the condition of the
    /// volume and an Event report it.
    pub async fn limit_before_use(&self, volume: &LogicalVolume, device: DeviceNumber, pod: &PodInfo) {
        let Some(id) = volume.volume_id() else { return };
        let Ok(own) = self.0.own_limits(volume) else { return };
        let of_pod = self.0.requests.ask(pod).await.unwrap_or_else(|| Ok(IoLimits::default()));
        let state = if own.is_empty() && of_pod.as_ref().is_ok_and(IoLimits::is_empty) {
            // kubelet repeats its calls: the pod may have limits from before
            if self.0.published.contains(id, &pod.uid) {
                return;
            }
            Enforcement::none(pod.clone())
        } else {
            self.0.limit_pod(&own, of_pod, device, pod, Instant::now() + CGROUP_APPEARS).await
        };
        self.0.remember(id, state).await;
    }

    /// Limits all pods that have a volume, and returns whether the condition of its object must be written.
    pub async fn limit_volume(&self, volume: &LogicalVolume) -> Result<bool, LvmdError> {
        let report = self.0.limit_volume(volume).await?;
        Ok(report.is_some_and(|report| self.0.reports.insert(volume, report)))
    }

    /// Returns the condition about limits for the status of an object. What an earlier process has written stays until
    /// it is known what is in force.
    pub fn condition(&self, volume: &LogicalVolume, now: Timestamp) -> Option<Condition> {
        self.0.reports.condition(volume, now)
    }

    /// Checks that limits are still in force, and sends the id of each volume with lost limits to `lost`. The kernel
    /// reports no change: systemd disables the controller, and with it all limits, where no unit accounts for I/O, and
    /// with cgroups of version 1 a container that has just started has none. Ends with `shutdown`.
    pub async fn watch(self, lost: mpsc::UnboundedSender<String>, shutdown: CancellationToken) -> anyhow::Result<()> {
        let mut round = 0_u32;
        let next_check = async || {
            self.0.until_limited().await;
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        while shutdown.run_until_cancelled(next_check()).await.is_some() {
            round = round.wrapping_add(1);
            for id in self.0.find_lost(round.is_multiple_of(TRY_AGAIN)).await {
                // The receiver is dropped only at shutdown
                drop(lost.send(id));
            }
        }
        Ok(())
    }

    /// Returns the ids of the volumes that a pod has.
    pub fn volumes_of_pod(&self, uid: &str) -> Vec<String> {
        self.0.published.volumes(uid)
    }

    /// Returns the limits of a volume, for its metrics.
    pub fn rates(&self, id: &str) -> VolumeIoLimits {
        self.0.known.lock().get(id).map(volume_limits).unwrap_or_default()
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, volume: &LogicalVolume) {
        self.0.reports.forget(volume);
        if let Some(id) = volume.volume_id() {
            self.0.known.lock().remove(id);
        }
    }
}

impl Limiter {
    /// Limits all pods that have a volume, and returns the report about it; `None` while it is not known.
    async fn limit_volume(&self, volume: &LogicalVolume) -> Result<Option<IoReport>, LvmdError> {
        let Some(id) = volume.volume_id() else { return Ok(None) };
        let pods = self.published.pods(id);
        self.retain(id, &pods);
        let own = match self.own_limits(volume) {
            Ok(own) => own,
            Err(message) => return Ok(Some(IoReport::invalid(&message))),
        };
        if !pods.is_empty() && !self.requests.is_listed() {
            return Ok(None);
        }
        let waiting = pods.into_iter().filter_map(|pod| Some((self.requests.get(&pod.uid)?, pod)));
        let waiting: Vec<_> = waiting.filter(|(request, pod)| self.must_check(id, &own, request, pod)).collect();
        if !waiting.is_empty() {
            let lv = self.lvmd.find(id, &volume.spec.device_class).await?;
            // One that has no device is used by no pod
            let Some(device) = lv.and_then(|lv| lv.number) else { return Ok(None) };
            for (request, pod) in waiting {
                let state = self.limit_pod(&own, request, device, &pod, Instant::now()).await;
                self.remember(id, state).await;
            }
        }
        let known = self.known.lock();
        Ok(Some(IoReport::of(&own, known.get(id).into_iter().flat_map(ByPod::values))))
    }

    /// Waits until a pod has limits, or is to have some: a node without limits is not woken up for them.
    async fn until_limited(&self) {
        let is_limited = || self.known.lock().values().flat_map(ByPod::values).any(|of| of.expected(true).is_some());
        while !is_limited() {
            self.limited.notified().await;
        }
    }

    /// Returns the ids of the volumes for which limits are not in force any more.
    async fn find_lost(&self, with_failed: bool) -> Vec<String> {
        let expected: Vec<(String, PodLimits)> = {
            let known = self.known.lock();
            let of_volume = |(id, pods): (&String, &ByPod)| {
                let limits = pods.values().filter_map(|state| state.expected(with_failed));
                limits.map(|limits| (id.clone(), limits)).collect::<Vec<_>>()
            };
            known.iter().flat_map(of_volume).collect()
        };
        if expected.is_empty() {
            return Vec::new();
        }
        let found = self.limit_io.find_lost(expected.iter().map(|(_, limits)| limits.clone()).collect()).await;
        let lost = found.unwrap_or_else(|error| {
            tracing::debug!(error = error_chain(&error), "cannot check I/O limits");
            Vec::new()
        });
        let lost: BTreeSet<_> =
            expected.into_iter().filter(|(_, limits)| lost.contains(limits)).map(|(id, _)| id).collect();
        for volume in &lost {
            tracing::info!(volume, "I/O limits are no longer in force; setting them again");
        }
        lost.into_iter().collect()
    }

    /// Returns the limits that the object requests; a message if they are invalid.
    fn own_limits(&self, volume: &LogicalVolume) -> Result<IoLimits, String> {
        IoLimits::parse(self.flavor, |key| volume.annotation(key))
            .map_err(|error| format!("LogicalVolume {}: {error}", volume.name()))
    }

    /// Returns whether the limits in the kernel must be set: not for a pod that neither has limits nor requests any.
    fn must_check(&self, id: &str, own: &IoLimits, request: &PodRequest, pod: &PodInfo) -> bool {
        let requests_limits = !own.is_empty() || !request.as_ref().is_ok_and(IoLimits::is_empty);
        let is_known_to_have_none =
            || self.known.lock().get(id).and_then(|pods| pods.get(&pod.uid)).is_some_and(Enforcement::is_none);
        requests_limits || !is_known_to_have_none()
    }

    /// Limits a pod. The lower limit counts where both the volume and the pod name one; invalid annotations do not
    /// count.
    async fn limit_pod(
        &self,
        own: &IoLimits,
        request: PodRequest,
        device: DeviceNumber,
        pod: &PodInfo,
        deadline: Instant,
    ) -> Enforcement {
        let (requested, invalid) = match request {
            Ok(of_pod) => (own.lower(&of_pod), None),
            Err(error) => (own.clone(), Some(Trouble { reason: INVALID, message: error.to_string() })),
        };
        match self.limit_when_cgroup_exists(&pod.uid, device, &requested, deadline).await {
            Ok(LimitsInForce { limits: in_force, exception }) => {
                Enforcement { pod: pod.clone(), device: Some(device), requested, in_force, exception, trouble: invalid }
            }
            Err(error) => {
                let failed = Trouble { reason: FAILED, message: error_chain(&error) };
                tracing::warn!(
                    pod = pod.name, requested = %requested, error = failed.message,
                    "cannot set the I/O limits of the pod"
                );
                let none = Enforcement::none(pod.clone());
                Enforcement { device: Some(device), requested, trouble: Some(failed), ..none }
            }
        }
    }

    /// Limits a pod, whose cgroup may appear until the deadline.
    async fn limit_when_cgroup_exists(
        &self,
        pod: &str,
        device: DeviceNumber,
        requested: &IoLimits,
        deadline: Instant,
    ) -> Result<LimitsInForce, LimitError> {
        loop {
            match self.limit_io.set(pod, device, requested).await {
                Err(LimitError::NoPod(_)) if Instant::now() < deadline => tokio::time::sleep(POLL_INTERVAL).await,
                limited => return limited,
            }
        }
    }

    /// Stores the state of a pod, and publishes an Event of a trouble that is new.
    async fn remember(&self, id: &str, state: Enforcement) {
        let (pod, trouble) = (state.pod.clone(), state.trouble.clone());
        let is_limited = state.expected(true).is_some();
        let before = self.known.lock().entry(id.to_owned()).or_default().insert(pod.uid.clone(), state);
        if is_limited {
            self.limited.notify_one();
        }
        let before = before.and_then(|before| before.trouble);
        if let Some(trouble) = trouble.filter(|trouble| before.as_ref() != Some(trouble)) {
            self.events.io_limits_not_in_force(&pod, trouble.reason, &trouble.message).await;
        }
    }

    /// Forgets pods that do not have the volume any more.
    fn retain(&self, id: &str, pods: &[PodInfo]) {
        let mut known = self.known.lock();
        if let Some(of_volume) = known.get_mut(id) {
            of_volume.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
            if of_volume.is_empty() {
                known.remove(id);
            }
        }
    }
}

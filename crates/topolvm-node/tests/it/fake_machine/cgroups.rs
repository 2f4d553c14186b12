//! The cgroups of the fake machine's pods.

use std::collections::BTreeMap;

use linux_mount::{DeviceNumber, LimitError, LimitsInForce, PodLimits};
use topolvm_api::IoLimits;

/// The cgroups of all pods, with what a kernel would have of limits of I/O.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    /// Limits by UID of the pod and minor number.
    limits: BTreeMap<(String, u32), IoLimits>,
    /// Number of times that limits were to be set or looked at.
    pub(crate) asked: usize,
    /// Number of times until pods have cgroups.
    pub(crate) missing: usize,
    /// True if the kernel cannot limit I/O.
    pub(crate) lacks_controller: bool,
}

impl Cgroups {
    /// Returns the limits of a pod on its one device, as text.
    pub(crate) fn limits(&self, pod: &str) -> String {
        let of_pod = self.limits.iter().filter(|((uid, _), _)| uid == pod);
        of_pod.map(|(_, limits)| limits.to_string()).collect::<Vec<_>>().join("; ")
    }

    /// Forgets all limits, as when the controller is disabled and enabled again.
    pub(crate) fn forget_limits(&mut self) {
        self.limits.clear();
    }

    pub(super) fn find_lost(&self, mut expected: Vec<PodLimits>) -> Vec<PodLimits> {
        expected
            .retain(|PodLimits { pod, device, limits }| self.limits.get(&(pod.clone(), device.minor)) != Some(limits));
        expected
    }

    pub(super) fn limit_io(
        &mut self,
        pod: &str,
        device: DeviceNumber,
        requested: &IoLimits,
    ) -> Result<LimitsInForce, LimitError> {
        self.asked += 1;
        if self.lacks_controller && !requested.is_empty() {
            return Err(LimitError::NoController);
        }
        if let Some(left) = self.missing.checked_sub(1) {
            self.missing = left;
            return Err(LimitError::NoPod(pod.to_owned()));
        }
        let key = (pod.to_owned(), device.minor);
        if requested.is_empty() {
            self.limits.remove(&key);
        } else {
            self.limits.insert(key, requested.clone());
        }
        Ok(LimitsInForce { limits: requested.clone(), exception: None })
    }
}

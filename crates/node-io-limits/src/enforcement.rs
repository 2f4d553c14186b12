//! The known state of limits: of one pod on one volume, and of all pods that have a volume.

use std::collections::HashMap;

use linux_mount::{DeviceNumber, PodLimits};
use published_pods::PodInfo;
use topolvm_api::{IoLimits, VolumeIoLimits};

/// Reason of an Event on a pod whose annotations cannot be meant.
pub(crate) const INVALID: &str = "InvalidIOLimits";
/// Reason of an Event on a pod whose limits the kernel does not take.
pub(crate) const FAILED: &str = "IOLimitsFailed";

/// An obstacle to limits being in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Reason of the Event.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Limits of a pod on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Enforcement {
    pub(crate) pod: PodInfo,
    /// The device of the volume; `None` where it has not been asked for limits.
    pub(crate) device: Option<DeviceNumber>,
    /// The limits that are to be in force.
    pub(crate) requested: IoLimits,
    /// The limits that the kernel has shown.
    pub(crate) in_force: IoLimits,
    /// Reason for which these are not all that was asked for.
    pub(crate) exception: Option<&'static str>,
    pub(crate) trouble: Option<Trouble>,
}

impl Enforcement {
    /// Makes the state of a pod that neither has limits nor asks for any.
    pub(crate) fn none(pod: PodInfo) -> Self {
        let none = IoLimits::default();
        Self { pod, device: None, requested: none.clone(), in_force: none, exception: None, trouble: None }
    }

    /// Returns the limits that the kernel is to have, unless there are none; of those that failed only if asked to.
    pub(crate) fn expected(&self, with_failed: bool) -> Option<PodLimits> {
        let has_failed = self.in_force != self.requested;
        let device = self.device.filter(|_| !self.requested.is_empty() && (with_failed || !has_failed))?;
        Some(PodLimits { pod: self.pod.uid.clone(), device, limits: self.requested.clone() })
    }

    /// Returns whether there is nothing to report about it.
    pub(crate) fn is_none(&self) -> bool {
        self.requested.is_empty() && self.in_force.is_empty() && self.trouble.is_none()
    }
}

/// States of pods by their UID.
pub(crate) type ByPod = HashMap<String, Enforcement>;

/// Returns the limits of a volume, given the states of its pods.
pub(crate) fn volume_limits(pods: &ByPod) -> VolumeIoLimits {
    pods.values().fold(VolumeIoLimits::default(), |limits, pod| VolumeIoLimits {
        requested: limits.requested.lower(&pod.requested),
        in_force: limits.in_force.lower(&pod.in_force),
    })
}

//! Reads the parameters of StorageClasses. Pure.

use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use topolvm_api::{ApiFlavor, GROWTH_ENABLED};

use crate::minimum_allocation::{MinimumAllocation, VolumeMode, filesystem_parameter};
use crate::volume_classes::VolumeClasses;

/// The parameters of a StorageClass of this driver that decide which space its volumes use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassParameters {
    /// Its device class and its lvcreate option class.
    pub classes: VolumeClasses,
    /// Its filesystem; empty is the node's default.
    pub filesystem: String,
    /// True if its annotation permits automatic growth of claims.
    pub lets_claims_grow: bool,
    /// True if its volumes may be expanded at all.
    pub allows_expansion: bool,
    /// True if its claims wait for the first pod that uses them, so that the scheduler selects their node.
    pub waits_for_consumer: bool,
}

impl ClassParameters {
    /// Reads a StorageClass; `None` when it is of another driver.
    #[must_use]
    pub fn from_class(flavor: ApiFlavor, class: &StorageClass) -> Option<Self> {
        if class.provisioner != flavor.driver_name() {
            return None;
        }
        let parameters = class.parameters.as_ref();
        let parameter = |key| parameters.and_then(|parameters| parameters.get(key)).map_or("", String::as_str);
        let [device_class, option_class] =
            [flavor.device_class_parameter(), flavor.lvcreate_option_class_parameter()].map(parameter);
        Some(Self {
            classes: VolumeClasses::new(device_class, option_class),
            filesystem: filesystem_parameter(parameters.into_iter().flatten()).to_owned(),
            lets_claims_grow: class.annotations().get(GROWTH_ENABLED).is_some_and(|value| value == "true"),
            allows_expansion: class.allow_volume_expansion == Some(true),
            waits_for_consumer: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
        })
    }

    /// Returns the bytes of the smallest volume of the class. It may be used for block volumes, too: the smaller
    /// minimum counts.
    #[must_use]
    pub fn minimum_volume_size(&self, minimums: &MinimumAllocation) -> u64 {
        minimums.block.min(minimums.for_mode(&VolumeMode::Filesystem(self.filesystem.clone())))
    }
}

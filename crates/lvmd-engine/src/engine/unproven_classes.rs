//! The device classes that need a test with LVM before their capacity is published.

use lvm::{State, VolumeGroup};
use lvmd_config::{DeviceClass, DeviceClasses};

use super::group::Group;
use super::refusals::CreationOptions;

/// Marks those classes of a group.
pub(super) fn expect_proofs(group: &Group, classes: &DeviceClasses) {
    let Some(known) = group.cached() else { return };
    let of_group = classes.iter().filter(|class| class.volume_group == group.name);
    for class in of_group.filter(|class| needs_proof(class, &known)) {
        group.refusals.expect_proof(CreationOptions::of_class(&class.name));
        group.refresh_needed.notify_one();
    }
}

/// Returns whether only a test shows that LVM creates volumes in a class: because of its options, or because its thin
/// pool is not active, which LVM activates first if it can.
fn needs_proof(class: &DeviceClass, group: &VolumeGroup) -> bool {
    let pool = class.thin_pool.as_ref().and_then(|pool| pool.find(group));
    class.has_unproven_options || pool.is_some_and(|pool| pool.attr.state() == State::Inactive)
}

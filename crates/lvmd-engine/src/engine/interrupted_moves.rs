//! Repairs the remains of a killed pvmove: suspended devices, and pvmove's own volumes in LVM's metadata.

use lvm::{Host, Lvm, RepairError, is_device_of_move};
use topolvm_runtime::error_chain;

use super::group::Group;

/// Resumes what a killed pvmove has left suspended in the kernel.
pub(super) async fn resume<R: Host>(lvm: &Lvm<R>, group: &Group) {
    let vg = &group.name;
    let resumed = async {
        let devices = group.mapped_devices(&lvm.runner().devices()).await.map_err(RepairError::Devices)?;
        let is_moved = devices.keys().any(|device| is_device_of_move(vg, device));
        if is_moved { lvm.resume_interrupted_moves(vg).await } else { Ok(Vec::new()) }
    };
    match resumed.await {
        Ok(devices) if devices.is_empty() => {}
        Ok(devices) => tracing::warn!(%vg, ?devices, "repaired the devices that a killed pvmove has left"),
        Err(error) => {
            let error = error_chain(&error);
            tracing::error!(%vg, error, "cannot repair what a killed pvmove has left; see `dmsetup info`");
        }
    }
}

/// Removes what a killed pvmove has left in LVM's metadata.
pub(super) async fn clear_up<R: Host>(lvm: &Lvm<R>, group: &Group) {
    let vg = &group.name;
    match lvm.clear_up_interrupted_moves(vg).await {
        Ok(volumes) if volumes.is_empty() => {}
        Ok(volumes) => tracing::warn!(%vg, ?volumes, "cleared up what a killed pvmove has left"),
        Err(error) => {
            let error = error_chain(&error);
            tracing::error!(%vg, error, "cannot clear up what a killed pvmove has left; see `lvs -a`");
        }
    }
}

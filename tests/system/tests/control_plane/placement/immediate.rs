//! Claims of a StorageClass that binds at once: their volumes go where there is room, and their pods follow.

use anyhow::Result;
use serde_json::json;
use system_tests::manifests::storage_class;
use topolvm_api::ApiFlavor::TopoLvm;

use super::bed::{Bed, NEAR, SLOW, device_claim};

/// StorageClass in the group `slow`, which only the node [`NEAR`] has room in.
const CLASS: &str = "at-once";

pub(super) fn place_at_once(bed: &Bed<'_>) -> Result<()> {
    // csi-provisioner prefers one node after the other for names that end in consecutive numbers, whatever they have
    let names = ["at-once-0", "at-once-1"];
    let claims = names.map(|name| device_claim(name, (CLASS, 200)));
    bed.apply(&[&[storage_class(TopoLvm, CLASS, Some(SLOW), true)][..], &claims].concat())?;
    for name in names {
        bed.wait_volume(name, NEAR)?;
        // The webhook counts no volume that is there
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": name}});
        bed.apply(&[bed.pod_with_volumes(name, &[volume], std::iter::empty())])?;
        bed.wait_scheduled(name, NEAR)?;
    }
    names.into_iter().try_for_each(|name| bed.delete_pod(name, &[name]))
}

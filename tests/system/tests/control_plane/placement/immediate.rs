//! Claims of a StorageClass with immediate binding: their volumes go to nodes with space, and their pods follow.

use anyhow::Result;
use serde_json::json;
use system_tests::manifests::storage_class;
use topolvm_api::ApiFlavor::TopoLvm;

use super::setup::{NEAR, SLOW, Setup, device_claim};

/// StorageClass in the group `slow`, in which only the node [`NEAR`] has space.
const CLASS: &str = "at-once";

pub(super) fn place_at_once(setup: &Setup<'_>) -> Result<()> {
    // csi-provisioner prefers the nodes in turn for names that end in consecutive numbers, regardless of their capacity
    let names = ["at-once-0", "at-once-1"];
    let claims = names.map(|name| device_claim(name, (CLASS, 200)));
    setup.apply(&[&[storage_class(TopoLvm, CLASS, Some(SLOW), true)][..], &claims].concat())?;
    for name in names {
        setup.wait_volume(name, NEAR)?;
        // The webhook does not count existing volumes
        let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": name}});
        setup.apply(&[setup.pod_with_volumes(name, &[volume], std::iter::empty())])?;
        setup.wait_scheduled(name, NEAR)?;
    }
    names.into_iter().try_for_each(|name| setup.delete_pod(name, &[name]))
}

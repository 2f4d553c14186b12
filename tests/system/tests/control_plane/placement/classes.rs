//! Pods with volumes of several classes, generic ephemeral volumes, and StorageClasses with `allowedTopologies`.

use anyhow::Result;
use serde_json::json;
use system_tests::manifests::storage_class;
use system_tests::plugin;
use topolvm_api::ApiFlavor::TopoLvm;

use super::bed::{Bed, FAR, HERE, NEAR, SLOW, WAITING, device_claim};
use crate::fixture::LV;

pub(super) fn place_by_class(bed: &Bed<'_>) -> Result<()> {
    // Only one node has space for the first, and it has space for the second too
    bed.apply_pod("both", &[("both-fast", (WAITING, 300)), ("both-slow", (SLOW, 50))])?;
    // Each node has space for one of them
    bed.apply_pod("torn", &[("torn-fast", (WAITING, 300)), ("torn-slow", (SLOW, 300))])?;
    let scratch = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": WAITING,
        "resources": {"requests": {"storage": "300Gi"}},
    }}}});
    bed.apply(&[bed.pod_with_volumes("ephemeral", &[scratch], [(WAITING, 300)].into_iter())])?;
    bed.apply_pod("allowed", &[("allowed", (HERE, 10))])?;
    bed.apply_pod("kept-here", &[("kept-here", (HERE, 200))])?;

    bed.wait_scheduled("both", FAR)?;
    bed.wait_volume("both-fast", FAR)?;
    bed.wait_volume("both-slow", FAR)?;
    bed.wait_scheduled("ephemeral", FAR)?;
    bed.wait_volume("ephemeral-scratch", FAR)?;
    bed.wait_scheduled("allowed", NEAR)?;
    for (pod, claims) in [("torn", &["torn-fast", "torn-slow"][..]), ("kept-here", &["kept-here"])] {
        bed.wait_no_space(pod)?;
        for claim in claims {
            bed.check_pending(claim)?;
            let volume = format!("pvc-{}", bed.fixture.value("pvc", claim, ".metadata.uid")?);
            bed.fixture.wait("--for=delete", LV, &volume)?;
        }
    }
    // It would take the space that later steps free
    bed.delete_pod("torn", &["torn-fast", "torn-slow"])
}

/// Uses StorageClasses that allow nodes by a label which is no topology of the driver: kube-scheduler finds the node by
/// it, and no volume is created, which `doctor` explains.
pub(super) fn refuse_other_keys(bed: &Bed<'_>) -> Result<()> {
    const KEY: &str = "kubernetes.io/hostname";
    let class = |name: &str, is_immediate: bool| {
        let mut class = storage_class(TopoLvm, name, None, is_immediate);
        class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": KEY, "values": [NEAR]}]}]);
        class
    };
    bed.apply(&[class("by-hostname", false), class("by-hostname-at-once", true)])?;
    bed.apply_pod("by-hostname", &[("by-hostname", ("by-hostname", 1))])?;
    bed.apply(&[device_claim("at-once", ("by-hostname-at-once", 1))])?;
    let (theirs, ours) = ("is not in requisite", "contain no topology.topolvm.io/node");
    bed.fixture.wait_event("PersistentVolumeClaim", "by-hostname", "Warning ProvisioningFailed", theirs)?;
    bed.fixture.wait_event("PersistentVolumeClaim", "at-once", "Warning ProvisioningFailed", ours)?;
    for claim in ["by-hostname", "at-once"] {
        bed.check_pending(claim)?;
    }
    for name in ["by-hostname", "by-hostname-at-once"] {
        let found = format!("StorageClass {name}: allowedTopologies has {KEY}");
        plugin::wait_for_findings(&bed.fixture.cluster, "storage-classes", &[(&found, TopoLvm.topology_key())])?;
    }
    bed.delete_pod("by-hostname", &["by-hostname"])?;
    bed.fixture
        .kubectl(&["delete", "pvc/at-once", "storageclass/by-hostname", "storageclass/by-hostname-at-once"])
        .map(drop)
}

//! Pods with volumes of several classes, generic ephemeral volumes, and StorageClasses with `allowedTopologies`.

use anyhow::Result;
use serde_json::json;
use system_tests::manifests::storage_class;
use system_tests::plugin;
use topolvm_api::ApiFlavor::TopoLvm;

use super::setup::{FAR, HERE, NEAR, SLOW, Setup, WAITING, device_claim};
use crate::fixture::LV;

pub(super) fn place_by_class(setup: &Setup<'_>) -> Result<()> {
    // Only one node has space for the first, and it has space for the second too
    setup.apply_pod("both", &[("both-fast", (WAITING, 300)), ("both-slow", (SLOW, 50))])?;
    // Each node has space for one of them
    setup.apply_pod("torn", &[("torn-fast", (WAITING, 300)), ("torn-slow", (SLOW, 300))])?;
    let scratch = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": WAITING,
        "resources": {"requests": {"storage": "300Gi"}},
    }}}});
    setup.apply(&[setup.pod_with_volumes("ephemeral", &[scratch], [(WAITING, 300)].into_iter())])?;
    setup.apply_pod("allowed", &[("allowed", (HERE, 10))])?;
    setup.apply_pod("kept-here", &[("kept-here", (HERE, 200))])?;

    setup.wait_scheduled("both", FAR)?;
    setup.wait_volume("both-fast", FAR)?;
    setup.wait_volume("both-slow", FAR)?;
    setup.wait_scheduled("ephemeral", FAR)?;
    setup.wait_volume("ephemeral-scratch", FAR)?;
    setup.wait_scheduled("allowed", NEAR)?;
    for (pod, claims) in [("torn", &["torn-fast", "torn-slow"][..]), ("kept-here", &["kept-here"])] {
        setup.wait_no_space(pod)?;
        for claim in claims {
            setup.check_pending(claim)?;
            let volume = format!("pvc-{}", setup.fixture.value("pvc", claim, ".metadata.uid")?);
            setup.fixture.wait("--for=delete", LV, &volume)?;
        }
    }
    // It would take the space that later steps free
    setup.delete_pod("torn", &["torn-fast", "torn-slow"])
}

/// Uses StorageClasses that allow nodes by a label which is no topology of the driver: kube-scheduler finds the node by
/// it, and no volume is created, which `doctor` explains.
pub(super) fn refuse_other_keys(setup: &Setup<'_>) -> Result<()> {
    const KEY: &str = "kubernetes.io/hostname";
    let class = |name: &str, is_immediate: bool| {
        let mut class = storage_class(TopoLvm, name, None, is_immediate);
        class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": KEY, "values": [NEAR]}]}]);
        class
    };
    setup.apply(&[class("by-hostname", false), class("by-hostname-at-once", true)])?;
    setup.apply_pod("by-hostname", &[("by-hostname", ("by-hostname", 1))])?;
    setup.apply(&[device_claim("at-once", ("by-hostname-at-once", 1))])?;
    let (theirs, ours) = ("is not in requisite", "contain no topology.topolvm.io/node");
    setup.fixture.wait_event("PersistentVolumeClaim", "by-hostname", "Warning ProvisioningFailed", theirs)?;
    setup.fixture.wait_event("PersistentVolumeClaim", "at-once", "Warning ProvisioningFailed", ours)?;
    for claim in ["by-hostname", "at-once"] {
        setup.check_pending(claim)?;
    }
    for name in ["by-hostname", "by-hostname-at-once"] {
        let found = format!("StorageClass {name}: allowedTopologies has {KEY}");
        plugin::wait_for_findings(&setup.fixture.cluster, "storage-classes", &[(&found, TopoLvm.topology_key())])?;
    }
    setup.delete_pod("by-hostname", &["by-hostname"])?;
    setup
        .fixture
        .kubectl(&["delete", "pvc/at-once", "storageclass/by-hostname", "storageclass/by-hostname-at-once"])
        .map(drop)
}

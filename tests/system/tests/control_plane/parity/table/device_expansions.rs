//! Expansions of volumes without a filesystem, which need no kubelet.

use serde_json::{Value, json};

use super::binding::{pod, service_account};
use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{ALPHA, Compared, Scenario, Step, Target, Until, on, parameters};

/// Claims of one scenario.
const FIVE: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Begins a scenario with a StorageClass whose volumes may grow, changed by a patch.
pub(super) fn expandable(name: &'static str, patch: Value) -> Scenario {
    Scenario::with_class(name, merge(json!({"allowVolumeExpansion": true}), patch)).comparing(Compared::Expansions)
}

/// Adds a bound claim of a device on a node.
pub(super) fn with_device_on(scenario: Scenario, node: &str, claim: &'static str) -> Scenario {
    scenario.claim(claim, [on(node), json!({"spec": {"volumeMode": "Block"}})]).wait(Kind::Claim, claim, Until::Bound)
}

/// Begins a scenario with a bound claim `a` of a device.
pub(super) fn device(name: &'static str) -> Scenario {
    with_device_on(expandable(name, json!({})), ALPHA, "a")
}

/// Returns a patch of a PersistentVolume with this size.
pub(super) fn capacity(bytes: &str) -> Value {
    json!({"spec": {"capacity": {"storage": bytes}}})
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let grows = |name, bytes: &str, expected| device(name).request("a", bytes).expanded("a", expected);
    let annotated = |name, annotation: Value| {
        let claim = json!({"metadata": {"annotations": annotation}, "spec": {"volumeMode": "Block"}});
        expandable(name, json!({})).claim("a", [on(ALPHA), claim]).wait(Kind::Claim, "a", Until::Bound)
    };
    let in_use = |name| {
        expandable(name, json!({}))
            .step(service_account())
            .claim("a", [json!({"spec": {"volumeMode": "Block"}})])
            .create(Kind::Pod, "a", pod("a", ALPHA))
            .wait(Kind::Claim, "a", Until::Bound)
            .wait(Kind::Pod, "a", Until::Field("/spec/nodeName", ALPHA.into()))
    };
    let five = FIVE
        .into_iter()
        .fold(expandable("devices-grow-at-once", json!({})), |scenario, claim| with_device_on(scenario, ALPHA, claim));
    let together = FIVE.into_iter().fold(five, |scenario, claim| scenario.request(claim, "128Mi"));
    vec![
        grows("device-grows", "128Mi", "128Mi"),
        device("device-grows-twice")
            .request("a", "128Mi")
            .expanded("a", "128Mi")
            .request("a", "1Gi")
            .expanded("a", "1Gi"),
        grows("device-grows-by-a-byte", "67108865", "68Mi"),
        grows("device-grows-to-an-odd-size", "100000001", "96Mi"),
        grows("device-grows-to-a-decimal-size", "200M", "192Mi"),
        grows("device-grows-to-a-fraction", "0.1Gi", "104Mi"),
        // The first expansion has an end before the second is requested, or not
        device("device-grows-twice-at-once").request("a", "128Mi").request("a", "256Mi").expanded("a", "256Mi"),
        with_device_on(
            expandable("thin-device-grows", parameters(&json!({"topolvm.io/device-class": "thin"}))),
            ALPHA,
            "a",
        )
        .request("a", "128Mi")
        .expanded("a", "128Mi"),
        FIVE.into_iter()
            .fold(together, |scenario, claim| {
                scenario.wait(Kind::Claim, claim, Until::Field("/status/capacity/storage", "128Mi".into()))
            })
            .record(),
        expandable("device-of-one-pod-grows", json!({}))
            .claim("a", [on(ALPHA), json!({"spec": {"volumeMode": "Block", "accessModes": ["ReadWriteOncePod"]}})])
            .wait(Kind::Claim, "a", Until::Bound)
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        in_use("device-in-use-grows").request("a", "128Mi").expanded("a", "128Mi"),
        in_use("claim-grows-while-deleted").delete(Kind::Claim, "a").request("a", "128Mi").expanded("a", "128Mi"),
        device("volume-grows-while-deleted")
            .step(Step::Delete(Target::VolumeOf("a")))
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        // Annotations of in-tree volumes
        annotated(
            "annotation-of-another-resizer",
            json!({"volume.kubernetes.io/storage-resizer": "kubernetes.io/aws-ebs"}),
        )
        .request("a", "128Mi")
        .expanded("a", "128Mi"),
        annotated("annotation-of-the-kubelet", json!({"volume.kubernetes.io/node-expansion-not-required": "false"}))
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        // A PersistentVolume that an administrator has changed
        device("volume-has-the-requested-size")
            .patch_volume("a", capacity("128Mi"))
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        device("volume-has-more-than-requested")
            .patch_volume("a", capacity("256Mi"))
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        device("volume-has-less-than-the-claim")
            .patch_volume("a", capacity("32Mi"))
            .request("a", "128Mi")
            .expanded("a", "128Mi"),
        // As API servers before Kubernetes 1.32 leave it
        device("condition-of-the-kubelet-without-a-state")
            .patch_status(
                "a",
                json!({"status": {"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}}),
            )
            .patch_volume("a", capacity("128Mi"))
            .barrier()
            .request("a", "128Mi")
            .barrier()
            .record(),
        // Another client changes the claim meanwhile
        device("claim-labelled-while-device-grows")
            .request("a", "128Mi")
            .patch(Kind::Claim, "a", json!({"metadata": {"labels": {"app": "shop"}}}))
            .expanded("a", "128Mi")
            .patch(Kind::Claim, "a", json!({"metadata": {"labels": {"app": "bank"}}}))
            .barrier()
            .record(),
        device("claim-recreated")
            .request("a", "128Mi")
            .expanded("a", "128Mi")
            .deleted("a")
            .claim("a", [on(ALPHA), json!({"spec": {"volumeMode": "Block"}})])
            .wait(Kind::Claim, "a", Until::Bound)
            .request("a", "192Mi")
            .wait(Kind::Claim, "a", Until::Field("/status/capacity/storage", "192Mi".into())),
    ]
}

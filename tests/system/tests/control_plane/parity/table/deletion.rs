//! Deletion of claims and volumes, reclaim policies and finalizers.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, Scenario, Step, Target, Until, VOLUME, on};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const PHASE: &str = "/status/phase";

pub(super) fn scenarios() -> Vec<Scenario> {
    let bound_on = |name, node: &str, class| Scenario::with_class(name, class).claim("a", [on(node)]).bound("a");
    let bound = |name, class| bound_on(name, ALPHA, class);
    let delete = || json!({"reclaimPolicy": "Delete"});
    let retain = || json!({"reclaimPolicy": "Retain"});
    let reclaim = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    let delete_volume = |scenario: Scenario| scenario.step(Step::Delete(Target::VolumeOf("a")));
    let released = || Until::Field(PHASE, "Released".into());
    let is_being_deleted = |scenario: Scenario| {
        scenario.wait_volume("a", Until::Contains("/metadata/finalizers", "kubernetes.io/pv-protection".into()))
    };
    let without_finalizer = || json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}});
    vec![
        bound("reclaim-retain", retain()).delete(Kind::Claim, "a").wait_volume("a", released()).barrier().record(),
        delete_volume(bound("retained-volume-deleted", retain()).delete(Kind::Claim, "a").wait_volume("a", released()))
            .wait_volume("a", Until::Gone)
            .barrier()
            .record(),
        bound("reclaim-changed-to-retain", delete())
            .patch_volume("a", reclaim("Retain"))
            .wait_volume("a", Until::Field("/metadata/finalizers", json!(["kubernetes.io/pv-protection"])))
            .record()
            .delete(Kind::Claim, "a")
            .wait_volume("a", released())
            .barrier()
            .record(),
        bound("reclaim-changed-to-delete", retain())
            .patch_volume("a", reclaim("Delete"))
            .wait_volume("a", Until::Contains("/metadata/finalizers", FINALIZER.into()))
            .record()
            .deleted("a"),
        bound("reclaim-changed-after-release", retain())
            .delete(Kind::Claim, "a")
            .wait_volume("a", released())
            .patch_volume("a", reclaim("Delete"))
            .gone("a"),
        is_being_deleted(delete_volume(bound("volume-deleted-first", delete()))).barrier().record().deleted("a"),
        delete_volume(bound("volume-deleted-at-once", delete())).deleted("a"),
        bound("finalizer-removed", delete())
            .patch_volume("a", without_finalizer())
            .wait_volume("a", Until::Contains("/metadata/finalizers", FINALIZER.into()))
            .record()
            .deleted("a"),
        bound("further-finalizer", delete())
            .patch_volume(
                "a",
                json!({"metadata": {"finalizers": [
                    "example.com/keep", FINALIZER, "kubernetes.io/pv-protection",
                ]}}),
            )
            .delete(Kind::Claim, "a")
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Gone))
            .wait_volume("a", Until::Field("/metadata/finalizers", json!(["example.com/keep"])))
            .record()
            .patch_volume("a", json!({"metadata": {"finalizers": []}}))
            .gone("a"),
        bound("volume-attachment-exists", delete()).create(Kind::VolumeAttachment, "$SELF", attachment()).deleted("a"),
        bound("provisioned-by-removed", delete())
            .patch_volume("a", json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": null}}}))
            .deleted("a"),
        bound("provisioned-by-another-driver", delete())
            .patch_volume(
                "a",
                json!({"metadata": {"annotations": {
                    "pv.kubernetes.io/provisioned-by": "other.example.com",
                }}}),
            )
            .delete(Kind::Claim, "a")
            .wait_volume("a", released())
            .barrier()
            .record(),
        bound("deletion-secret-missing", delete())
            .patch_volume(
                "a",
                json!({"metadata": {"annotations": {
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "missing",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "$SELF",
                }}}),
            )
            .deleted("a"),
        bound("deletion-annotations-removed", delete())
            .patch_volume(
                "a",
                json!({"metadata": {"annotations": {
                    "volume.kubernetes.io/provisioner-deletion-secret-name": null,
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": null,
                }}}),
            )
            .deleted("a"),
        Scenario::with_class("deletion-waits-for-agent", delete())
            .node("slow-3", 1, 0)
            .claim("a", [on("slow-3")])
            .bound("a")
            .step(Step::StopAgent("slow-3"))
            .delete(Kind::Claim, "a")
            .wait_volume("a", Until::Event("VolumeFailedDelete", ""))
            .record()
            .step(Step::StartAgent("slow-3"))
            .gone("a"),
        bound("logical-volume-deleted-before", delete())
            .step(Step::Delete(Target::LogicalVolumeOf("a")))
            .delete(Kind::Claim, "a")
            .gone("a"),
        bound("claim-with-finalizer", delete())
            .patch(
                Kind::Claim,
                "a",
                json!({"metadata": {"finalizers": [
                    "example.com/keep", "kubernetes.io/pvc-protection",
                ]}}),
            )
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", Until::Field("/metadata/finalizers", json!(["example.com/keep"])))
            .barrier()
            .record()
            .patch(Kind::Claim, "a", json!({"metadata": {"finalizers": []}}))
            .gone("a"),
    ]
}

fn attachment() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": ""},
        "spec": {"attacher": "topolvm.io", "nodeName": ALPHA, "source": {"persistentVolumeName": VOLUME}},
    })
}

//! PersistentVolumes that a user writes, and claims that name their volume.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, SELF, Scenario, Step, Target, Until, on};

/// Finalizer that the provisioner adds to bound volumes with the reclaim policy `Delete`.
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, json!({}));
    let named = || json!({"spec": {"volumeName": SELF}});
    vec![
        class("volume-name-missing").claim("a", [on(ALPHA), named()]).barrier().record(),
        class("volume-by-hand")
            .create(Kind::Volume, SELF, volume("topolvm.io", "Retain", &json!({})))
            .claim("a", [named()])
            .bound("a")
            .delete(Kind::Claim, "a")
            .wait(Kind::Volume, SELF, Until::Field("/status/phase", "Released".into()))
            .barrier()
            .record(),
        class("volume-by-hand-deleted")
            .create(Kind::Volume, SELF, volume("topolvm.io", "Delete", &json!({})))
            .claim("a", [named()])
            .wait(Kind::Volume, SELF, Until::Contains("/metadata/finalizers", FINALIZER.into()))
            .bound("a")
            .delete(Kind::Claim, "a")
            .wait(Kind::Volume, SELF, Until::Gone)
            .record(),
        class("volume-by-hand-of-another-driver")
            .create(Kind::Volume, SELF, volume("other.example.com", "Delete", &json!({})))
            .claim("a", [named()])
            .bound("a")
            .delete(Kind::Claim, "a")
            .wait(Kind::Volume, SELF, Until::Field("/status/phase", "Released".into()))
            .barrier()
            .record(),
        class("volume-reserved-for-claim")
            .create(
                Kind::Volume,
                SELF,
                volume(
                    "topolvm.io",
                    "Retain",
                    &json!({
                        "spec": {"claimRef": {"namespace": SELF, "name": "a"}},
                    }),
                ),
            )
            .claim("a", [])
            .bound("a"),
        class("volume-available")
            .create(Kind::Volume, SELF, volume("topolvm.io", "Retain", &json!({})))
            .wait(Kind::Volume, SELF, Until::Field("/status/phase", "Available".into()))
            .claim("a", [on(ALPHA)])
            .bound("a"),
        // A volume with the name of the one that would be made
        class("volume-of-the-same-name")
            .claim("a", [])
            .step(foreign_of("a"))
            .step(Step::Wait(Target::VolumeOf("a"), Until::Field("/status/phase", "Available".into())))
            .select("a", ALPHA)
            .barrier()
            .record(),
        class("volume-of-the-same-name-meanwhile")
            .node("slow-15", 1, 0)
            .step(Step::StopAgent("slow-15"))
            .claim("a", [on("slow-15")])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Exists))
            .step(foreign_of("a"))
            .step(Step::Wait(Target::VolumeOf("a"), Until::Field("/status/phase", "Available".into())))
            .step(Step::StartAgent("slow-15"))
            .wait(Kind::Claim, "a", Until::Reported)
            .barrier(),
        class("selector")
            .claim("a", [on(ALPHA), json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}})])
            .failed("a", "elector"),
    ]
}

/// Returns the step that creates a PersistentVolume of another driver with the name of that of a claim.
fn foreign_of(claim: &'static str) -> Step {
    let volume = volume("other.example.com", "Retain", &json!({"spec": {"storageClassName": "other"}}));
    Step::Create(Target::VolumeOf(claim), volume)
}

/// Returns a PersistentVolume of a driver, changed by a patch.
pub(super) fn volume(driver: &str, reclaim: &str, patch: &Value) -> Value {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": ""},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "64Mi"}, "storageClassName": SELF,
            "persistentVolumeReclaimPolicy": reclaim,
            "csi": {"driver": driver, "volumeHandle": SELF},
        },
    });
    crate::parity::merge::merge(volume, patch.clone())
}

//! Finalizers of claims, and deletion of pods that wait for deleted claims.

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::assets;
use testbed::topolvm::manifests;

use crate::Body;
use crate::fixture::{CLASS, Fixture};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("finalizers_of_old_versions_are_removed_from_claims", remove_obsolete_finalizers),
    ("statefulset_gets_a_new_claim_and_pod_after_claim_deletion", delete_claim_of_stateful_set),
    ("pod_is_annotated_when_its_filesystem_resize_is_pending", nudge_pods),
];

fn remove_obsolete_finalizers(fixture: &Fixture) -> Result<()> {
    fixture.create_claim("old", &json!({}), &["topolvm.io/pvc", "other.example/pvc", "topolvm.cybozu.com/pvc"])?;
    let left = r#"["other.example/pvc","kubernetes.io/pvc-protection"]"#;
    fixture.wait_value("pvc", "old", ".metadata.finalizers", left)?;
    fixture.kubectl(&["patch", "pvc", "old", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    fixture.kubectl(&["delete", "pvc", "old", "--timeout=180s"])?;
    fixture.check_rights()
}

/// Deletes the claim of a StatefulSet's pod, which stays pending because no Node exists, as after its node was deleted.
fn delete_claim_of_stateful_set(fixture: &Fixture) -> Result<()> {
    // The rights of the component for this flag; only here, so that another test can check that the controller does not
    // have them otherwise
    let rights = manifests().join("components/pvc-finalizer/rbac.yaml");
    let rights = rights.to_string_lossy();
    fixture.kubectl(&["apply", "--server-side", "-f", &rights])?;
    let done = recreate_stateful_set_pod(fixture);
    fixture.kubectl(&["delete", "-f", &rights])?;
    done
}

fn recreate_stateful_set_pod(fixture: &Fixture) -> Result<()> {
    fixture.with_controller(&["--pvc-finalizer"], || {
        let finalizer = json!({"name": "data", "finalizers": ["topolvm.io/pvc"]});
        fixture.apply(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": "default"},
            "spec": {
                "serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
                "template": {
                    "metadata": {"labels": {"app": "db"}},
                    "spec": {"containers": [
                        {"name": "db", "image": "db", "volumeMounts": [{"name": "data", "mountPath": "/d"}]},
                    ]},
                },
                "volumeClaimTemplates": [{"metadata": finalizer, "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                    "resources": {"requests": {"storage": "1Gi"}},
                }}],
            },
        }))?;
        fixture.wait("--for=create", "pod", "db-0")?;
        let old = [fixture.value("pvc", "data-db-0", ".metadata.uid")?, fixture.value("pod", "db-0", ".metadata.uid")?];
        fixture.kubectl(&["delete", "pvc", "data-db-0", "--timeout=180s"])?;
        fixture.wait("--for=create", "pvc", "data-db-0")?;
        fixture.wait("--for=create", "pod", "db-0")?;
        let new = [fixture.value("pvc", "data-db-0", ".metadata.uid")?, fixture.value("pod", "db-0", ".metadata.uid")?];
        ensure!(old[0] != new[0], "the claim is the same");
        ensure!(old[1] != new[1], "the pod still waits for the claim that is gone");
        fixture.wait_event("Pod", "db-0", "Normal ClaimGone", "data-db-0")?;
        fixture.check_rights()?;
        fixture.kubectl(&["delete", "statefulset", "db", "--timeout=180s"])?;
        fixture.kubectl(&["delete", "pod", "db-0", "--ignore-not-found", "--timeout=180s"])?;
        fixture.kubectl(&["delete", "pvc", "data-db-0", "--timeout=180s"]).map(drop)
    })
}

fn nudge_pods(fixture: &Fixture) -> Result<()> {
    fixture.create_claim("growing", &json!({"volume.kubernetes.io/storage-provisioner": "topolvm.io"}), &[])?;
    fixture.apply(&system_tests::manifests::pod(
        "grower",
        "growing",
        system_tests::manifests::VolumeMode::Filesystem,
    ))?;
    // The condition has the same time in both rounds, which is before the time of the first annotation
    let mut last = String::new();
    // The oldest Kubernetes has no allocated resources: there the size is the request of the claim, which does not
    // change
    let sizes = if assets::is_oldest_kubernetes() { &["2Gi"][..] } else { &["2Gi", "3Gi"] };
    for size in sizes {
        let pending = json!({"status": {
            "allocatedResources": {"storage": size},
            "conditions": [{
                "type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }});
        let patch = pending.to_string();
        fixture.kubectl(&["patch", "pvc", "growing", "--subresource=status", "--type=merge", "-p", &patch])?;
        fixture.cluster.ready("apiserver", || {
            let now =
                fixture.value("pod", "grower", r".metadata.annotations.topolvm\.io/last-resizefs-requested-at")?;
            ensure!(!now.is_empty() && now != last, "the pod is not annotated for a filesystem of {size}: {now:?}");
            last = now;
            Ok(())
        })?;
    }
    fixture.kubectl(&["delete", "pod", "grower", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "pvc", "growing", "--timeout=180s"])?;
    fixture.check_rights()
}

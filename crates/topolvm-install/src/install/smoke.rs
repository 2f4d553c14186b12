//! Smoke test: a claim and a pod that writes to it, in a temporary namespace.

use std::time::Duration;

use cli_runtime::request;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::runtime::wait::conditions;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::apply::{create, wait_until};
use super::rollout::find_pod_problem;
use super::{InstallError, print_progress, temporary};

/// Name of the claim and of the pod.
const NAME: &str = "smoke-test";
/// XFS makes no smaller one than 300 MiB.
const SIZE: &str = "512Mi";
/// Writes, and reads what it has written. A shell is all that it needs.
const SCRIPT: &str = "echo written >/data/smoke-test && read line </data/smoke-test && [ \"$line\" = written ]";

/// Makes a volume of the StorageClass, uses it and removes it again.
pub(crate) async fn test(
    client: &Client,
    storage_class: &str,
    image: &str,
    limit: Duration,
) -> Result<(), InstallError> {
    print_progress(&format!(
        "smoke test: creating a claim of {SIZE} with the StorageClass {storage_class}, and a pod that writes to it"
    ));
    let volume = temporary::within(client, "topolvm-smoke-test-", "restricted", async |namespace: &str| {
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        create(&claims, claim(storage_class)).await?;
        create(&pods, pod(image)).await?;
        let waited = wait_until(pods.clone(), NAME, has_ended, limit, "the pod of the smoke test".to_owned()).await;
        match waited {
            Ok(Some(pod)) if phase(&pod) == "Succeeded" => {}
            Ok(_) | Err(InstallError::Slow { .. }) => {
                return Err(InstallError::Smoke(reasons(client, &pods, namespace).await));
            }
            Err(error) => return Err(error),
        }
        let claim = request::get(&claims, NAME).await?;
        Ok(claim.and_then(|claim| claim.spec?.volume_name).unwrap_or_default())
    });
    wait_for_removal(client, &volume.await?, limit).await?;
    print_progress("smoke test passed: the volume was created, written to and removed");
    Ok(())
}

/// Waits until the PersistentVolume of a deleted claim has gone, which it does only after its LV.
async fn wait_for_removal(client: &Client, volume: &str, limit: Duration) -> Result<(), InstallError> {
    if volume.is_empty() {
        return Err(InstallError::Smoke(vec!["the claim has no volume although a pod uses it".to_owned()]));
    }
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let found = request::get(&volumes, volume).await?;
    if let Some(uid) = found.and_then(|found| found.metadata.uid) {
        let what = format!("the deletion of the PersistentVolume {volume}");
        wait_until(volumes, volume, conditions::is_deleted(&uid), limit, what).await?;
    }
    Ok(())
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn has_ended(pod: Option<&Pod>) -> bool {
    pod.is_none_or(|pod| ["Succeeded", "Failed"].contains(&phase(pod)))
}

/// Returns the reason for which the pod does not run, and the warnings among the Events of its namespace.
async fn reasons(client: &Client, pods: &Api<Pod>, namespace: &str) -> Vec<String> {
    let pod = pods.get_opt(NAME).await.ok().flatten();
    let mut reasons: Vec<_> =
        pod.as_ref().and_then(find_pod_problem).map(|problem| problem.to_string()).into_iter().collect();
    let events = Api::<Event>::namespaced(client.clone(), namespace);
    let warnings = events.list(&ListParams::default().fields("type=Warning")).await;
    reasons.extend(warnings.into_iter().flatten().map(|event| {
        let about = event.involved_object;
        let (kind, name) = (about.kind.unwrap_or_default(), about.name.unwrap_or_default());
        format!("{kind} {name}: {}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
    }));
    reasons.dedup();
    if reasons.is_empty() {
        let phase = pod.as_ref().map_or("gone", phase);
        reasons.push(format!("the pod is {phase}; see kubectl topolvm events -A, and the logs of topolvm-node"));
    }
    reasons
}

fn claim(storage_class: &str) -> Value {
    json!({
        "metadata": { "name": NAME },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": storage_class,
            "resources": { "requests": { "storage": SIZE } },
        },
    })
}

/// Returns a pod that the pod security level `restricted` allows.
fn pod(image: &str) -> Value {
    json!({
        "metadata": { "name": NAME },
        "spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": NAME, "image": image, "command": ["/bin/sh", "-c", SCRIPT],
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": NAME } }],
        },
    })
}

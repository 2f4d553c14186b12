//! Builds the PersistentVolume of a volume that was created for a claim. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume,
    PersistentVolumeSpec, SecretReference, VolumeNodeAffinity,
};
use kube::Resource as _;
use kube::api::ObjectMeta;
use topolvm_api::format_bytes;
use topolvm_proto::csi::{Topology, Volume};

use crate::attempt::Attempt;
use crate::known_volume::{DELETION_SECRET, PROVISIONED_BY, VOLUME_FINALIZER};
use crate::volume_request::is_block;

/// The volume attribute that names the provisioner.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
/// Annotations with the Secret for a change of the VolumeAttributesClass: name and namespace.
const MODIFY_SECRET: [&str; 2] =
    ["volume.kubernetes.io/controller-modify-secret-name", "volume.kubernetes.io/controller-modify-secret-namespace"];

/// Builds the PersistentVolume. `identity` is that of this provisioner.
pub(crate) fn build_persistent_volume(
    driver: &str,
    identity: &str,
    attempt: &Attempt,
    volume: Volume,
) -> PersistentVolume {
    let (class, secrets) = (&attempt.class, attempt.secrets.clone());
    let spec = attempt.claim.spec.clone().unwrap_or_default();
    let requested = attempt.request.capacity_range.map_or(0, |range| range.required_bytes);
    // The driver need not know the size
    let bytes = if volume.capacity_bytes == 0 { requested } else { volume.capacity_bytes };
    let is_deleted = class.reclaim_policy.as_deref().is_none_or(|policy| policy == "Delete");
    let mut attributes: BTreeMap<_, _> = volume.volume_context.into_iter().collect();
    attributes.entry(IDENTITY.to_owned()).or_insert_with(|| identity.to_owned());
    let mut claim_ref = attempt.claim.object_ref(&());
    claim_ref.resource_version.clone_from(&attempt.claim.metadata.resource_version);
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(attempt.request.name.clone()),
            annotations: Some(annotations(driver, attempt)),
            finalizers: is_deleted.then(|| vec![VOLUME_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some([("storage".to_owned(), format_bytes(u64::try_from(bytes).unwrap_or_default()))].into()),
            claim_ref: Some(claim_ref),
            csi: Some(CSIPersistentVolumeSource {
                driver: driver.to_owned(),
                volume_handle: volume.volume_id,
                volume_attributes: Some(attributes),
                fs_type: Some(attempt.filesystem.clone()).filter(|name| !name.is_empty() && !is_block(&attempt.claim)),
                controller_publish_secret_ref: secrets.controller_publish,
                node_stage_secret_ref: secrets.node_stage,
                node_publish_secret_ref: secrets.node_publish,
                controller_expand_secret_ref: secrets.controller_expand,
                node_expand_secret_ref: secrets.node_expand,
                read_only: None,
            }),
            mount_options: class.mount_options.clone(),
            node_affinity: node_affinity(&volume.accessible_topology),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: Some(attempt.class_name()),
            volume_attributes_class_name: spec.volume_attributes_class_name.filter(|name| !name.is_empty()),
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

fn annotations(driver: &str, attempt: &Attempt) -> BTreeMap<String, String> {
    let parts = |secret: Option<&SecretReference>| {
        let part = |part: fn(&SecretReference) -> &Option<String>| {
            secret.and_then(|secret| part(secret).clone()).unwrap_or_default()
        };
        [part(|secret| &secret.name), part(|secret| &secret.namespace)]
    };
    let deletion = DELETION_SECRET.into_iter().zip(parts(attempt.secrets.provisioner.as_ref()));
    let modify = attempt.secrets.controller_modify.as_ref();
    let modify = modify.into_iter().flat_map(|secret| MODIFY_SECRET.into_iter().zip(parts(Some(secret))));
    let provisioned_by = (PROVISIONED_BY, driver.to_owned());
    let all = deletion.chain(modify).chain([provisioned_by]);
    all.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the nodes from which the volume can be reached; all where none are named.
fn node_affinity(topologies: &[Topology]) -> Option<VolumeNodeAffinity> {
    let term = |topology: &Topology| {
        let segments: BTreeMap<_, _> = topology.segments.iter().collect();
        let requirement = |(key, value): (&String, &String)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".to_owned(),
            values: Some(vec![value.clone()]),
        };
        NodeSelectorTerm {
            match_expressions: Some(segments.into_iter().map(requirement).collect()),
            ..NodeSelectorTerm::default()
        }
    };
    let named = topologies.iter().filter(|topology| !topology.segments.is_empty());
    let node_selector_terms: Vec<_> = named.map(term).collect();
    let required = NodeSelector { node_selector_terms };
    (!required.node_selector_terms.is_empty()).then_some(VolumeNodeAffinity { required: Some(required) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use topolvm_proto::csi::{CapacityRange, CreateVolumeRequest};
    use topolvm_testkit::fixtures::storage_class;

    use super::*;
    use crate::attempt::VolumeSecrets;

    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn attempt(spec: Value) -> Attempt {
        let claim = json!({"metadata": {"name": "data", "namespace": "web", "uid": "1", "resourceVersion": "7"},
                           "spec": spec});
        let mut class = storage_class("fast").build();
        class.reclaim_policy = Some("Delete".to_owned());
        class.mount_options = Some(vec!["noatime".to_owned()]);
        let range = CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 };
        let request = CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            capacity_range: Some(range),
            ..CreateVolumeRequest::default()
        };
        Attempt {
            claim: Arc::new(serde_json::from_value(claim).unwrap()),
            class: Arc::new(class),
            filesystem: "xfs".to_owned(),
            secrets: VolumeSecrets::default(),
            request,
        }
    }

    fn volume() -> Volume {
        Volume {
            volume_id: "id-1".to_owned(),
            capacity_bytes: 2 << 30,
            volume_context: [("a".to_owned(), "b".to_owned())].into(),
            accessible_topology: vec![Topology {
                segments: [("topology.topolvm.io/node".to_owned(), "n1".to_owned())].into(),
            }],
            ..Volume::default()
        }
    }

    fn build(attempt: &Attempt, volume: Volume) -> Value {
        serde_json::to_value(build_persistent_volume("topolvm.io", "me", attempt, volume)).unwrap()
    }

    #[test]
    fn persistent_volume_is_that_of_external_provisioner() {
        let built = build(&attempt(json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem"})), volume());
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-1",
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": "topolvm.io",
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "2Gi"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "web", "name": "data",
                    "uid": "1", "resourceVersion": "7",
                },
                "csi": {
                    "driver": "topolvm.io", "volumeHandle": "id-1", "fsType": "xfs",
                    "volumeAttributes": {"a": "b", "storage.kubernetes.io/csiProvisionerIdentity": "me"},
                },
                "mountOptions": ["noatime"],
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]},
                ]}]}},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "fast",
                "volumeMode": "Filesystem",
            },
        });
        assert_eq!(built, expected);
    }

    #[test]
    fn persistent_volume_of_unknown_size_has_the_requested_one() {
        let built = build(&attempt(json!({})), Volume { volume_id: "id-1".to_owned(), ..Volume::default() });
        assert_eq!(
            (&built["spec"]["capacity"]["storage"], &built["spec"]["nodeAffinity"]),
            (&json!("1Gi"), &Value::Null)
        );
    }

    #[test]
    fn persistent_volume_of_a_device_has_no_filesystem() {
        let built = build(&attempt(json!({"volumeMode": "Block"})), volume());
        assert_eq!((&built["spec"]["csi"]["fsType"], &built["spec"]["volumeMode"]), (&Value::Null, &json!("Block")));
    }

    #[test]
    fn retained_persistent_volume_has_no_finalizer() {
        let mut attempt = attempt(json!({"volumeAttributesClassName": "gold"}));
        Arc::make_mut(&mut attempt.class).reclaim_policy = Some("Retain".to_owned());
        let built = build(&attempt, volume());
        assert_eq!(built["metadata"]["finalizers"], Value::Null);
        assert_eq!(built["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(built["spec"]["volumeAttributesClassName"], "gold");
    }

    #[test]
    fn persistent_volume_names_the_secrets_of_the_class() {
        let secret =
            |name: &str| Some(SecretReference { name: Some(name.to_owned()), namespace: Some("secrets".to_owned()) });
        let secrets = VolumeSecrets {
            provisioner: secret("a"),
            node_stage: secret("b"),
            controller_modify: secret("c"),
            ..VolumeSecrets::default()
        };
        let built = build(&Attempt { secrets, ..attempt(json!({})) }, volume());
        let annotations = &built["metadata"]["annotations"];
        assert_eq!(annotations["volume.kubernetes.io/provisioner-deletion-secret-name"], "a");
        assert_eq!(annotations["volume.kubernetes.io/controller-modify-secret-name"], "c");
        assert_eq!(built["spec"]["csi"]["nodeStageSecretRef"], json!({"name": "b", "namespace": "secrets"}));
        assert_eq!(built["spec"]["csi"]["nodePublishSecretRef"], Value::Null);
    }
}

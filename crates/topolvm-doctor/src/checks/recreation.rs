//! Commands that recreate a StorageClass: most of its fields cannot be changed.

use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use topolvm_api::ApiFlavor;

use crate::shell;

/// Annotation with which `kubectl apply` remembers what it has applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A change of a StorageClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Another device class.
    DeviceClass(String),
    /// Without this parameter.
    Without(String),
    /// Volumes wait for their pods.
    WaitForPods,
}

/// Returns the command that recreates a StorageClass with all these changes: each replaces the whole object, so that
/// one command for each would undo the others.
pub(super) fn recreate(flavor: ApiFlavor, class: &StorageClass, changes: &[Change]) -> String {
    let mut class = class.clone();
    let mut annotations = class.metadata.annotations.unwrap_or_default();
    let _applied = annotations.remove(LAST_APPLIED);
    class.metadata = ObjectMeta {
        name: class.metadata.name,
        labels: class.metadata.labels,
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    };
    let parameters = class.parameters.get_or_insert_default();
    for change in changes {
        match change {
            Change::DeviceClass(name) => {
                parameters.insert(flavor.device_class_parameter().to_owned(), name.clone());
            }
            Change::Without(key) => drop(parameters.remove(key)),
            Change::WaitForPods => class.volume_binding_mode = Some("WaitForFirstConsumer".to_owned()),
        }
    }
    // Of strings, lists and maps JSON can always be made
    shell::replace(&serde_json::to_value(&class).unwrap_or_default())
}

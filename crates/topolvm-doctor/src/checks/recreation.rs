//! Commands that make a StorageClass anew: most of its fields cannot be changed.

use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use topolvm_api::ApiFlavor;

use crate::shell;

/// Annotation with which `kubectl apply` remembers what it has applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns the command that makes a StorageClass anew with a device class.
pub(super) fn with_device_class(flavor: ApiFlavor, class: &StorageClass, device_class: &str) -> String {
    recreate(class, |class| {
        let parameters = class.parameters.get_or_insert_default();
        parameters.insert(flavor.device_class_parameter().to_owned(), device_class.to_owned());
    })
}

/// Returns the command that makes a StorageClass anew without a parameter.
pub(super) fn without_parameter(class: &StorageClass, key: &str) -> String {
    recreate(class, |class| {
        let parameters = class.parameters.get_or_insert_default();
        let _value = parameters.remove(key);
    })
}

/// Returns the command that makes a StorageClass anew whose volumes wait for their pods.
pub(super) fn waiting_for_pods(class: &StorageClass) -> String {
    recreate(class, |class| class.volume_binding_mode = Some("WaitForFirstConsumer".to_owned()))
}

fn recreate(class: &StorageClass, change: impl FnOnce(&mut StorageClass)) -> String {
    let mut class = class.clone();
    let mut annotations = class.metadata.annotations.unwrap_or_default();
    let _applied = annotations.remove(LAST_APPLIED);
    class.metadata = ObjectMeta {
        name: class.metadata.name,
        labels: class.metadata.labels,
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    };
    change(&mut class);
    // Of strings, lists and maps JSON can always be made
    shell::replace(&serde_json::to_value(&class).unwrap_or_default())
}

//! Volumes and claims in the device class of a trial, which block its removal.

use cli_runtime::objects::Objects;
use cli_runtime::request;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::install::InstallError;
use crate::install::loop_file::{DEVICE_CLASS, NAME};

/// Lists the volumes of the device class, and claims of its StorageClass, as lines for people.
pub(super) async fn list(client: &Client, flavor: ApiFlavor) -> Result<Vec<String>, InstallError> {
    let volumes = Api::<LogicalVolume>::all_with(client.clone(), &flavor);
    let objects = Objects {
        volumes: request::list(&volumes, &flavor, "").await?,
        persistent: request::list_all::<PersistentVolume>(client).await?,
        claims: request::list_all::<PersistentVolumeClaim>(client).await?,
        ..Objects::default()
    };
    Ok(lines(&objects))
}

fn lines(objects: &Objects) -> Vec<String> {
    let volumes = objects.volumes.iter().filter(|volume| volume.spec.device_class == DEVICE_CLASS);
    let volumes =
        volumes.map(|volume| format!("LogicalVolume {} of node {}", volume.name_any(), volume.spec.node_name));
    let of_class = |class: Option<&String>| class.is_some_and(|class| class == NAME);
    let persistent = objects
        .persistent
        .iter()
        .filter(|volume| of_class(volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref())));
    let persistent = persistent.map(|volume| format!("PersistentVolume {}", volume.name_any()));
    let claims = objects
        .claims
        .iter()
        .filter(|claim| of_class(claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref())));
    let claims = claims
        .map(|claim| format!("PersistentVolumeClaim {}/{}", claim.namespace().unwrap_or_default(), claim.name_any()));
    volumes.chain(persistent).chain(claims).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn volumes_and_claims_of_other_classes_are_in_nobodys_way() {
        let claim = |name: &str, class: &str| {
            from_value(json!({
                "metadata": {"name": name, "namespace": "shop"}, "spec": {"storageClassName": class},
            }))
            .unwrap()
        };
        let volume = |name: &str, class: &str| {
            from_value(json!({"metadata": {"name": name}, "spec": {"storageClassName": class}})).unwrap()
        };
        let objects = Objects {
            persistent: vec![volume("pv-1", NAME), volume("pv-2", "fast")],
            claims: vec![claim("a", NAME), claim("b", "fast")],
            ..Objects::default()
        };
        assert_eq!(lines(&objects), ["PersistentVolume pv-1", "PersistentVolumeClaim shop/a"]);
    }
}

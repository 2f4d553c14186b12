//! Volumes and claims of the driver, which block a removal.

use cli_runtime::objects::Objects;
use cli_runtime::request::{self, RequestError};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::install::InstallError;

/// Lines that are printed at most.
const SHOWN: usize = 20;

/// Lists volumes, and claims that wait for one, as lines for people.
pub(crate) async fn list(client: &Client, flavor: ApiFlavor) -> Result<Vec<String>, InstallError> {
    let volumes = Api::<LogicalVolume>::all_with(client.clone(), &flavor);
    let volumes = match request::list(&volumes, &flavor, "").await {
        // A removal that was interrupted has removed the definition
        Err(RequestError::Absent { .. }) => Vec::new(),
        volumes => volumes?,
    };
    let objects = Objects {
        volumes,
        persistent: request::list_all::<PersistentVolume>(client).await?,
        claims: request::list_all::<PersistentVolumeClaim>(client).await?,
        classes: request::list_all::<StorageClass>(client).await?,
        ..Objects::default()
    };
    Ok(lines(&objects, flavor))
}

fn lines(objects: &Objects, flavor: ApiFlavor) -> Vec<String> {
    let mut lines: Vec<_> = objects
        .volumes
        .iter()
        .map(|volume| format!("LogicalVolume {} of node {}", volume.name_any(), volume.spec.node_name))
        .collect();
    lines.extend(objects.our_persistent(flavor).map(|volume| {
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let claim = claim.map(|claim| {
            let (namespace, name) = (claim.namespace.as_deref(), claim.name.as_deref());
            format!(" of the claim {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
        });
        format!("PersistentVolume {}{}", volume.name_any(), claim.unwrap_or_default())
    }));
    lines.extend(
        objects.our_claims(flavor).into_iter().map(|claim| {
            format!("PersistentVolumeClaim {}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
        }),
    );
    let rest = lines.len().saturating_sub(SHOWN);
    if rest > 0 {
        lines.truncate(SHOWN);
        lines.push(format!("and {rest} more: kubectl topolvm volumes -A"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn volumes_and_claims_of_the_driver_are_named_and_no_others() {
        let volume = |name: &str, driver: &str| {
            from_value(json!({
                "metadata": {"name": name},
                "spec": {
                    "csi": {"driver": driver, "volumeHandle": "x"},
                    "claimRef": {"namespace": "shop", "name": "data"},
                },
            }))
            .unwrap()
        };
        let claim = |name: &str, class: &str| {
            from_value(json!({
                "metadata": {"name": name, "namespace": "shop"}, "spec": {"storageClassName": class},
            }))
            .unwrap()
        };
        let objects = Objects {
            persistent: vec![volume("ours", "topolvm.io"), volume("another", "other.io")],
            claims: vec![claim("waiting", "fast"), claim("foreign", "slow")],
            classes: vec![from_value(json!({"metadata": {"name": "fast"}, "provisioner": "topolvm.io"})).unwrap()],
            ..Objects::default()
        };
        let expected = ["PersistentVolume ours of the claim shop/data", "PersistentVolumeClaim shop/waiting"];
        assert_eq!(lines(&objects, ApiFlavor::TopoLvm), expected);
    }
}

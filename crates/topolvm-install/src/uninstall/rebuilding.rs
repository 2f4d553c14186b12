//! Claims that the controller holds while they are recreated, and that only the controller releases.

use cli_runtime::request::{self, RequestResult};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use topolvm_api::ApiFlavor;

/// Lists the claims with the finalizer, each with the command that removes it.
pub(super) async fn list(client: &Client, flavor: ApiFlavor) -> RequestResult<Vec<String>> {
    let claims = request::list_all::<PersistentVolumeClaim>(client).await?;
    Ok(claims.iter().filter_map(|claim| describe(claim, flavor)).collect())
}

fn describe(claim: &PersistentVolumeClaim, flavor: ApiFlavor) -> Option<String> {
    let index = claim.finalizers().iter().position(|finalizer| finalizer == flavor.rebuilding())?;
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let path = format!("/metadata/finalizers/{index}");
    let patch = json!([
        {"op": "test", "path": path, "value": flavor.rebuilding()}, {"op": "remove", "path": path},
    ]);
    Some(format!(
        "PersistentVolumeClaim {namespace}/{name}: kubectl -n {namespace} patch pvc {name} --type=json -p '{patch}'"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    #[test]
    fn held_claim_is_named_with_the_command_that_releases_it() {
        let claim = |finalizers: &[&str]| -> PersistentVolumeClaim {
            from_value(json!({"metadata": {"namespace": "shop", "name": "data-0", "finalizers": finalizers}})).unwrap()
        };
        let held = describe(&claim(&["kubernetes.io/pvc-protection", "topolvm.io/rebuilding"]), ApiFlavor::TopoLvm);
        let held = held.unwrap();
        assert!(held.starts_with("PersistentVolumeClaim shop/data-0: kubectl -n shop patch pvc data-0"), "{held}");
        assert!(held.contains(r#"{"op":"remove","path":"/metadata/finalizers/1"}"#), "{held}");
        assert_eq!(describe(&claim(&["kubernetes.io/pvc-protection"]), ApiFlavor::TopoLvm), None);
    }
}

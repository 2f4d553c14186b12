//! The manifests that an administrator applies, by API group: those of the older one are made by kustomize.

use topolvm_api::ApiFlavor;

/// Returns the manifest with the CustomResourceDefinitions.
pub(crate) const fn definitions(flavor: ApiFlavor) -> &'static str {
    match flavor {
        ApiFlavor::TopoLvm => "deploy/manifests/base/crd.yaml",
        ApiFlavor::Legacy => "deploy/manifests/components/legacy/crd.yaml",
    }
}

/// Returns the manifest with the CSIDriver.
pub(crate) const fn csi_driver(flavor: ApiFlavor) -> &'static str {
    match flavor {
        ApiFlavor::TopoLvm => "deploy/manifests/base/csidriver.yaml",
        ApiFlavor::Legacy => "the CSIDriver of kubectl kustomize deploy/manifests/overlays/legacy",
    }
}

/// Returns the manifest with the roles.
pub(crate) const fn roles(flavor: ApiFlavor) -> &'static str {
    match flavor {
        ApiFlavor::TopoLvm => "deploy/manifests/base/rbac.yaml",
        ApiFlavor::Legacy => "the roles of kubectl kustomize deploy/manifests/overlays/legacy",
    }
}

/// Returns what has the webhook for pods.
pub(crate) const fn webhooks(flavor: ApiFlavor) -> &'static str {
    match flavor {
        ApiFlavor::TopoLvm => "deploy/manifests/components/webhooks",
        ApiFlavor::Legacy => "deploy/manifests/overlays/legacy-extender",
    }
}

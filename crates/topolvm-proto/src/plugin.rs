//! Plugin capabilities of the CSI driver, the same on each of its sockets.

use crate::csi::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::csi::{GetPluginCapabilitiesResponse, PluginCapability};

/// Returns the answer to `GetPluginCapabilities`. CSI has one set of capabilities for a plugin, not one for each
/// socket, and sidecars query either the controller or the node. The accessibility of snapshots is announced even if
/// snapshots are disabled: it concerns existing snapshots, and `ControllerGetCapabilities` reports whether they can be
/// created.
pub fn capabilities() -> GetPluginCapabilitiesResponse {
    let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
    let expansion = |kind: volume_expansion::Type| Type::VolumeExpansion(VolumeExpansion { r#type: kind.into() });
    let announced = [
        service(service::Type::ControllerService),
        service(service::Type::VolumeAccessibilityConstraints),
        service(service::Type::SnapshotAccessibilityConstraints),
        service(service::Type::GroupControllerService),
        expansion(volume_expansion::Type::Online),
        expansion(volume_expansion::Type::Offline),
    ];
    GetPluginCapabilitiesResponse { capabilities: announced.map(|kind| PluginCapability { r#type: Some(kind) }).into() }
}

//! What the services announce. Sidecars make no other calls.

use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type as Kind, rpc};
use topolvm_proto::csi::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};

/// What a controller can do; `snapshots` also stands for restored volumes and clones.
pub(crate) fn controller(snapshots: bool) -> Vec<pb::ControllerServiceCapability> {
    let always = [
        rpc::Type::CreateDeleteVolume,
        rpc::Type::ListVolumes,
        rpc::Type::GetVolume,
        rpc::Type::GetCapacity,
        rpc::Type::ExpandVolume,
        rpc::Type::ModifyVolume,
        rpc::Type::SingleNodeMultiWriter,
        rpc::Type::GetVolumeHealth,
        rpc::Type::ListVolumeHealth,
    ];
    let copies =
        [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::GetSnapshot, rpc::Type::CloneVolume];
    let announced = always.into_iter().chain(copies.into_iter().filter(|_| snapshots));
    announced
        .map(|kind| pb::ControllerServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: kind.into() })) })
        .collect()
}

/// What the plugin is.
pub(crate) fn plugin(snapshots: bool) -> Vec<pb::PluginCapability> {
    let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
    let expansion = |kind: volume_expansion::Type| Type::VolumeExpansion(VolumeExpansion { r#type: kind.into() });
    let mut announced = vec![
        service(service::Type::ControllerService),
        service(service::Type::VolumeAccessibilityConstraints),
        expansion(volume_expansion::Type::Online),
        expansion(volume_expansion::Type::Offline),
    ];
    if snapshots {
        announced.push(service(service::Type::SnapshotAccessibilityConstraints));
    }
    announced.into_iter().map(|kind| pb::PluginCapability { r#type: Some(kind) }).collect()
}

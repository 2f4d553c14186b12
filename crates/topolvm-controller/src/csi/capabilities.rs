//! What the controller service announces. Sidecars make no other calls.

use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type as Kind, rpc};

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

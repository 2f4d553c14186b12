//! The capabilities that the Controller service announces. Sidecars make no other calls.

use topolvm_proto::csi as pb;
use topolvm_proto::csi::controller_service_capability::{Rpc, Type as Kind, rpc};

/// Returns the capabilities; `snapshots` also covers restored volumes and clones.
pub(crate) fn controller_capabilities(snapshots: bool) -> Vec<pb::ControllerServiceCapability> {
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
    let with_snapshots =
        [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::GetSnapshot, rpc::Type::CloneVolume];
    let announced = always.into_iter().chain(with_snapshots.into_iter().filter(|_| snapshots));
    announced
        .map(|kind| pb::ControllerServiceCapability { r#type: Some(Kind::Rpc(Rpc { r#type: kind.into() })) })
        .collect()
}

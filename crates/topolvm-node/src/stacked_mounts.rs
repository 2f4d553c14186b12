//! Mounts that earlier versions have stacked on the node at the directories of the agent's socket: unmounts them, and
//! counts those that stay.

use std::path::Path;

use linux_mount::Mounter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_runtime::error_chain;

/// Unmounts on the node what earlier versions have mounted repeatedly at the directories of the agent's socket, below
/// the kubelet's directory. Failures are logged, and the next start tries again. Returns the number of mounts that are
/// still stacked there.
pub(crate) async fn unmount_all(mounter: &impl Mounter, kubelet: &Path) -> usize {
    let mut stacked = 0;
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        let directory = kubelet.join("plugins").join(flavor.driver_name()).join("node");
        if let Err(error) = mounter.unmount_repeated(&directory).await {
            tracing::warn!(
                path = %directory.display(), error = error_chain(&error),
                "cannot unmount the stacked mounts of earlier versions; unmount them on the node"
            );
        }
        stacked += mounter.count_stacked_mounts(&directory);
    }
    stacked
}

/// Registers the gauge of mounts that are stacked at the directories of the agent's socket on the node.
pub(crate) fn register(registry: &mut Registry, node: &str, count: usize) {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    let help = "Stacked mounts that earlier versions left on the node at the directory of the topolvm-node socket";
    let registry = registry.sub_registry_with_label(("node".into(), node.to_owned().into()));
    registry.register("topolvm_stacked_mounts", help, gauge);
}

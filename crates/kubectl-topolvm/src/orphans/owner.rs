//! Finds the LogicalVolume that has an LV or is getting it, and the PersistentVolume and claim that use it.

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestResult};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt as _};
use topolvm_api::{ApiFlavor, LogicalVolume, same_lv};

/// A LogicalVolume in its relation to an LV.
#[derive(Clone, Debug)]
pub(super) enum Holder {
    /// It asks for the LV and does not have it yet.
    Attempt(LogicalVolume),
    /// It got the LV by `topolvm.io/adopt`.
    Adopter(LogicalVolume),
    /// The LV was made for it.
    Owner(LogicalVolume),
}

impl Holder {
    /// Classifies an object; `None` if it has nothing to do with the LV of the node.
    fn of(flavor: ApiFlavor, volume: LogicalVolume, node: &str, lv: &str) -> Option<Self> {
        let names = |key: &str| volume.annotation(key).is_some_and(|name| same_lv(name, lv));
        // An id and a UID are unique in the cluster; the name of an LV is not
        if same_lv(volume.uid(), lv) || volume.volume_id().is_some_and(|id| same_lv(id, lv)) {
            return Some(Self::Owner(volume));
        }
        if volume.spec.node_name != node || !(names(flavor.adopt()) || names(flavor.adopted())) {
            return None;
        }
        Some(if volume.volume_id().is_some() { Self::Adopter(volume) } else { Self::Attempt(volume) })
    }

    const fn is_attempt(&self) -> bool {
        matches!(self, Self::Attempt(_))
    }
}

/// Finds the object that has the LV; without one the object that is getting it.
pub(super) async fn find(cluster: &Cluster, node: &str, lv: &str) -> RequestResult<Option<Holder>> {
    let api: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    let volumes = request::list(&api, &cluster.flavor, "").await?;
    let holders = volumes.into_iter().filter_map(|volume| Holder::of(cluster.flavor, volume, node, lv));
    Ok(holders.min_by_key(Holder::is_attempt))
}

/// Finds the PersistentVolume of a LogicalVolume.
pub(super) async fn persistent_volume(
    cluster: &Cluster,
    volume: &LogicalVolume,
) -> RequestResult<Option<PersistentVolume>> {
    let is_of_volume = |persistent: &PersistentVolume| {
        let source = persistent.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        source.is_some_and(|source| {
            source.driver == cluster.flavor.driver_name()
                && (Some(source.volume_handle.as_str()) == volume.volume_id() || persistent.name_any() == volume.name())
        })
    };
    let all = request::list_all::<PersistentVolume>(&cluster.client).await?;
    Ok(all.into_iter().find(is_of_volume))
}

/// Names a LogicalVolume with its PersistentVolume and claim.
pub(super) async fn describe(cluster: &Cluster, volume: &LogicalVolume) -> RequestResult<String> {
    let mut parts = vec![format!("LogicalVolume {}", volume.name())];
    if let Some(persistent) = persistent_volume(cluster, volume).await? {
        parts.push(format!("PersistentVolume {}", persistent.name_any()));
        let claim = persistent.spec.and_then(|spec| spec.claim_ref);
        parts.extend(
            claim.map(|claim| {
                format!("claim {}/{}", claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default())
            }),
        );
    }
    Ok(parts.join(", "))
}

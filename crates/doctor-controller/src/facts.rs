//! Reads the objects for the checks: from the informers where they have them, and otherwise in pages of pruned objects.

use std::fmt::Debug;
use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use topolvm_api::{ApiFlavor, SNAPSHOT_GROUP, SnapshotContent};
use topolvm_doctor::{
    BoundClaims, CsiPersistentVolume, Facts, ReadError, ReadResult, prune_capacity, prune_claim, prune_csi_node,
    prune_node,
};
use topolvm_kube::{ExtenderState, ReconcileError, list_in_pages};

use super::Doctor;

/// Nodes in a page: one may have 30 KB and more.
const NODES: u32 = 50;
/// Objects of other kinds in a page.
const OBJECTS: u32 = 200;

/// Reads the facts of the checks. What may not be read is an error there; any other error ends this.
pub(super) async fn read(doctor: &Doctor) -> Result<Facts, ReconcileError> {
    let (sources, context) = (&doctor.sources, &doctor.context);
    let (client, flavor) = (&sources.client, sources.flavor);
    let mut facts = Facts::empty(flavor, &context.namespace, (sources.now)());
    facts.mode = Some(context.mode);
    facts.publishes_capacity = context.publishes_capacity;
    facts.provisions_volumes = context.provisions_volumes;
    facts.unproven = Ok(sources.extender.as_ref().and_then(|extender| match extender.state() {
        ExtenderState::Proven => None,
        ExtenderState::NotProven(reason) => Some(reason),
    }));
    let unread = ReadError::Failed { message: "the controller does not read VolumeSnapshots".to_owned() };
    facts.snapshots = Err(unread);
    facts.snapshot_contents = read_snapshot_contents(client, flavor).await?;
    // Pods before claims, and claims before volumes: an object that is bound or created meanwhile must not appear
    // unbound or missing
    let pending = ListParams::default().limit(OBJECTS).fields("status.phase=Pending");
    facts.pods = list(Api::<Pod>::all(client.clone()), pending, |pod| {
        pod.metadata.managed_fields = None;
        true
    })
    .await?;
    let all = || ListParams::default().limit(OBJECTS);
    facts.classes = list(Api::<StorageClass>::all(client.clone()), all(), |_| true).await?;
    let (claims, bound) = read_claims(client, &facts).await?;
    facts.claims = claims;
    let capacities = Api::<CSIStorageCapacity>::namespaced(client.clone(), &context.namespace);
    facts.capacities = list(capacities, all(), keep(prune_capacity)).await?;
    let persistent = Api::<PersistentVolume>::all(client.clone());
    let plural = PersistentVolume::plural(&());
    let ours = |volume: PersistentVolume| CsiPersistentVolume::new(flavor, volume);
    facts.persistent = read_pages(&persistent, &plural, all(), ours).await?;
    facts.csi_nodes = list(Api::<CSINode>::all(client.clone()), all(), keep(prune_csi_node)).await?;
    let prune = |node: &mut Node| prune_node(flavor, node);
    facts.nodes = list(Api::<Node>::all(client.clone()), all().limit(NODES), keep(prune)).await?;
    facts.volumes = Ok(sources.volumes.state());
    bound.add_referenced_to(&mut facts);
    Ok(facts)
}

/// Lists the VolumeSnapshotContents of our driver; there is none where they are not served.
async fn read_snapshot_contents(
    client: &Client,
    flavor: ApiFlavor,
) -> Result<ReadResult<Vec<SnapshotContent>>, ReconcileError> {
    let kind = GroupVersionKind::gvk(SNAPSHOT_GROUP, "v1", "VolumeSnapshotContent");
    let kind = ApiResource::from_gvk(&kind);
    let api = Api::<DynamicObject>::all_with(client.clone(), &kind);
    read_pages(&api, &kind.plural, ListParams::default().limit(OBJECTS), |object| {
        // What has another form than it should is none of csi-snapshotter's
        let content: SnapshotContent = serde_json::from_value(serde_json::to_value(object).ok()?).ok()?;
        (content.spec.driver == flavor.driver_name()).then_some(content)
    })
    .await
}

/// Lists the claims of our StorageClasses. Those that are bound are returned apart.
async fn read_claims(
    client: &Client,
    facts: &Facts,
) -> Result<(ReadResult<Vec<PersistentVolumeClaim>>, BoundClaims), ReconcileError> {
    let classes = facts.classes.as_deref().unwrap_or_default();
    let ours = classes.iter().filter(|class| class.provisioner == facts.flavor.driver_name());
    let ours: Vec<_> = ours.filter_map(|class| class.metadata.name.as_deref()).collect();
    let mut bound = BoundClaims::default();
    let (api, plural) = (Api::all(client.clone()), PersistentVolumeClaim::plural(&()));
    let take = |mut claim: PersistentVolumeClaim| {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        if !class.is_some_and(|class| ours.contains(&class)) || bound.add(&claim) {
            return None;
        }
        prune_claim(&mut claim);
        Some(claim)
    };
    let claims = read_pages(&api, &plural, ListParams::default().limit(OBJECTS), take).await?;
    Ok((claims, bound))
}

/// Returns a function that prunes each object and keeps it.
fn keep<K>(prune: impl Fn(&mut K)) -> impl Fn(&mut K) -> bool {
    move |object| {
        prune(object);
        true
    }
}

/// Lists objects in pages, and keeps those for which `prune` returns true.
async fn list<K>(
    api: Api<K>,
    params: ListParams,
    prune: impl Fn(&mut K) -> bool,
) -> Result<ReadResult<Vec<K>>, ReconcileError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    read_pages(&api, &K::plural(&()), params, |mut object| prune(&mut object).then_some(object)).await
}

/// Lists objects in pages, and keeps what `take` makes of them. Of a kind that is not served there is none.
async fn read_pages<K, T>(
    api: &Api<K>,
    plural: &str,
    params: ListParams,
    mut take: impl FnMut(K) -> Option<T>,
) -> Result<ReadResult<Vec<T>>, ReconcileError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut objects = pin!(list_in_pages(api, params));
    loop {
        match objects.try_next().await {
            Ok(Some(object)) => found.extend(take(object)),
            Ok(None) => return Ok(Ok(found)),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Ok(found)),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Ok(Err(ReadError::Forbidden { verb: "list", resource: plural.to_owned() }));
            }
            Err(error) => return Err(ReconcileError::api("list", plural)(error)),
        }
    }
}

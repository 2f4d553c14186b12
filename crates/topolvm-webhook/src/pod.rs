//! The pod webhook, `/pod/mutate`: injects the capacity that the volumes of a new pod will take, for the scheduler
//! extender.
//!
//! It writes the annotation `capacity.topolvm.io/CLASS` for each device class, and the resource `topolvm.io/capacity`
//! on the first container, unless kube-scheduler has yet to be proven to call the extender: with the resource the pod
//! would be pending until then. [`PodWebhook::build_patch`] has both.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _};
use json_patch::jsonptr::PointerBuf;
use json_patch::{Patch, PatchOperation};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
use serde_json::{Map, Value};
use topolvm_api::ApiFlavor;
use topolvm_capacity::{ClassParameters, MinimumAllocation};
use topolvm_kube::{ExtenderInformer, ExtenderState};

use crate::admission_review::{Decision, MutateError};
use crate::objects::{ClaimSpec, Container, MAX_VOLUMES, Pod, PodVolumes, ResourceRequirements};
use crate::patch::set_members;
use crate::request_limit::RequestLimit;
use crate::requested_capacity::RequestedCapacity;
use crate::storage_class_informer::StorageClassInformer;
use crate::unmarked_pods::UnmarkedPods;

/// Claims of one pod that are read at the same time, so that a pod with many does not keep others waiting.
const CONCURRENT_READS: usize = 8;

/// The amount of the resource `topolvm.io/capacity` of a pod. The sizes by device class are annotations in any
/// case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CapacityResource {
    /// 1 on every pod with TopoLVM volumes, which makes kube-scheduler call the extender.
    #[default]
    Marker,
    /// The total bytes of its volumes, each rounded up to whole GiB.
    Bytes,
    /// No resource: kube-scheduler knows the free space from CSIStorageCapacity objects.
    None,
}

/// The pod webhook.
#[derive(Clone)]
pub(crate) struct PodWebhook {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) minimums: MinimumAllocation,
    pub(crate) resource: CapacityResource,
    pub(crate) classes: StorageClassInformer,
    pub(crate) request_limit: RequestLimit,
    /// The state of the extender, and the queue of pods without the resource; `None` where nothing has to be proven.
    pub(crate) extender: Option<(ExtenderInformer, UnmarkedPods)>,
}

/// A claim of the pod.
enum PodClaim {
    /// Does not exist yet, or is of another driver.
    Ignored,
    /// Has its volume, which decides on which node the pod must run.
    Bound,
    Pending(ClaimSpec, ClassParameters),
}

impl PodWebhook {
    /// Decides about a new pod in this namespace, and returns a warning for the user if there is one. A dry run leaves
    /// no Event.
    pub(crate) async fn mutate(
        &self,
        namespace: &str,
        pod: &Pod,
        is_dry_run: bool,
    ) -> Result<(Decision, Option<String>), MutateError> {
        let spec = pod.spec.as_ref().ok_or(MutateError::Incomplete("spec"))?;
        let Some(container) = spec.containers.as_ref().and_then(|containers| containers.0.as_ref()) else {
            return Ok((Decision::Denied("pod has no containers"), None));
        };
        let (CapacityResource::Marker | CapacityResource::Bytes, Some(volumes)) = (self.resource, &spec.volumes) else {
            return Ok((Decision::Unchanged, None));
        };
        if namespace.is_empty() {
            return Err(MutateError::Incomplete("namespace"));
        }
        // Allowed all the same: a wrong refusal is worse than a schedule to a node with too little free space
        let warning = volumes
            .is_truncated
            .then(|| format!("topolvm: only {MAX_VOLUMES} volumes of this pod are considered when selecting a node"));
        let decision = match self.requested_capacity(namespace, volumes).await? {
            Some(capacity) if !capacity.is_empty() => {
                let container = self.check_extender(namespace, pod, is_dry_run).then_some(container);
                Decision::Patched(self.build_patch(pod, container, &capacity))
            }
            Some(_) | None => Decision::Unchanged,
        };
        Ok((decision, warning))
    }

    /// Returns whether a pod with the resource can be scheduled. An Event informs the owner of a pod that does not get
    /// it.
    fn check_extender(&self, namespace: &str, pod: &Pod, is_dry_run: bool) -> bool {
        let Some((informer, unmarked_pods)) = &self.extender else { return true };
        match informer.state() {
            ExtenderState::Proven => true,
            ExtenderState::NotProven(reason) => {
                if !is_dry_run {
                    let owner = pod.metadata.owner_references.as_ref().and_then(|owners| owners.0.as_ref());
                    unmarked_pods.report(namespace, owner, reason);
                }
                false
            }
        }
    }

    /// Adds up what the volumes will take; `None` when one of them exists already, so that the pod can run on its node
    /// only.
    async fn requested_capacity(
        &self,
        namespace: &str,
        volumes: &PodVolumes,
    ) -> Result<Option<RequestedCapacity>, MutateError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let reads = futures::stream::iter(volumes.claims.clone()).map(|name| self.read_claim(&api, name));
        let claims: Vec<PodClaim> = reads.buffer_unordered(CONCURRENT_READS).try_collect().await?;
        let mut capacity = RequestedCapacity::default();
        for claim in claims {
            match claim {
                PodClaim::Ignored => {}
                PodClaim::Bound => return Ok(None),
                PodClaim::Pending(spec, class) => self.add_volume(&mut capacity, &spec, &class),
            }
        }
        let names: BTreeSet<Option<String>> = volumes.templates.iter().map(|template| template.class.clone()).collect();
        let reads = futures::stream::iter(names).map(|name| self.read_class(name)).buffer_unordered(CONCURRENT_READS);
        let classes: BTreeMap<Option<String>, Option<ClassParameters>> = reads.try_collect().await?;
        for template in &volumes.templates {
            if let Some(Some(class)) = classes.get(&template.class) {
                self.add_volume(&mut capacity, template, class);
            }
        }
        Ok(Some(capacity))
    }

    /// Returns the name of the class of an ephemeral volume, and its parameters if it is of this driver.
    async fn read_class(&self, name: Option<String>) -> kube::Result<(Option<String>, Option<ClassParameters>)> {
        let class = match &name {
            // The empty name means no dynamic volume; no name the cluster's default class once the claim is created
            Some(name) => self.classes.find_own(Some(name)).await?,
            None => self.classes.find_own_default().await,
        };
        Ok((name, class))
    }

    /// Reads a claim of the pod and its class.
    async fn read_claim(&self, api: &Api<PersistentVolumeClaim>, name: String) -> kube::Result<PodClaim> {
        let Some(claim) = self.request_limit.run(api.get_opt(&name)).await? else {
            return Ok(PodClaim::Ignored);
        };
        let spec = ClaimSpec::from(claim.spec.unwrap_or_default());
        let class = self.classes.find_own(spec.class.as_deref()).await?;
        let is_pending = claim.status.and_then(|status| status.phase).is_none_or(|phase| phase == "Pending");
        Ok(match class {
            None => PodClaim::Ignored,
            Some(_) if !is_pending => PodClaim::Bound,
            Some(class) => PodClaim::Pending(spec, class),
        })
    }

    fn add_volume(&self, capacity: &mut RequestedCapacity, claim: &ClaimSpec, class: &ClassParameters) {
        if let Err(error) = capacity.add(claim, class, &self.minimums) {
            // The API server refuses such a size itself, after us
            tracing::debug!(%error, "cannot parse the size of a volume; it is not counted");
        }
    }

    /// Builds the patch that injects annotations into the pod, and the resource into its first container if that is
    /// given.
    fn build_patch(&self, pod: &Pod, container: Option<&Container>, capacity: &RequestedCapacity) -> Patch {
        let sizes: Map<String, Value> = capacity
            .iter()
            .map(|(class, bytes)| (self.flavor.capacity_annotation(class), bytes.to_string().into()))
            .collect();
        let annotations = PointerBuf::from_tokens(["metadata", "annotations"]);
        let mut operations = set_members(annotations, pod.metadata.annotations.is_some(), sizes);
        operations.extend(container.into_iter().flat_map(|container| self.set_resource(container, capacity)));
        Patch(operations)
    }

    /// Returns the operations that set the resource of a container.
    fn set_resource(&self, container: &Container, capacity: &RequestedCapacity) -> Vec<PatchOperation> {
        let amount = match self.resource {
            CapacityResource::Bytes => capacity.total_in_whole_gib().to_string(),
            CapacityResource::Marker | CapacityResource::None => "1".to_owned(),
        };
        let amount = Map::from_iter([(self.flavor.capacity_resource().to_owned(), Value::from(amount))]);
        let path = PointerBuf::from_tokens(["spec", "containers", "0", "resources"]);
        // Of an extended resource Kubernetes wants the same amount in both
        match &container.resources {
            None => {
                let both = ["limits", "requests"].map(|kind| (kind.to_owned(), amount.clone().into()));
                set_members(path, false, Map::from_iter(both))
            }
            Some(ResourceRequirements { requests, limits }) => [("limits", limits), ("requests", requests)]
                .into_iter()
                .flat_map(|(kind, amounts)| {
                    set_members(path.with_trailing_token(kind), amounts.is_some(), amount.clone())
                })
                .collect(),
        }
    }
}

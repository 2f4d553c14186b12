//! `/pod/mutate`: writes on a new pod what its volumes will take, so that the scheduler extender can read it there.

use std::collections::BTreeSet;

use futures::{StreamExt as _, TryStreamExt as _};
use json_patch::Patch;
use json_patch::jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use topolvm_api::{ApiFlavor, GIB};

use super::admission::{MutateError, Verdict};
use super::demand::{Demand, OurClass};
use super::names;
use super::patch::overlay;
use super::storage_classes::StorageClasses;
use crate::MinimumAllocation;

/// Claims of one pod that are read at the same time.
const AT_ONCE: usize = 8;

/// What is written as the resource `topolvm.io/capacity` of a pod. The sizes by device class are annotations in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CapacityResource {
    /// 1 on every pod with volumes of ours: it only makes kube-scheduler ask the extender.
    #[default]
    Marker,
    /// The bytes of all its volumes, rounded up to whole GiB.
    Bytes,
    /// Pods are left as they are: the scheduler knows the free space from CSIStorageCapacity objects.
    None,
}

/// Answers `/pod/mutate`.
#[derive(Clone)]
pub(crate) struct PodWebhook {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) minimums: MinimumAllocation,
    pub(crate) resource: CapacityResource,
    pub(crate) classes: StorageClasses,
}

/// What is read of a pod's spec.
#[derive(Debug, Deserialize)]
struct Spec {
    #[serde(default)]
    containers: Vec<Container>,
    volumes: Option<Vec<Volume>>,
}

#[derive(Debug, Deserialize)]
struct Container {
    #[serde(default)]
    resources: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    persistent_volume_claim: Option<ClaimReference>,
    ephemeral: Option<Ephemeral>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimReference {
    claim_name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ephemeral {
    volume_claim_template: Option<Template>,
}

#[derive(Debug, Deserialize)]
struct Template {
    spec: PersistentVolumeClaimSpec,
}

/// A claim of the pod as far as we have to do with it.
enum Claim {
    /// Not there yet, or of another driver.
    NotOurs,
    /// It has its volume, which says on which node the pod must run.
    Bound,
    Pending(Box<PersistentVolumeClaimSpec>, OurClass),
}

impl PodWebhook {
    /// What to do with a new pod in this namespace.
    pub(crate) async fn mutate(&self, namespace: &str, pod: &DynamicObject) -> Result<Verdict, MutateError> {
        let spec = pod.data.get("spec").ok_or(MutateError::Incomplete("spec"))?;
        let spec = Spec::deserialize(spec).map_err(MutateError::Malformed)?;
        let Some(container) = spec.containers.first() else {
            return Ok(Verdict::Denied("pod has no containers"));
        };
        if self.resource == CapacityResource::None {
            return Ok(Verdict::Unchanged);
        }
        if namespace.is_empty() {
            return Err(MutateError::Incomplete("namespace"));
        }
        let volumes = spec.volumes.unwrap_or_default();
        let Some(demand) = self.demand(namespace, &volumes).await? else {
            return Ok(Verdict::Unchanged);
        };
        if demand.is_empty() {
            return Ok(Verdict::Unchanged);
        }
        Ok(Verdict::Patched(self.patch(pod, container, &demand)))
    }

    /// What the volumes will take; nothing when one of them is there already and the pod cannot choose its node any more.
    async fn demand(&self, namespace: &str, volumes: &[Volume]) -> Result<Option<Demand>, MutateError> {
        let claimed = volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        // A claim that is mounted twice is one volume
        let names: BTreeSet<String> = claimed.map(|claim| claim.claim_name.clone()).collect();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let reads = futures::stream::iter(names).map(|name| self.claim(&api, name)).buffer_unordered(AT_ONCE);
        let claims: Vec<Claim> = reads.try_collect().await?;

        let mut demand = Demand::default();
        for claim in claims {
            match claim {
                Claim::NotOurs => {}
                Claim::Bound => return Ok(None),
                Claim::Pending(spec, class) => self.count(&mut demand, &spec, &class),
            }
        }
        let ephemeral = volumes.iter().filter_map(|volume| volume.ephemeral.as_ref());
        for template in ephemeral.filter_map(|ephemeral| ephemeral.volume_claim_template.as_ref()) {
            let class = match template.spec.storage_class_name.as_deref() {
                // No class is no dynamic volume; none named is the cluster's default one once the claim is made
                Some("") => None,
                Some(name) => self.classes.ours(name).await?,
                None => self.classes.our_default().await,
            };
            if let Some(class) = class {
                self.count(&mut demand, &template.spec, &class);
            }
        }
        Ok(Some(demand))
    }

    async fn claim(&self, api: &Api<PersistentVolumeClaim>, name: String) -> kube::Result<Claim> {
        if !names::is_object_name(&name) {
            return Ok(Claim::NotOurs);
        }
        let Some(claim) = api.get_opt(&name).await? else {
            return Ok(Claim::NotOurs);
        };
        let spec = claim.spec.unwrap_or_default();
        let class = match spec.storage_class_name.as_deref() {
            None | Some("") => None,
            Some(name) => self.classes.ours(name).await?,
        };
        let is_pending = claim.status.and_then(|status| status.phase).is_none_or(|phase| phase == "Pending");
        Ok(match class {
            None => Claim::NotOurs,
            Some(_) if !is_pending => Claim::Bound,
            Some(class) => Claim::Pending(Box::new(spec), class),
        })
    }

    fn count(&self, demand: &mut Demand, claim: &PersistentVolumeClaimSpec, class: &OurClass) {
        if let Err(error) = demand.add(claim, class, &self.minimums) {
            // The API server refuses such a size itself, after us
            tracing::debug!(%error, "a volume's size cannot be read and is not counted");
        }
    }

    fn patch(&self, pod: &DynamicObject, container: &Container, demand: &Demand) -> Patch {
        let sizes: Map<String, Value> = demand
            .iter()
            .map(|(class, bytes)| (self.flavor.capacity_annotation(class), bytes.to_string().into()))
            .collect();
        let annotations = json!(pod.metadata.annotations);
        let mut operations = overlay(PointerBuf::from_tokens(["metadata", "annotations"]), &annotations, sizes.into());

        let amount = match self.resource {
            CapacityResource::Bytes => whole_gib(demand.total()).to_string(),
            CapacityResource::Marker | CapacityResource::None => "1".to_owned(),
        };
        let name = self.flavor.capacity_resource();
        // Of an extended resource Kubernetes wants the same amount in both
        let amounts = json!({"requests": {name: amount}, "limits": {name: amount}});
        let path = PointerBuf::from_tokens(["spec", "containers", "0", "resources"]);
        operations.extend(overlay(path, &container.resources, amounts));
        Patch(operations)
    }
}

/// Bytes rounded up to whole GiB, but not beyond what a quantity can be.
fn whole_gib(bytes: u64) -> u64 {
    const MOST: u64 = i64::MAX.unsigned_abs() / GIB * GIB;
    bytes.checked_next_multiple_of(GIB).unwrap_or(MOST).min(MOST)
}

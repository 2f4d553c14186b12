//! `/pod/mutate`: writes on a new pod what its volumes will take, so that the scheduler extender can read it there.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _};
use json_patch::Patch;
use json_patch::jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
use serde_json::{Map, Value};
use topolvm_api::ApiFlavor;

use super::admission_review::{MutateError, Verdict};
use super::objects::{Amounts, Container, MOST_VOLUMES, Pod, Volumes, WantedVolume};
use super::patch::put;
use super::request_limit::Reads;
use super::requested_capacity::{Demand, OurClass};
use super::storage_class_informer::StorageClasses;
use crate::MinimumAllocation;

/// Claims of one pod that are read at the same time, so that a pod with many does not keep others waiting.
const AT_ONCE: usize = 8;

/// What is written as the resource `topolvm.io/capacity` of a pod. The sizes by device class are annotations in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CapacityResource {
    /// 1 on every pod with volumes of ours: it only makes kube-scheduler ask the extender.
    #[default]
    Marker,
    /// The bytes of all its volumes, each rounded up to whole GiB.
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
    pub(crate) reads: Reads,
}

/// A claim of the pod as far as we have to do with it.
enum Claim {
    /// Not there yet, or of another driver.
    NotOurs,
    /// It has its volume, which says on which node the pod must run.
    Bound,
    Pending(WantedVolume, OurClass),
}

impl PodWebhook {
    /// What to do with a new pod in this namespace, and what whoever makes it should know.
    pub(crate) async fn mutate(&self, namespace: &str, pod: &Pod) -> Result<(Verdict, Option<String>), MutateError> {
        let spec = pod.spec.as_ref().ok_or(MutateError::Incomplete("spec"))?;
        let Some(container) = spec.containers.as_ref().and_then(|containers| containers.0.as_ref()) else {
            return Ok((Verdict::Denied("pod has no containers"), None));
        };
        let (CapacityResource::Marker | CapacityResource::Bytes, Some(volumes)) = (self.resource, &spec.volumes) else {
            return Ok((Verdict::Unchanged, None));
        };
        if namespace.is_empty() {
            return Err(MutateError::Incomplete("namespace"));
        }
        // Taken all the same: to be refused wrongly is worse than to be scheduled where there may be too little room
        let warning = volumes.has_more.then(|| {
            format!("topolvm: of the volumes of this pod only {MOST_VOLUMES} are counted for the choice of a node")
        });
        let verdict = match self.demand(namespace, volumes).await? {
            Some(demand) if !demand.is_empty() => Verdict::Patched(self.patch(pod, container, &demand)),
            Some(_) | None => Verdict::Unchanged,
        };
        Ok((verdict, warning))
    }

    /// What the volumes will take; nothing when one of them is there already and the pod cannot choose its node any more.
    async fn demand(&self, namespace: &str, volumes: &Volumes) -> Result<Option<Demand>, MutateError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let reads = futures::stream::iter(volumes.claims.clone()).map(|name| self.claim(&api, name));
        let claims: Vec<Claim> = reads.buffer_unordered(AT_ONCE).try_collect().await?;
        let mut demand = Demand::default();
        for claim in claims {
            match claim {
                Claim::NotOurs => {}
                Claim::Bound => return Ok(None),
                Claim::Pending(wanted, class) => self.count(&mut demand, &wanted, &class),
            }
        }
        let names: BTreeSet<Option<String>> = volumes.templates.iter().map(|template| template.class.clone()).collect();
        let reads = futures::stream::iter(names).map(|name| self.class(name)).buffer_unordered(AT_ONCE);
        let classes: BTreeMap<Option<String>, Option<OurClass>> = reads.try_collect().await?;
        for template in &volumes.templates {
            if let Some(Some(class)) = classes.get(&template.class) {
                self.count(&mut demand, template, class);
            }
        }
        Ok(Some(demand))
    }

    /// The name of the class of an ephemeral volume, and the class if it is ours.
    async fn class(&self, name: Option<String>) -> kube::Result<(Option<String>, Option<OurClass>)> {
        let class = match name.as_deref() {
            // No class is no dynamic volume; none named is the cluster's default one once the claim is made
            Some("") => None,
            Some(name) => self.classes.ours(name).await?,
            None => self.classes.our_default().await,
        };
        Ok((name, class))
    }

    async fn claim(&self, api: &Api<PersistentVolumeClaim>, name: String) -> kube::Result<Claim> {
        let Some(claim) = self.reads.get(api.get_opt(&name)).await? else {
            return Ok(Claim::NotOurs);
        };
        let wanted = WantedVolume::from(claim.spec.unwrap_or_default());
        let class = match wanted.class.as_deref() {
            None | Some("") => None,
            Some(name) => self.classes.ours(name).await?,
        };
        let is_pending = claim.status.and_then(|status| status.phase).is_none_or(|phase| phase == "Pending");
        Ok(match class {
            None => Claim::NotOurs,
            Some(_) if !is_pending => Claim::Bound,
            Some(class) => Claim::Pending(wanted, class),
        })
    }

    fn count(&self, demand: &mut Demand, wanted: &WantedVolume, class: &OurClass) {
        if let Err(error) = demand.add(wanted, class, &self.minimums) {
            // The API server refuses such a size itself, after us
            tracing::debug!(%error, "a volume's size cannot be read and is not counted");
        }
    }

    fn patch(&self, pod: &Pod, container: &Container, demand: &Demand) -> Patch {
        let sizes: Map<String, Value> = demand
            .iter()
            .map(|(class, bytes)| (self.flavor.capacity_annotation(class), bytes.to_string().into()))
            .collect();
        let annotations = PointerBuf::from_tokens(["metadata", "annotations"]);
        let mut operations = put(annotations, pod.metadata.annotations.is_some(), sizes);

        let amount = match self.resource {
            CapacityResource::Bytes => demand.total_in_whole_gib().to_string(),
            CapacityResource::Marker | CapacityResource::None => "1".to_owned(),
        };
        let amount = Map::from_iter([(self.flavor.capacity_resource().to_owned(), Value::from(amount))]);
        let path = PointerBuf::from_tokens(["spec", "containers", "0", "resources"]);
        // Of an extended resource Kubernetes wants the same amount in both
        match &container.resources {
            None => {
                let both = ["limits", "requests"].map(|kind| (kind.to_owned(), amount.clone().into()));
                operations.extend(put(path, false, Map::from_iter(both)));
            }
            Some(Amounts { requests, limits }) => {
                for (kind, amounts) in [("limits", limits), ("requests", requests)] {
                    let path = path.with_trailing_token(kind);
                    operations.extend(put(path, amounts.is_some(), amount.clone()));
                }
            }
        }
        Patch(operations)
    }
}

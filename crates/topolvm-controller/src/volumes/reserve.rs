//! Creates the volumes of a pod on a node that has enough free space for all of them, or none of them there.
//!
//! kube-scheduler compares each claim of a pod separately with the free space of a node. If one volume of a pod has
//! been created, and another does not fit, the pod can go to no other node any more. Refused together, both are
//! scheduled again.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use topolvm_capacity::{Hold, NotEnoughSpace, Wanted};

use super::error::ApiFailure;
use super::{ClaimName, NodeChoice, VolumeError, VolumeRequest};
use crate::pod_claims::PodWithClaims;

/// The time for which the watch of claims may be behind that of external-provisioner.
const WATCH_DELAY: Duration = Duration::from_millis(500);

impl NodeChoice {
    /// Reserves the space of a volume on its node, and with it that of the other volumes of its pod. Fails if the node
    /// does not have enough free space for all of them, unless it has one already: then the pod can go nowhere else.
    /// Returns also the claim that the volume is for, if it is known.
    pub(super) async fn reserve(
        &self,
        request: &VolumeRequest,
        node: &str,
    ) -> Result<(Hold, Option<ClaimName>), VolumeError> {
        // A copy can be nowhere else, so there is no need to wait for its claim
        let patience = if request.source.is_some() { Duration::ZERO } else { WATCH_DELAY };
        let waiting = self.capacity.waiting_claim(&request.name, patience).await;
        let waiting = waiting.map(|claim| ClaimName { namespace: claim.namespace, name: claim.name });
        let hold = self.reserve_for_claim(request, node, waiting.as_ref()).await?;
        Ok((hold, request.claim.clone().or(waiting)))
    }

    /// Reserves the space of a volume, and that of the other volumes of the pod of its claim.
    async fn reserve_for_claim(
        &self,
        request: &VolumeRequest,
        node: &str,
        claim: Option<&ClaimName>,
    ) -> Result<Hold, VolumeError> {
        let volume = Wanted { name: request.name.clone(), classes: request.classes(), bytes: request.size.bytes };
        let hold = || self.capacity.hold(&request.name, node, request.classes(), request.size.bytes);
        if request.source.is_some() {
            return Ok(hold());
        }
        let pod = claim.and_then(|claim| Some((self.pods.pod_of(&claim.namespace, &claim.name)?, &claim.name)));
        let Some((pod, claim)) = pod else {
            let refuse = |NotEnoughSpace { device_class, wanted, free }| VolumeError::NoSpaceWithOthers {
                node: node.to_owned(),
                device_class,
                wanted,
                free,
            };
            return self.capacity.admit(node, &volume, &[]).map_err(refuse);
        };
        let Some(siblings) = self.siblings(request, &pod, claim).await? else { return Ok(hold()) };
        let admitted = match self.pods.refusal(&pod, node) {
            Some(refused) => Err(refused),
            None => self.capacity.admit(node, &volume, &siblings).inspect_err(|refused| {
                self.pods.refuse(&pod, node, refused.clone());
            }),
        };
        admitted.map_err(|refused| {
            let NotEnoughSpace { device_class, wanted, free } = refused;
            let pod = format!("{}/{}", pod.namespace, pod.name);
            VolumeError::NoSpaceForPod { pod, node: node.to_owned(), device_class, wanted, free }
        })
    }

    /// Returns the other volumes that a pod is to get. `None` when it has one of them already.
    async fn siblings(
        &self,
        request: &VolumeRequest,
        pod: &PodWithClaims,
        claim: &str,
    ) -> Result<Option<Vec<Wanted>>, VolumeError> {
        let unreadable =
            |source| VolumeError::ClaimUnreadable { name: request.name.clone(), source: ApiFailure::from(source) };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.objects.client.clone(), &pod.namespace);
        let mut siblings = Vec::new();
        for sibling in pod.claims.iter().filter(|sibling| *sibling != claim) {
            let Some(sibling) = api.get_opt(sibling).await.map_err(unreadable)? else { continue };
            let Some(spec) = &sibling.spec else { continue };
            if !spec.storage_class_name.as_ref().is_some_and(|class| self.capacity.has_class(class)) {
                continue;
            }
            let volume = self.capacity.volume_of_claim(&sibling);
            let is_made = volume.as_ref().is_some_and(|volume| self.objects.informer.cache.get(&volume.name).is_some());
            if spec.volume_name.is_some() || is_made {
                return Ok(None);
            }
            siblings.extend(volume);
        }
        Ok(Some(siblings))
    }
}

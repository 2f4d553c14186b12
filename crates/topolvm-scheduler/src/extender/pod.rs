//! The pod of a request: what it asks for, and whose claims it has.

use serde::Deserialize;
use topolvm_api::ApiFlavor;

use super::Name;
use super::annotations::CapacityAnnotations;
use crate::binding_pods::PodIdentity;
use crate::capacity::Requested;

/// A pod.
#[derive(Deserialize)]
pub(super) struct Pod<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: Option<Spec<'a>>,
}

#[derive(Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Option<Name<'a>>,
    #[serde(borrow)]
    namespace: Option<Name<'a>>,
    #[serde(borrow)]
    uid: Option<Name<'a>>,
    #[serde(borrow)]
    annotations: Option<CapacityAnnotations<'a>>,
}

#[derive(Deserialize)]
struct Spec<'a> {
    #[serde(borrow)]
    volumes: Option<Vec<Volume<'a>>>,
}

/// A volume of a pod.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(borrow)]
    name: Option<Name<'a>>,
    #[serde(borrow)]
    persistent_volume_claim: Option<ClaimVolume<'a>>,
    ephemeral: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimVolume<'a> {
    #[serde(borrow)]
    claim_name: Option<Name<'a>>,
}

impl<'a> Pod<'a> {
    pub(super) fn into_uid(self) -> Name<'a> {
        self.metadata.uid.unwrap_or_default()
    }

    /// Returns the requested bytes; what is no number is not ours.
    pub(super) fn requested(&self, flavor: ApiFlavor) -> Requested {
        let annotations = self.metadata.annotations.iter().flat_map(|annotations| annotations.of(flavor));
        annotations.filter_map(|(class, bytes)| Some((class.to_owned(), bytes.parse().ok()?))).collect()
    }

    pub(super) fn identity(&self) -> PodIdentity {
        let text = |name: &Option<Name<'_>>| name.as_ref().map_or("", Name::as_str).into();
        let volumes = self.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        PodIdentity {
            uid: text(&self.metadata.uid),
            namespace: text(&self.metadata.namespace),
            claims: volumes.filter_map(|volume| self.claim_of(volume)).collect(),
        }
    }

    /// Returns the bytes that an eviction of the pod frees, at most. Claims outlive their pod, but for those of generic
    /// ephemeral volumes. The annotations are the sums of both.
    pub(super) fn freed_by_eviction(&self, flavor: ApiFlavor) -> Requested {
        let mut volumes = self.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        if volumes.any(|volume| volume.ephemeral.is_some()) { self.requested(flavor) } else { Requested::new() }
    }

    /// Returns the name of the claim of a volume; kube-controller-manager makes that of an ephemeral volume.
    fn claim_of(&self, volume: &Volume<'_>) -> Option<Box<str>> {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(claim.claim_name.as_ref()?.as_str().into());
        }
        volume.ephemeral.as_ref()?;
        let (pod, volume) = (self.metadata.name.as_ref()?, volume.name.as_ref()?);
        Some(format!("{}-{}", pod.as_str(), volume.as_str()).into())
    }
}

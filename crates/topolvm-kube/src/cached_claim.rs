//! The fields of a PersistentVolumeClaim that the controllers read of all claims. Kubernetes' own type takes 2 KB.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;
use topolvm_api::claim::volume_name;
use topolvm_api::{ApiFlavor, RebuildPolicies, RebuildPolicy, RebuildPolicyError, SELECTED_NODE};

use crate::cache::Cached;

/// Finalizer that Kubernetes gives each claim, and mostly the only one.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A claim with the fields that are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedClaim {
    namespace: Box<str>,
    name: Box<str>,
    uid: Option<Box<str>>,
    volume_name: Option<Box<str>>,
    storage_class: Option<Box<str>>,
    /// The annotations that are read.
    annotations: Box<[(&'static str, Box<str>)]>,
    finalizers: Finalizers,
    deletion_timestamp: Option<Time>,
}

/// The finalizers of a claim, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Finalizers {
    /// That of Kubernetes alone.
    Protection,
    These(Box<[Box<str>]>),
}

impl CachedClaim {
    /// Takes from a claim what is kept of it.
    #[must_use]
    pub fn new(flavor: ApiFlavor, claim: &PersistentVolumeClaim) -> Self {
        let spec = claim.spec.as_ref();
        let annotation = |key: &'static str| Some((key, claim.annotations().get(key)?.as_str().into()));
        let read = [SELECTED_NODE, flavor.rebuild(), flavor.rebuild_keep()];
        Self {
            namespace: claim.metadata.namespace.as_deref().unwrap_or_default().into(),
            name: claim.metadata.name.as_deref().unwrap_or_default().into(),
            uid: claim.metadata.uid.as_deref().map(Into::into),
            volume_name: volume_name(claim).map(Into::into),
            storage_class: spec.and_then(|spec| spec.storage_class_name.as_deref()).map(Into::into),
            annotations: read.into_iter().filter_map(annotation).collect(),
            finalizers: Finalizers::of(claim.finalizers()),
            deletion_timestamp: claim.metadata.deletion_timestamp.clone(),
        }
    }

    /// Takes from the claim of an event what is kept of it.
    #[must_use]
    pub fn from_event(flavor: ApiFlavor, event: &Event<PersistentVolumeClaim>) -> Event<Self> {
        match event {
            Event::Apply(claim) => Event::Apply(Self::new(flavor, claim)),
            Event::Delete(claim) => Event::Delete(Self::new(flavor, claim)),
            Event::InitApply(claim) => Event::InitApply(Self::new(flavor, claim)),
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
        }
    }

    /// Returns a claim that has only these fields.
    #[must_use]
    pub fn to_object(&self) -> PersistentVolumeClaim {
        let owned = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        let annotations = self.annotations.iter().map(|(key, value)| ((*key).to_owned(), value.to_string()));
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                namespace: Some(self.namespace.to_string()),
                name: Some(self.name.to_string()),
                uid: owned(&self.uid),
                annotations: Some(annotations.collect::<BTreeMap<_, _>>()),
                finalizers: Some(self.finalizers().map(str::to_owned).collect()),
                deletion_timestamp: self.deletion_timestamp.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeClaimSpec {
                volume_name: owned(&self.volume_name),
                storage_class_name: owned(&self.storage_class),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        }
    }

    /// Returns the namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns namespace and name, as `kubectl` writes them.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Returns the UID.
    #[must_use]
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Returns the name of the PersistentVolume that the claim is bound to.
    #[must_use]
    pub fn volume_name(&self) -> Option<&str> {
        self.volume_name.as_deref()
    }

    /// Returns the node that the scheduler has selected for the claim.
    #[must_use]
    pub fn selected_node(&self) -> Option<&str> {
        self.annotation(SELECTED_NODE)
    }

    /// Returns whether the claim is being deleted.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Returns whether the claim has this finalizer.
    #[must_use]
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers().any(|found| found == name)
    }

    /// Returns when the claim is recreated because its node is lost.
    pub fn rebuild_policy(&self, policies: &RebuildPolicies) -> Result<RebuildPolicy, RebuildPolicyError> {
        policies.of_fields(self.storage_class.as_deref(), |key| self.annotation(key))
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.iter().find(|(found, _)| *found == key).map(|(_, value)| &**value)
    }

    fn finalizers(&self) -> impl Iterator<Item = &str> {
        let none: &[Box<str>] = &[];
        let (only, these) = match &self.finalizers {
            Finalizers::Protection => (Some(PROTECTION), none),
            Finalizers::These(these) => (None, &**these),
        };
        only.into_iter().chain(these.iter().map(|name| &**name))
    }
}

impl Finalizers {
    fn of(names: &[String]) -> Self {
        match names {
            [only] if only == PROTECTION => Self::Protection,
            names => Self::These(names.iter().map(|name| name.as_str().into()).collect()),
        }
    }
}

impl Cached for CachedClaim {
    fn key(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }

    fn is_unchanged(&self, other: &Self) -> bool {
        self == other
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;

    fn bound(finalizers: &[&str]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": "data-db-0", "uid": "0c54f5f8-52f1-4f38-9a27-3e5a1d7f6f10",
                "finalizers": finalizers, "labels": {"app": "db"},
                "annotations": {SELECTED_NODE: "n1", "topolvm.io/rebuild": "on-node-deleted", "other": "x"},
            },
            "spec": {"storageClassName": "fast", "volumeName": "pvc-0c54f5f8-52f1-4f38-9a27-3e5a1d7f6f10"},
            "status": {"phase": "Bound"},
        }))
        .unwrap()
    }

    #[test]
    fn cached_claim_returns_the_fields_that_are_read() {
        for finalizers in [&[PROTECTION][..], &[], &["a/x", PROTECTION, "b/y"]] {
            let claim = bound(finalizers);
            let mut read = claim.clone();
            read.metadata.labels = None;
            read.metadata.annotations.as_mut().unwrap().remove("other");
            read.status = None;
            let cached = CachedClaim::new(FLAVOR, &claim);
            assert_eq!(cached.to_object(), read);
            assert_eq!((cached.selected_node(), cached.has_finalizer("b/y")), (Some("n1"), finalizers.len() == 3));
        }
    }

    /// Returns the bytes of a string on the heap, as malloc(3) rounds them.
    fn heap(text: &str) -> usize {
        (text.len() + 8).next_multiple_of(16).max(32)
    }

    #[test]
    fn cached_claim_takes_less_than_half_a_kilobyte() {
        let mut claim = bound(&[PROTECTION]);
        claim.annotations_mut().remove("topolvm.io/rebuild");
        let cached = CachedClaim::new(FLAVOR, &claim);
        let texts =
            [cached.namespace(), cached.name(), cached.uid().unwrap(), cached.volume_name().unwrap(), "fast", "n1"];
        let annotation = size_of::<(&str, Box<str>)>() + 16;
        let bytes = size_of::<CachedClaim>() + 16 + annotation + texts.map(heap).iter().sum::<usize>();
        assert!(bytes <= 448, "{bytes}");
    }
}

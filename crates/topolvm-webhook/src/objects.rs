//! Parses the pod or claim of an admission review: a few fields, and of lists no more than is used. The memory that
//! they take does not depend on what is sent.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use topolvm_api::ApiFlavor;

use crate::object_name;

/// The most volumes of one pod that are counted, claims and templates of claims together. No node has so many for one
/// pod.
pub(crate) const MAX_VOLUMES: usize = 256;

/// The most bytes of a quantity's text; kube-apiserver writes none longer than about 30 characters.
const MAX_QUANTITY_LENGTH: usize = 64;

/// A new object, as it is sent.
#[derive(Debug, Deserialize)]
pub(crate) struct SentObject<S> {
    #[serde(default)]
    pub(crate) metadata: Metadata,
    pub(crate) spec: Option<S>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) namespace: Option<String>,
    pub(crate) annotations: Option<AnyObject>,
    pub(crate) finalizers: Option<Finalizers>,
    pub(crate) owner_references: Option<Controller>,
}

/// The owner that controls an object, if it has one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Controller(pub(crate) Option<Owner>);

/// An owner of an object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    controller: Option<bool>,
}

impl Owner {
    /// Returns whether no text of it is longer than the API server allows.
    fn is_short(&self) -> bool {
        [&self.api_version, &self.kind, &self.name, &self.uid].iter().all(|text| text.len() <= object_name::MAX_LENGTH)
    }
}

impl<'de> Deserialize<'de> for Controller {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut controller = None;
        for_each_element(deserializer, |owner: Owner| {
            if owner.controller == Some(true) && owner.is_short() {
                controller = Some(owner);
            }
        })?;
        Ok(Self(controller))
    }
}

/// A new pod.
pub(crate) type Pod = SentObject<PodSpec>;

/// A new claim.
pub(crate) type Claim = SentObject<ClaimSpec>;

#[derive(Debug, Deserialize)]
pub(crate) struct PodSpec {
    pub(crate) containers: Option<First<Container>>,
    #[serde(default)]
    pub(crate) volumes: Option<PodVolumes>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Container {
    pub(crate) resources: Option<ResourceRequirements>,
}

/// The resources of a container.
#[derive(Debug, Deserialize)]
pub(crate) struct ResourceRequirements {
    pub(crate) requests: Option<AnyObject>,
    pub(crate) limits: Option<AnyObject>,
}

/// The spec of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "SentClaimSpec")]
pub(crate) struct ClaimSpec {
    /// Its StorageClass; `None` where it names none, empty where it wants none.
    pub(crate) class: Option<String>,
    /// Its size; `None` where it asks for none.
    pub(crate) size: Option<Quantity>,
    pub(crate) is_block: bool,
}

impl From<PersistentVolumeClaimSpec> for ClaimSpec {
    fn from(spec: PersistentVolumeClaimSpec) -> Self {
        let requests = spec.resources.and_then(|resources| resources.requests);
        let size = requests.and_then(|mut requests| requests.remove("storage"));
        Self { class: spec.storage_class_name, size, is_block: spec.volume_mode.as_deref() == Some("Block") }
    }
}

/// The spec of a claim as it is sent.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SentClaimSpec {
    storage_class_name: Option<String>,
    volume_mode: Option<String>,
    resources: Option<ClaimResources>,
}

#[derive(Deserialize)]
struct ClaimResources {
    requests: Option<ClaimRequests>,
}

#[derive(Deserialize)]
struct ClaimRequests {
    storage: Option<Quantity>,
}

impl From<SentClaimSpec> for ClaimSpec {
    fn from(spec: SentClaimSpec) -> Self {
        let size = spec.resources.and_then(|resources| resources.requests?.storage);
        Self {
            // What cannot be the name of a class is as good as none: no volume is created for it
            class: spec.storage_class_name.map(|name| if object_name::is_valid(&name) { name } else { String::new() }),
            // One that cannot be read is not counted
            size: size.map(|size| if size.0.len() > MAX_QUANTITY_LENGTH { Quantity::default() } else { size }),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
        }
    }
}

/// The claims and ephemeral volumes of a pod, as many as are counted.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PodVolumes {
    /// Names of claims. One that is mounted twice is one volume.
    pub(crate) claims: BTreeSet<String>,
    /// Generic ephemeral volumes.
    pub(crate) templates: Vec<ClaimSpec>,
    /// True if the pod has more volumes than are counted.
    pub(crate) is_truncated: bool,
}

impl PodVolumes {
    fn add(&mut self, volume: Volume) {
        let claim = volume.persistent_volume_claim.map(|claimed| claimed.claim_name);
        let claim = claim.filter(|name| object_name::is_valid(name) && !self.claims.contains(name));
        let template = volume.ephemeral.and_then(|ephemeral| ephemeral.volume_claim_template);
        if claim.is_none() && template.is_none() {
            return;
        }
        self.is_truncated = self.is_truncated || self.claims.len() + self.templates.len() >= MAX_VOLUMES;
        if !self.is_truncated {
            self.claims.extend(claim);
            self.templates.extend(template.map(|template| template.spec));
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    persistent_volume_claim: Option<Claimed>,
    ephemeral: Option<Ephemeral>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claimed {
    claim_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ephemeral {
    volume_claim_template: Option<Template>,
}

#[derive(Deserialize)]
struct Template {
    spec: ClaimSpec,
}

impl<'de> Deserialize<'de> for PodVolumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut volumes = Self::default();
        for_each_element(deserializer, |volume| volumes.add(volume))?;
        Ok(volumes)
    }
}

/// The claim finalizers of this driver that an object has, by API group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Finalizers(Vec<ApiFlavor>);

impl Finalizers {
    /// Returns whether the finalizer of this API group is set.
    pub(crate) fn has(&self, flavor: ApiFlavor) -> bool {
        self.0.contains(&flavor)
    }
}

impl<'de> Deserialize<'de> for Finalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut ours = Vec::new();
        for_each_element(deserializer, |finalizer: String| {
            let flavors = [ApiFlavor::TopoLvm, ApiFlavor::Legacy];
            let flavor = flavors.into_iter().find(|flavor| flavor.pvc_finalizer() == finalizer);
            ours.extend(flavor.filter(|flavor| !ours.contains(flavor)));
        })?;
        Ok(Self(ours))
    }
}

/// The first element of a list.
#[derive(Debug)]
pub(crate) struct First<T>(pub(crate) Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut first = None;
        for_each_element(deserializer, |element| {
            first.get_or_insert(element);
        })?;
        Ok(Self(first))
    }
}

/// Any JSON object; its members are skipped.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct AnyObject {}

/// Calls a function for each element of a list, and keeps none.
fn for_each_element<'de, D, T>(deserializer: D, take: impl FnMut(T)) -> Result<(), D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct EachElement<F, T>(F, PhantomData<T>);

    impl<'de, F: FnMut(T), T: Deserialize<'de>> Visitor<'de> for EachElement<F, T> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
            while let Some(element) = list.next_element()? {
                (self.0)(element);
            }
            Ok(())
        }
    }

    deserializer.deserialize_seq(EachElement(take, PhantomData))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volumes(list: &Value) -> PodVolumes {
        serde_json::from_value(list.clone()).unwrap()
    }

    fn claimed(name: &str) -> Value {
        json!({"name": "v", "persistentVolumeClaim": {"claimName": name}})
    }

    #[test]
    fn claims_are_kept_once_and_no_more_than_are_read() {
        let mut list: Vec<_> = (0..20_000).map(|index| claimed(&format!("data{}", index % 300))).collect();
        let read = volumes(&list.clone().into());
        assert_eq!((read.claims.len(), read.is_truncated), (MAX_VOLUMES, true));
        list.retain(|volume| {
            let name = volume["persistentVolumeClaim"]["claimName"].as_str().unwrap();
            read.claims.contains(name)
        });
        let read = volumes(&list.into());
        assert_eq!((read.claims.len(), read.is_truncated), (MAX_VOLUMES, false));
    }

    #[test]
    fn templates_count_towards_the_same_bound() {
        let template = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "c"}}}});
        let mut list = vec![template; 20_000];
        list.insert(0, claimed("data"));
        list.push(claimed("last"));
        let read = volumes(&list.into());
        assert_eq!((read.claims.len(), read.templates.len(), read.is_truncated), (1, MAX_VOLUMES - 1, true));
    }

    #[test]
    fn invalid_claim_names_and_volumes_of_other_kinds_are_not_kept() {
        let others = [json!({"name": "v", "emptyDir": {}}), json!({"name": "e", "ephemeral": {}})];
        let list = json!([claimed("../x"), claimed(&"a".repeat(300)), others[0], others[1]]);
        assert_eq!(volumes(&list), PodVolumes::default());
    }

    #[test]
    fn long_texts_are_not_kept() {
        let spec = json!({
            "storageClassName": "c".repeat(1 << 20), "volumeMode": "x".repeat(1 << 20),
            "resources": {"requests": {"storage": "1".repeat(1 << 20), "other": "1"}},
        });
        let wanted: ClaimSpec = serde_json::from_value(spec).unwrap();
        let none = ClaimSpec { class: Some(String::new()), size: Some(Quantity::default()), is_block: false };
        assert_eq!(wanted, none);
    }

    #[test]
    fn a_claim_in_a_pod_is_read_as_one_of_the_api_server() {
        for spec in [
            json!({}),
            json!({"storageClassName": "", "volumeMode": "Block", "resources": {}}),
            json!({"storageClassName": "c", "volumeMode": "Filesystem", "resources": {"requests": {"storage": "3Gi"}}}),
        ] {
            let typed: PersistentVolumeClaimSpec = serde_json::from_value(spec.clone()).unwrap();
            let wanted: ClaimSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(wanted, typed.into(), "{spec}");
        }
    }

    #[test]
    fn the_owner_that_controls_is_kept_unless_it_is_too_long() {
        let owner = |name: &str, controller: Option<bool>| {
            let kind = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "u"});
            let mut owner = kind.as_object().unwrap().clone();
            owner.extend([("name".to_owned(), json!(name)), ("controller".to_owned(), json!(controller))]);
            owner
        };
        let read = |list: Value| serde_json::from_value::<Controller>(list).unwrap().0.map(|owner| owner.name);
        let list = json!([owner("a", None), owner("b", Some(true)), owner("c", Some(false))]);
        assert_eq!(read(list), Some("b".to_owned()));
        assert_eq!(read(json!([owner(&"x".repeat(1 << 20), Some(true))])), None);
    }

    #[test]
    fn finalizers_of_both_groups_are_distinguished() {
        let list = json!(["a", "topolvm.io/pvc", "topolvm.io/pvc", "b"]);
        let finalizers: Finalizers = serde_json::from_value(list).unwrap();
        assert!(finalizers.has(ApiFlavor::TopoLvm) && !finalizers.has(ApiFlavor::Legacy));
        assert_eq!(finalizers.0.len(), 1);
    }
}

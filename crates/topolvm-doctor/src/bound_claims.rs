//! Bound claims as short texts. Kubernetes' own type takes 2 KB, and checks read few bound claims: those to which a
//! pod, a copy, or an LV without a LogicalVolume refers.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::{ObjectMeta, ResourceExt as _};
use topolvm_api::{NodeOrphans, claim_names};

use crate::facts::Facts;
use crate::objects::source_of;

/// Bound claims.
#[derive(Clone, Debug, Default)]
pub struct BoundClaims(Vec<BoundClaim>);

/// Namespace, name, volume, StorageClass and requested size of a claim, with slashes in between: none of them has any.
#[derive(Clone, Debug)]
struct BoundClaim(Box<str>);

/// The claims to which other objects refer.
struct References {
    /// Namespaces and names.
    names: HashSet<(String, String)>,
    /// Names of PersistentVolumes.
    volumes: HashSet<String>,
}

impl BoundClaims {
    /// Adds a claim. Returns false for one without a volume, which is not added.
    pub fn add(&mut self, claim: &PersistentVolumeClaim) -> bool {
        let bound = BoundClaim::new(claim);
        let is_bound = bound.is_some();
        self.0.extend(bound);
        is_bound
    }

    /// Adds those to the claims of the facts that checks read, except the check `leftovers`, which reads all. The other
    /// facts must have been read.
    pub fn add_referenced_to(self, facts: &mut Facts) {
        let references = References::of(facts);
        if let Ok(claims) = &mut facts.claims {
            claims.extend(self.0.iter().filter(|claim| references.have(claim)).map(BoundClaim::to_object));
        }
    }
}

impl BoundClaim {
    fn new(claim: &PersistentVolumeClaim) -> Option<Self> {
        let spec = claim.spec.as_ref()?;
        let volume = spec.volume_name.as_deref().filter(|name| !name.is_empty())?;
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let class = spec.storage_class_name.as_deref().unwrap_or_default();
        let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let size = requests.and_then(|requests| requests.get("storage")).map_or("", |size| &size.0);
        Some(Self([&namespace, &name, volume, class, size].join("/").into()))
    }

    fn fields(&self) -> [&str; 5] {
        let mut fields = self.0.split('/');
        [(); 5].map(|()| fields.next().unwrap_or_default())
    }

    fn to_object(&self) -> PersistentVolumeClaim {
        let [namespace, name, volume, class, size] = self.fields().map(str::to_owned);
        let requests = (!size.is_empty()).then(|| BTreeMap::from([("storage".to_owned(), Quantity(size))]));
        PersistentVolumeClaim {
            metadata: ObjectMeta { namespace: Some(namespace), name: Some(name), ..ObjectMeta::default() },
            spec: Some(PersistentVolumeClaimSpec {
                volume_name: Some(volume),
                storage_class_name: Some(class),
                resources: Some(VolumeResourceRequirements { requests, limits: None }),
                ..PersistentVolumeClaimSpec::default()
            }),
            status: None,
        }
    }
}

impl References {
    fn of(facts: &Facts) -> Self {
        let of_pods = facts.pods.iter().flatten().flat_map(|pod| {
            let namespace = pod.namespace().unwrap_or_default();
            claim_names(pod).into_iter().map(move |name| (namespace.clone(), name))
        });
        let of_copies = facts.claims.iter().flatten().filter_map(|claim| {
            let (_, namespace, name) = source_of(claim)?;
            Some((namespace, name.to_owned()))
        });
        let of_snapshots = facts.snapshots.iter().flatten().filter_map(|snapshot| {
            Some((snapshot.metadata.namespace.clone()?, snapshot.spec.source.persistent_volume_claim_name.clone()?))
        });
        let annotations = facts.nodes.iter().flatten().map(|node| node.annotations().get(facts.flavor.orphans()));
        let orphans = annotations.filter_map(|text| NodeOrphans::parse(text.map(String::as_str)).ok());
        let volumes: HashSet<_> =
            orphans.flat_map(|orphans| orphans.volumes).map(|orphan| orphan.logical_volume).collect();
        let persistent = facts.persistent.iter().flatten().filter(|one| volumes.contains(&*one.name));
        let of_orphans = persistent.filter_map(|one| one.claim());
        let of_orphans = of_orphans.map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        Self { names: of_pods.chain(of_copies).chain(of_snapshots).chain(of_orphans).collect(), volumes }
    }

    fn have(&self, claim: &BoundClaim) -> bool {
        let [namespace, name, volume, ..] = claim.fields();
        self.volumes.contains(volume) || self.names.contains(&(namespace.to_owned(), name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_api::ApiFlavor;

    use super::*;
    use crate::csi_persistent_volume::CsiPersistentVolume;

    fn of<T: serde::de::DeserializeOwned>(object: Value) -> T {
        serde_json::from_value(object).unwrap()
    }

    fn bound(name: &str, volume: &str) -> PersistentVolumeClaim {
        of(json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"storageClassName": "fast", "volumeName": volume, "resources": {"requests": {"storage": "2Gi"}}},
        }))
    }

    #[test]
    fn bound_claims_are_added_whole_where_something_refers_to_them() {
        let mut facts = Facts::empty(ApiFlavor::TopoLvm, "topolvm-system", jiff::Timestamp::UNIX_EPOCH);
        let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": "of-pod"}});
        facts.pods = Ok(vec![of(json!({
            "metadata": {"namespace": "shop", "name": "web"}, "spec": {"containers": [], "volumes": [volume]},
        }))]);
        facts.claims = Ok(vec![of(json!({
            "metadata": {"namespace": "shop", "name": "copy"},
            "spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "of-copy"}},
        }))]);
        let orphan =
            |name: &str| json!({"lv": "l", "logicalVolume": name, "bytes": 1, "note": "", "deviceClass": "ssd"});
        let orphans = json!({"volumes": [orphan("pvc-of-orphan"), orphan("pvc-old")], "more": 0}).to_string();
        let annotations = json!({ApiFlavor::TopoLvm.orphans(): orphans});
        facts.nodes = Ok(vec![of(json!({"metadata": {"name": "n1", "annotations": annotations}}))]);
        facts.persistent = Ok(vec![CsiPersistentVolume {
            name: "pvc-old".into(),
            volume_handle: "h".into(),
            filesystem: None,
            storage_class: "".into(),
            is_block: false,
            claim: Some("shop/of-persistent".into()),
            is_in_use: false,
        }]);

        let mut claims = BoundClaims::default();
        assert!(!claims.add(&bound("unbound", "")));
        let referenced = [("of-pod", "a"), ("of-copy", "b"), ("of-orphan", "pvc-of-orphan"), ("of-persistent", "c")];
        for (name, volume) in referenced.into_iter().chain([("other", "d"), ("copy-of-other", "pvc")]) {
            assert!(claims.add(&bound(name, volume)));
        }
        claims.add_referenced_to(&mut facts);
        let expected: Vec<_> = referenced.map(|(name, volume)| bound(name, volume)).to_vec();
        assert_eq!(facts.claims.unwrap().split_off(1), expected);
    }
}

//! Finds the owner of the objects that a program makes for itself: the Deployment of this pod, so that they go
//! when it is removed.

use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client};
use topolvm_runtime::{Backoff, error_chain};

/// Pauses while the API server does not answer.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// The owner of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    api_version: String,
    kind: String,
    name: String,
    /// UID of the owner.
    pub uid: String,
}

impl Owner {
    /// Returns the owner reference of an object.
    pub fn reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// Returns the controller that owns an object.
    fn of(metadata: &ObjectMeta) -> Option<Self> {
        let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
        Some(Self {
            api_version: controller.api_version.clone(),
            kind: controller.kind.clone(),
            name: controller.name.clone(),
            uid: controller.uid.clone(),
        })
    }
}

/// Finds the Deployment of the pod of this name, or its other controller. `None` outside of a pod, and where the Role
/// does not permit the lookup: then the objects stay when the controller is removed.
pub async fn find_owner(client: &Client, namespace: &str, pod: &str) -> Option<Owner> {
    let mut backoff = RETRY;
    loop {
        let error = match try_find_owner(client, namespace, pod).await {
            Ok(owner) => {
                if owner.is_none() {
                    tracing::info!(
                        pod,
                        "this pod does not exist or has no owner; the created objects have no owner either"
                    );
                }
                return owner;
            }
            Err(error) => error,
        };
        let message = error_chain(&error);
        if matches!(&error, kube::Error::Api(status) if status.code == 403) {
            let advice = "allow get of pods and replicasets in the Role; the created objects have no owner";
            tracing::warn!(pod, error = message, advice);
            return None;
        }
        tracing::warn!(pod, error = message, "cannot read the owner of this pod; trying again");
        tokio::time::sleep(backoff.fail()).await;
    }
}

async fn try_find_owner(client: &Client, namespace: &str, pod: &str) -> kube::Result<Option<Owner>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let Some(owner) = pods.get_metadata_opt(pod).await?.and_then(|pod| Owner::of(&pod.metadata)) else {
        return Ok(None);
    };
    if owner.kind != "ReplicaSet" {
        return Ok(Some(owner));
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let set = sets.get_metadata_opt(&owner.name).await?;
    Ok(set.and_then(|set| Owner::of(&set.metadata)).or(Some(owner)))
}

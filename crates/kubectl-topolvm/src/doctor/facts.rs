//! Reads the state of the cluster, each kind of object once.

use std::sync::Arc;

use cli_runtime::connection::Cluster;
use cli_runtime::request::{RequestResult, get, list, list_all};
use cli_runtime::server_version;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolume};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use topolvm_api::{ApiFlavor, DiskOperation, EXTENDER_PROBE, LogicalVolume, NodeStorage};
use topolvm_doctor::{CsiPersistentVolume, Facts, LEASE, ReadError, Workload, unproven_reason};

use super::answer::fact;
use super::{clock, metrics, rights, snapshots, webhooks};

/// Reads all facts about the installation whose programs are in `namespace`. `now` is the local time, for an API server
/// that reports none.
pub(super) async fn read(cluster: &Cluster, namespace: &str, now: Timestamp) -> Facts {
    let now = clock::read(&cluster.client).await.unwrap_or(now);
    let mut facts = Facts::empty(cluster.flavor, namespace, now);
    Box::pin(read_installation(cluster, &mut facts)).await;
    Box::pin(read_volumes(cluster, &mut facts)).await;
    Box::pin(snapshots::read(&cluster.client, &mut facts)).await;
    facts.unproven = fact(unproven(&cluster.client, namespace).await);
    let webhooks = facts.webhooks.as_deref().unwrap_or_default();
    facts.backends = webhooks::backends(cluster, namespace, webhooks).await;
    facts.rights = fact(rights::review(cluster, namespace, &facts.service_accounts()).await);
    facts.metrics = metrics::read(&cluster.client, namespace, facts.pods.as_deref().unwrap_or_default()).await;
    facts
}

/// Reads the programs, what they are registered with, and the nodes.
async fn read_installation(cluster: &Cluster, facts: &mut Facts) {
    let client = &cluster.client;
    // As csi-provisioner makes a name of that of the driver
    let provisioner = cluster.flavor.driver_name().replace('.', "-");
    let programs = async {
        futures::join!(
            server_version::read(client),
            definitions(client),
            list_workloads(client),
            leases(client, LEASE),
            leases(client, &provisioner),
        )
    };
    // The types of the fields name the kinds
    let objects = async {
        futures::join!(list_all(client), list_all(client), list_all(client), list_all(client), list_all(client))
    };
    let (programs, (nodes, csi_nodes, drivers, webhooks, namespaces)) = futures::join!(programs, objects);
    let (version, definitions, workloads, leases, provisioner_leases) = programs;
    (facts.version, facts.definitions) = (fact(version), fact(definitions));
    facts.workloads = fact(workloads);
    (facts.leases, facts.provisioner_leases) = (fact(leases), fact(provisioner_leases));
    (facts.nodes, facts.csi_nodes, facts.drivers) = (fact(nodes), fact(csi_nodes), fact(drivers));
    (facts.webhooks, facts.namespaces) = (fact(webhooks), fact(namespaces));
}

/// Reads pods, claims and volumes, in this order: an object that is bound or created meanwhile must not appear unbound
/// or missing.
async fn read_volumes(cluster: &Cluster, facts: &mut Facts) {
    let client = &cluster.client;
    let (pods, classes, events) = futures::join!(list_all(client), list_all(client), creation_events(client));
    facts.pods = fact(pods);
    (facts.classes, facts.creation_events) = (fact(classes), fact(events));
    let (claims, capacities) = futures::join!(list_all(client), list_all(client));
    (facts.claims, facts.capacities) = (fact(claims), fact(capacities));
    let ours = |volumes: Vec<PersistentVolume>| {
        volumes.into_iter().filter_map(|volume| CsiPersistentVolume::new(cluster.flavor, volume)).collect()
    };
    facts.persistent = fact(list_all(client).await).map(ours);
    let volumes = Api::<LogicalVolume>::all_with(client.clone(), &cluster.flavor);
    facts.volumes = match fact(list(&volumes, &cluster.flavor, "").await) {
        // The check of the definitions reports it
        Err(ReadError::Absent { .. }) => Ok(Vec::new()),
        volumes => volumes.map(|volumes| volumes.into_iter().map(Arc::new).collect()),
    };
    let storage = Api::<NodeStorage>::all_with(client.clone(), &cluster.flavor);
    facts.node_storage = fact(list(&storage, &cluster.flavor, "").await);
    let operations = Api::<DiskOperation>::all_with(client.clone(), &cluster.flavor);
    facts.disk_operations = fact(list(&operations, &cluster.flavor, "").await);
}

/// Reads the reason for which kube-scheduler does not call the extender, as the controllers report it.
async fn unproven(client: &Client, namespace: &str) -> RequestResult<Option<String>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    Ok(get(&api, EXTENDER_PROBE).await?.as_ref().and_then(unproven_reason))
}

/// Lists the Events of controllers whose pods could not be created.
async fn creation_events(client: &Client) -> RequestResult<Vec<Event>> {
    list(&Api::all(client.clone()), &(), "reason=FailedCreate").await
}

/// Lists the Deployments and DaemonSets of all namespaces that run our programs.
async fn list_workloads(client: &Client) -> RequestResult<Vec<Workload>> {
    // One after the other, so that of two missing rights always the same is named
    let deployments = list_all::<Deployment>(client).await?;
    let sets = list_all::<DaemonSet>(client).await?;
    let deployments = deployments.into_iter().filter_map(Workload::of_deployment);
    Ok(deployments.chain(sets.into_iter().filter_map(Workload::of_daemon_set)).collect())
}

/// Lists the Leases of this name, of all namespaces.
async fn leases(client: &Client, name: &str) -> RequestResult<Vec<Lease>> {
    list(&Api::all(client.clone()), &(), &format!("metadata.name={name}")).await
}

async fn definitions(client: &Client) -> RequestResult<Vec<CustomResourceDefinition>> {
    let api = Api::all(client.clone());
    let mut found = Vec::new();
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        found.extend(get::<CustomResourceDefinition>(&api, &format!("logicalvolumes.{}", flavor.group())).await?);
    }
    Ok(found)
}

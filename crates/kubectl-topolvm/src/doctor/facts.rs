//! The state of the cluster that the checks look at, read once.

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client};
use topolvm_api::ApiFlavor;

use super::rights::{self, Right};
use super::webhooks::{self, Backend};
use super::workloads::{LEASE, Role, Workload, list_workloads};
use crate::connection::Cluster;
use crate::request::{RequestResult, get, list, list_all};
use crate::server_version::{self, Version};

/// State of the cluster; each part is an error if it could not be read.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) flavor: ApiFlavor,
    /// Namespace of our programs.
    pub(super) namespace: String,
    pub(super) now: Timestamp,
    /// Major and minor version, and as the API server spells it.
    pub(super) version: RequestResult<Version>,
    /// Of both API groups.
    pub(super) definitions: RequestResult<Vec<CustomResourceDefinition>>,
    pub(super) drivers: RequestResult<Vec<CSIDriver>>,
    pub(super) csi_nodes: RequestResult<Vec<CSINode>>,
    pub(super) nodes: RequestResult<Vec<Node>>,
    pub(super) workloads: RequestResult<Vec<Workload>>,
    /// Of the controllers, in any namespace.
    pub(super) leases: RequestResult<Vec<Lease>>,
    /// Of csi-provisioner for our driver, in any namespace.
    pub(super) provisioner_leases: RequestResult<Vec<Lease>>,
    pub(super) webhooks: RequestResult<Vec<MutatingWebhookConfiguration>>,
    /// Services of the webhooks.
    pub(super) backends: Vec<Backend>,
    pub(super) classes: RequestResult<Vec<StorageClass>>,
    pub(super) namespaces: RequestResult<Vec<Namespace>>,
    pub(super) rights: RequestResult<Vec<Right>>,
}

impl Facts {
    pub(super) async fn read(cluster: &Cluster, namespace: &str, now: Timestamp) -> Self {
        let mut facts = Box::pin(Self::list_objects(cluster, namespace, now)).await;
        let webhooks = facts.webhooks.as_deref().unwrap_or_default();
        facts.backends = webhooks::backends(cluster, namespace, webhooks).await;
        facts.rights = rights::review(cluster, namespace, &facts.service_accounts()).await;
        facts
    }

    /// Reads what needs no other object; there are no backends and no rights yet.
    async fn list_objects(cluster: &Cluster, namespace: &str, now: Timestamp) -> Self {
        let (client, flavor) = (&cluster.client, cluster.flavor);
        // As csi-provisioner makes a name of that of the driver
        let provisioner = flavor.driver_name().replace('.', "-");
        let installed = async {
            futures::join!(
                server_version::read(client),
                definitions(client),
                list_all::<CSIDriver>(client),
                list_all::<CSINode>(client),
                list_workloads(client),
                leases(client, LEASE),
                leases(client, &provisioner),
            )
        };
        // The types of the fields name the kinds
        let objects = async { futures::join!(list_all(client), list_all(client), list_all(client), list_all(client)) };
        let (installed, (nodes, webhooks, classes, namespaces)) = futures::join!(installed, objects);
        let (version, definitions, drivers, csi_nodes, workloads, leases, provisioner_leases) = installed;
        Self {
            flavor,
            namespace: namespace.to_owned(),
            now,
            version,
            definitions,
            drivers,
            csi_nodes,
            nodes,
            workloads,
            leases,
            provisioner_leases,
            webhooks,
            backends: Vec::new(),
            classes,
            namespaces,
            rights: Ok(Vec::new()),
        }
    }

    /// Returns the service account of each program, that of our manifests where no workload runs it.
    fn service_accounts(&self) -> [(Role, String); 2] {
        [Role::Controller, Role::Node].map(|role| {
            let mut ours = self.workloads_of(role).unwrap_or_default().into_iter();
            (role, ours.next().map_or_else(|| role.program().to_owned(), |workload| workload.account.clone()))
        })
    }

    pub(super) fn workloads_of(&self, role: Role) -> RequestResult<Vec<&Workload>> {
        let workloads = self.workloads.as_ref().map_err(Clone::clone)?;
        let is_ours = |workload: &&Workload| workload.role == role && workload.namespace == self.namespace;
        Ok(workloads.iter().filter(is_ours).collect())
    }
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

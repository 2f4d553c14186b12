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
use crate::read::{ReadResult, get, list, list_all};
use crate::server_version::{self, Version};

/// State of the cluster; each part is an error if it could not be read.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) flavor: ApiFlavor,
    /// Namespace of our programs.
    pub(super) namespace: String,
    pub(super) now: Timestamp,
    /// Major and minor version, and as the API server spells it.
    pub(super) version: ReadResult<Version>,
    /// Of both API groups.
    pub(super) definitions: ReadResult<Vec<CustomResourceDefinition>>,
    pub(super) drivers: ReadResult<Vec<CSIDriver>>,
    pub(super) csi_nodes: ReadResult<Vec<CSINode>>,
    pub(super) nodes: ReadResult<Vec<Node>>,
    pub(super) workloads: ReadResult<Vec<Workload>>,
    /// Of the controllers, in any namespace.
    pub(super) leases: ReadResult<Vec<Lease>>,
    /// Of csi-provisioner for our driver, in any namespace.
    pub(super) provisioner_leases: ReadResult<Vec<Lease>>,
    pub(super) webhooks: ReadResult<Vec<MutatingWebhookConfiguration>>,
    /// Services of the webhooks.
    pub(super) backends: Vec<Backend>,
    pub(super) classes: ReadResult<Vec<StorageClass>>,
    pub(super) namespaces: ReadResult<Vec<Namespace>>,
    pub(super) rights: ReadResult<Vec<Right>>,
}

impl Facts {
    pub(super) async fn read(client: &Client, flavor: ApiFlavor, namespace: &str, now: Timestamp) -> Self {
        let leases = Api::<Lease>::all(client.clone());
        let named = |name: &str| format!("metadata.name={name}");
        // As csi-provisioner makes a name of that of the driver
        let provisioner = flavor.driver_name().replace('.', "-");
        let (first, second) = futures::join!(
            async {
                futures::join!(
                    server_version::read(client),
                    definitions(client),
                    list_all::<CSIDriver>(client),
                    list_all::<CSINode>(client),
                    list_all::<Node>(client),
                    list_workloads(client),
                )
            },
            async {
                let (of_controller, of_provisioner) = (named(LEASE), named(&provisioner));
                futures::join!(
                    list(&leases, &(), &of_controller),
                    list(&leases, &(), &of_provisioner),
                    list_all::<MutatingWebhookConfiguration>(client),
                    list_all::<StorageClass>(client),
                    list_all::<Namespace>(client),
                )
            },
        );
        let (version, definitions, drivers, csi_nodes, nodes, workloads) = first;
        let (leases, provisioner_leases, webhooks, classes, namespaces) = second;
        let accounts = [Role::Controller, Role::Node].map(|role| {
            let mut found = workloads.iter().flatten();
            let found = found.find(|workload| workload.role == role && workload.namespace == namespace);
            (role, found.map_or_else(|| role.program().to_owned(), |workload| workload.account.clone()))
        });
        let backends = match &webhooks {
            Ok(webhooks) => webhooks::backends(client, flavor, namespace, webhooks).await,
            Err(_) => Vec::new(),
        };
        let rights = rights::review(client, flavor, namespace, &accounts).await;
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
            backends,
            classes,
            namespaces,
            rights,
        }
    }

    pub(super) fn workloads_of(&self, role: Role) -> ReadResult<Vec<&Workload>> {
        let workloads = self.workloads.as_ref().map_err(Clone::clone)?;
        let is_ours = |workload: &&Workload| workload.role == role && workload.namespace == self.namespace;
        Ok(workloads.iter().filter(is_ours).collect())
    }
}

async fn definitions(client: &Client) -> ReadResult<Vec<CustomResourceDefinition>> {
    let api = Api::all(client.clone());
    let mut found = Vec::new();
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        found.extend(get::<CustomResourceDefinition>(&api, &format!("logicalvolumes.{}", flavor.group())).await?);
    }
    Ok(found)
}

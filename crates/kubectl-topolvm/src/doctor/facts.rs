//! What the checks look at, read once.

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, PodSpec};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt as _};
use topolvm_api::ApiFlavor;

use super::rights::{self, Right};
use super::webhooks::{self, Backend};
use crate::reading::{Seen, all, list_of, one};
use crate::server_version::{self, Version};

/// The Lease of the controllers, with the name that --leader-election-id has by default.
pub(super) const LEASE: &str = "topolvm";

/// All that was read, or why it could not be.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(super) flavor: ApiFlavor,
    /// Where our programs are.
    pub(super) namespace: String,
    pub(super) now: Timestamp,
    /// Major and minor version, and as the API server spells it.
    pub(super) version: Seen<Version>,
    /// Of both API groups.
    pub(super) definitions: Seen<Vec<CustomResourceDefinition>>,
    pub(super) drivers: Seen<Vec<CSIDriver>>,
    pub(super) csi_nodes: Seen<Vec<CSINode>>,
    pub(super) nodes: Seen<Vec<Node>>,
    pub(super) workloads: Seen<Vec<Workload>>,
    /// Of the controllers, in any namespace.
    pub(super) leases: Seen<Vec<Lease>>,
    /// Of csi-provisioner for our driver, in any namespace.
    pub(super) provisioner_leases: Seen<Vec<Lease>>,
    pub(super) webhooks: Seen<Vec<MutatingWebhookConfiguration>>,
    /// What the webhooks point to.
    pub(super) backends: Vec<Backend>,
    pub(super) classes: Seen<Vec<StorageClass>>,
    pub(super) namespaces: Seen<Vec<Namespace>>,
    pub(super) rights: Seen<Vec<Right>>,
}

/// Which of our programs a workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Controller,
    Node,
}

impl Role {
    /// The program, its container, and its service account in our manifests.
    pub(super) const fn program(self) -> &'static str {
        match self {
            Self::Controller => "topolvm-controller",
            Self::Node => "topolvm-node",
        }
    }
}

/// A Deployment or DaemonSet that runs one of our programs.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) role: Role,
    /// `kind/name`.
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) wanted: i32,
    pub(super) ready: i32,
    pub(super) account: String,
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
                    all::<CSIDriver>(client),
                    all::<CSINode>(client),
                    all::<Node>(client),
                    workloads(client),
                )
            },
            async {
                let (of_controller, of_provisioner) = (named(LEASE), named(&provisioner));
                futures::join!(
                    list_of(&leases, &(), &of_controller),
                    list_of(&leases, &(), &of_provisioner),
                    all::<MutatingWebhookConfiguration>(client),
                    all::<StorageClass>(client),
                    all::<Namespace>(client),
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
        let rights = rights::ask(client, flavor, namespace, &accounts).await;
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

    pub(super) fn workloads_of(&self, role: Role) -> Seen<Vec<&Workload>> {
        let workloads = self.workloads.as_ref().map_err(Clone::clone)?;
        let is_ours = |workload: &&Workload| workload.role == role && workload.namespace == self.namespace;
        Ok(workloads.iter().filter(is_ours).collect())
    }
}

async fn definitions(client: &Client) -> Seen<Vec<CustomResourceDefinition>> {
    let api = Api::all(client.clone());
    let mut found = Vec::new();
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        found.extend(one::<CustomResourceDefinition>(&api, &format!("logicalvolumes.{}", flavor.group())).await?);
    }
    Ok(found)
}

async fn workloads(client: &Client) -> Seen<Vec<Workload>> {
    // One after the other, so that of two missing rights always the same is named
    let deployments = all::<Deployment>(client).await?;
    let sets = all::<DaemonSet>(client).await?;
    let mut found = Vec::new();
    for deployment in deployments {
        let Some(spec) = &deployment.spec else { continue };
        let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        let name = format!("deployment/{}", deployment.name_any());
        found.extend(workload(spec.template.spec.as_ref(), name, deployment.namespace()).map(|workload| Workload {
            wanted: spec.replicas.unwrap_or(1),
            ready,
            ..workload
        }));
    }
    for set in sets {
        let Some(spec) = &set.spec else { continue };
        let name = format!("daemonset/{}", set.name_any());
        let numbers = set.status.as_ref().map(|status| (status.desired_number_scheduled, status.number_ready));
        let (wanted, ready) = numbers.unwrap_or_default();
        let workload = workload(spec.template.spec.as_ref(), name, set.namespace());
        found.extend(workload.map(|workload| Workload { wanted, ready, ..workload }));
    }
    Ok(found)
}

/// Whose pods have a container of one of our programs, by its name or by its command.
fn workload(pods: Option<&PodSpec>, name: String, namespace: Option<String>) -> Option<Workload> {
    let pods = pods?;
    let runs = |role: Role| {
        pods.containers.iter().any(|container| {
            let command = container.command.iter().flatten().next();
            let program = command.and_then(|command| command.rsplit('/').next());
            container.name == role.program() || program == Some(role.program())
        })
    };
    let role = [Role::Controller, Role::Node].into_iter().find(|role| runs(*role))?;
    let account = pods.service_account_name.clone().unwrap_or_else(|| "default".to_owned());
    Some(Workload { role, name, namespace: namespace.unwrap_or_default(), wanted: 0, ready: 0, account })
}

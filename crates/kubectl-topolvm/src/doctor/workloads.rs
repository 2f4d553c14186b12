//! Deployments and DaemonSets that run our programs.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PodSpec;
use kube::{Client, ResourceExt as _};

use crate::request::{RequestResult, list_all};

/// The Lease of the controllers, with the name that --leader-election-id has by default.
pub(super) const LEASE: &str = "topolvm";

/// A program of ours that a workload runs.
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

/// Lists the Deployments and DaemonSets of all namespaces that run our programs.
pub(super) async fn list_workloads(client: &Client) -> RequestResult<Vec<Workload>> {
    // One after the other, so that of two missing rights always the same is named
    let deployments = list_all::<Deployment>(client).await?;
    let sets = list_all::<DaemonSet>(client).await?;
    let mut found = Vec::new();
    for deployment in deployments {
        let Some(spec) = &deployment.spec else { continue };
        let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        let name = format!("deployment/{}", deployment.name_any());
        let replicas = (spec.replicas.unwrap_or(1), ready);
        found.extend(workload(spec.template.spec.as_ref(), name, deployment.namespace(), replicas));
    }
    for set in sets {
        let Some(spec) = &set.spec else { continue };
        let name = format!("daemonset/{}", set.name_any());
        let pods = set.status.as_ref().map(|status| (status.desired_number_scheduled, status.number_ready));
        found.extend(workload(spec.template.spec.as_ref(), name, set.namespace(), pods.unwrap_or_default()));
    }
    Ok(found)
}

/// Returns the workload if its pods have a container of one of our programs, by its name or by its command.
fn workload(
    pods: Option<&PodSpec>,
    name: String,
    namespace: Option<String>,
    (wanted, ready): (i32, i32),
) -> Option<Workload> {
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
    Some(Workload { role, name, namespace: namespace.unwrap_or_default(), wanted, ready, account })
}

//! Deployments and DaemonSets that run our programs, and the rights of their service accounts.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube_core::ResourceExt as _;

/// The Lease of the controllers, with the name that --leader-election-id has by default.
pub const LEASE: &str = "topolvm";

/// A program of ours that a workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// topolvm-controller.
    Controller,
    /// topolvm-node.
    Node,
}

impl Role {
    /// The program, its container, and its service account in our manifests.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Controller => "topolvm-controller",
            Self::Node => "topolvm-node",
        }
    }
}

/// A right that a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Service account of the program.
    pub account: String,
    /// `patch logicalvolumes.topolvm.io/status`.
    pub what: String,
    /// The answer of the API server.
    pub is_allowed: bool,
}

/// A Deployment or DaemonSet that runs one of our programs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The program.
    pub role: Role,
    /// `kind/name`.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Number of pods that there should be.
    pub wanted: i32,
    /// Number of pods that are ready.
    pub ready: i32,
    /// Service account of the pods.
    pub account: String,
    /// All containers of the pods, sidecars too.
    pub containers: Vec<Container>,
}

impl Workload {
    /// Returns the workload of a Deployment that runs one of our programs.
    pub fn of_deployment(deployment: Deployment) -> Option<Self> {
        let name = format!("deployment/{}", deployment.name_any());
        let namespace = deployment.namespace();
        let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        let spec = deployment.spec?;
        Self::of_pods(spec.template.spec?, name, namespace, (spec.replicas.unwrap_or(1), ready))
    }

    /// Returns the workload of a DaemonSet that runs one of our programs.
    pub fn of_daemon_set(set: DaemonSet) -> Option<Self> {
        let name = format!("daemonset/{}", set.name_any());
        let namespace = set.namespace();
        let pods = set.status.as_ref().map(|status| (status.desired_number_scheduled, status.number_ready));
        Self::of_pods(set.spec?.template.spec?, name, namespace, pods.unwrap_or_default())
    }

    /// Returns the workload if its pods have a container of one of our programs.
    fn of_pods(pods: PodSpec, name: String, namespace: Option<String>, (wanted, ready): (i32, i32)) -> Option<Self> {
        let runs = |role: &Role| pods.containers.iter().any(|container| is_of(container, role.program()));
        let role = [Role::Controller, Role::Node].into_iter().find(runs)?;
        let account = pods.service_account_name.unwrap_or_else(|| "default".to_owned());
        let namespace = namespace.unwrap_or_default();
        Some(Self { role, name, namespace, wanted, ready, account, containers: pods.containers })
    }

    /// Returns the container of a program and its place among the containers.
    pub(crate) fn container(&self, program: &str) -> Option<(usize, &Container)> {
        self.containers.iter().enumerate().find(|(_, container)| is_of(container, program))
    }

    /// Returns the value of a flag of our program; empty for one without a value.
    pub(crate) fn flag(&self, name: &str) -> Option<&str> {
        self.container(self.role.program()).and_then(|(_, container)| flag(container, name))
    }

    /// Returns true if topolvm-controller runs this controller of a sidecar itself: --controllers, or its earlier name
    /// --embed, or their variables.
    pub(crate) fn embeds(&self, work: &str) -> bool {
        let Some((_, container)) = self.container(Role::Controller.program()) else { return false };
        [("--controllers", "CONTROLLERS"), ("--embed", "EMBED")].into_iter().any(|(name, environment)| {
            let flags = flag_values(container, name);
            let embedded =
                if flags.is_empty() { variable(container, environment).into_iter().collect() } else { flags };
            embedded.into_iter().any(|value| value.split(',').any(|part| part == work))
        })
    }
}

/// Returns the value of an environment variable of a container, unless it comes from elsewhere.
fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let variable = container.env.iter().flatten().find(|variable| variable.name == name)?;
    variable.value.as_deref()
}

/// Returns true if a container runs this program, by its name or by its command.
pub(crate) fn is_of(container: &Container, program: &str) -> bool {
    let command = container.command.iter().flatten().next();
    container.name == program || command.and_then(|command| command.rsplit('/').next()) == Some(program)
}

/// Returns the value of the last such flag of a container; empty for one without a value.
pub(crate) fn flag<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    flag_values(container, name).pop()
}

/// Returns the values of a flag that may be given several times.
fn flag_values<'a>(container: &'a Container, name: &str) -> Vec<&'a str> {
    let words: Vec<_> = container.command.iter().flatten().chain(container.args.iter().flatten()).collect();
    let values = words.iter().enumerate().filter_map(|(index, word)| {
        let next = words.get(index + 1).filter(|next| !next.starts_with("--"));
        match word.split_once('=') {
            Some((flag, value)) if flag == name => Some(value),
            None if word.as_str() == name => Some(next.map_or("", |next| next.as_str())),
            Some(_) | None => None,
        }
    });
    values.collect()
}

//! Commands that change an installation over to storage capacity tracking.

use k8s_openapi::api::core::v1::{Container, Pod};
use kube_core::ResourceExt as _;
use serde_json::{Value, json};

use super::driver::enable_storage_capacity;
use crate::facts::Facts;
use crate::mode_detection::pod_webhook;
use crate::shell;
use crate::workloads::{Role, Workload, flag, is_of};

/// Name of the sidecar.
const PROVISIONER: &str = "csi-provisioner";
/// Its flag that sets the owner of its objects: its pod (0), the owner of that (1, the default), the owner of the
/// latter (2), or none (-1).
const OWNER: &str = "--capacity-ownerref-level";

/// The sidecar that makes volumes, in one of our workloads.
#[derive(Debug)]
pub(super) struct Provisioner<'a> {
    workload: &'a Workload,
    index: usize,
    container: &'a Container,
}

/// A setting that it lacks.
#[derive(Debug)]
pub(super) struct Lack {
    pub(super) found: String,
    /// List of the container that the patch changes.
    list: &'static str,
    /// True if nothing is published without it.
    pub(super) is_needed: bool,
    /// Patch of the workload.
    pub(super) patch: Value,
}

impl Provisioner<'_> {
    /// Returns the settings that it lacks to publish the free space of nodes.
    pub(super) fn lacks(&self) -> Vec<Lack> {
        let mut lacks = Vec::new();
        if !self.publishes() {
            let argument = "--enable-capacity";
            lacks.push(self.argument(argument, format!("it runs without {argument}"), true, &lacks));
        }
        lacks.extend(self.variables());
        if self.gives_to_pod_or_replica_set() {
            let found = "its objects belong to its pod or ReplicaSet and are deleted with it, also during an upgrade"
                .to_owned();
            lacks.push(self.argument(&format!("{OWNER}=2"), found, false, &lacks));
        }
        lacks
    }

    fn argument(&self, argument: &str, found: String, is_needed: bool, before: &[Lack]) -> Lack {
        let has_any = self.container.args.is_some() || before.iter().any(|lack| lack.list == "args");
        Lack { found, list: "args", is_needed, patch: append(&self.path(), "args", has_any, &json!(argument)) }
    }

    fn variables(&self) -> Vec<Lack> {
        let has = |name: &str| self.container.env.iter().flatten().any(|variable| variable.name == name);
        // Without an owner of the objects it needs no name of a pod
        let needs_pod = flag(self.container, OWNER) != Some("-1");
        let mut lacks = Vec::new();
        for (name, field, is_needed) in
            [("POD_NAME", "metadata.name", needs_pod), ("NAMESPACE", "metadata.namespace", true)]
        {
            if is_needed && !has(name) {
                let variable = json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}});
                let has_any = self.container.env.is_some() || !lacks.is_empty();
                let patch = append(&self.path(), "env", has_any, &variable);
                lacks.push(Lack {
                    found: format!("it lacks the environment variable {name}"),
                    list: "env",
                    is_needed: true,
                    patch,
                });
            }
        }
        lacks
    }

    /// Returns true if its objects go with a pod or a ReplicaSet of a Deployment.
    fn gives_to_pod_or_replica_set(&self) -> bool {
        self.workload.name.starts_with("deployment/") && matches!(flag(self.container, OWNER), None | Some("0" | "1"))
    }

    fn path(&self) -> String {
        format!("/spec/template/spec/containers/{}", self.index)
    }

    /// Returns true if its flags make it publish the free space of nodes.
    pub(super) fn publishes(&self) -> bool {
        matches!(flag(self.container, "--enable-capacity"), Some("" | "true"))
    }

    /// Returns the command that gives it these settings.
    pub(super) fn command(&self, patches: impl IntoIterator<Item = Value>) -> String {
        patch_workload(self.workload, patches)
    }

    pub(super) fn name(&self) -> String {
        format!("{PROVISIONER} of {}", self.workload.name)
    }
}

/// Returns the sidecar in a workload of the controller.
pub(super) fn find_provisioner(facts: &Facts) -> Option<Provisioner<'_>> {
    let controllers = facts.workloads_of(Role::Controller).unwrap_or_default();
    controllers.into_iter().find_map(|workload| {
        let (index, container) = workload.container(PROVISIONER)?;
        Some(Provisioner { workload, index, container })
    })
}

/// Returns true if topolvm-controller itself publishes the free space.
pub(super) fn publishes_itself(facts: &Facts) -> bool {
    let controllers = facts.workloads_of(Role::Controller).unwrap_or_default();
    facts.publishes_capacity || controllers.iter().any(|controller| controller.embeds("capacity"))
}

/// Returns true if topolvm-controller itself provisions volumes.
pub(super) fn provisions_itself(facts: &Facts) -> bool {
    let controllers = facts.workloads_of(Role::Controller).unwrap_or_default();
    facts.provisions_volumes || controllers.iter().any(|controller| controller.embeds("provisioner"))
}

/// Returns the commands that change the installation over, as far as it can be seen.
pub(super) fn to_capacity(facts: &Facts) -> Vec<String> {
    let mut commands = Vec::new();
    let changed = change_mode(facts);
    let restarts = changed.as_ref().map(|(workload, _)| wait_for_restart(facts, workload)).unwrap_or_default();
    commands.extend(changed.map(|(_, command)| command).or_else(|| remove_webhook(facts)));
    let driver = facts.drivers.iter().flatten().find(|driver| driver.name_any() == facts.flavor.driver_name());
    if driver.is_none_or(|driver| driver.spec.storage_capacity != Some(true)) {
        commands.push(enable_storage_capacity(facts));
    }
    if let Some(provisioner) = find_provisioner(facts).filter(|_| !publishes_itself(facts)) {
        let patches: Vec<_> = provisioner.lacks().into_iter().map(|lack| lack.patch).collect();
        if !patches.is_empty() {
            commands.push(provisioner.command(patches));
        }
    }
    // Until then recreated pods are also marked, by a process that is about to end
    commands.extend(restarts);
    commands
}

/// Returns the commands that wait until the controllers have their new arguments, and those that run now are gone.
fn wait_for_restart(facts: &Facts, workload: &Workload) -> Vec<String> {
    let namespace = shell::quote(&workload.namespace);
    let rollout = format!("kubectl -n {namespace} rollout status {} --timeout=5m", shell::quote(&workload.name));
    let runs = |pod: &&Pod| {
        let mut containers = pod.spec.iter().flat_map(|spec| spec.containers.iter());
        pod.namespace().as_ref() == Some(&workload.namespace)
            && containers.any(|container| is_of(container, workload.role.program()))
    };
    let old = facts.pods.iter().flatten().filter(runs).map(|pod| format!("pod/{}", shell::quote(&pod.name_any())));
    let old: Vec<_> = old.collect();
    let gone = format!("kubectl -n {namespace} wait --for=delete {} --timeout=5m", old.join(" "));
    if old.is_empty() { vec![rollout] } else { vec![rollout, gone] }
}

/// Returns the workload of the controller and the command that changes its mode, if `args` sets one.
fn change_mode(facts: &Facts) -> Option<(&Workload, String)> {
    const MODE: &str = "--scheduling-mode=extender";
    let controllers = facts.workloads_of(Role::Controller).ok()?;
    controllers.into_iter().find_map(|workload| {
        let (index, container) = workload.container(workload.role.program())?;
        let before = container.args.as_ref().filter(|arguments| arguments.iter().any(|one| one == MODE))?;
        // These contradict the other mode
        let stays = |argument: &&String| {
            let flag = argument.split('=').next().unwrap_or_default();
            !["--assume-extender", "--pod-capacity-resource"].contains(&flag)
        };
        let change = |argument: &String| argument.replace(MODE, "--scheduling-mode=capacity");
        let after: Vec<_> = before.iter().filter(stays).map(change).collect();
        let path = format!("/spec/template/spec/containers/{index}/args");
        let test = json!({"op": "test", "path": path, "value": before});
        let replace = json!({"op": "replace", "path": path, "value": after});
        Some((workload, patch_workload(workload, [test, replace])))
    })
}

/// Returns the command that takes the webhook for pods out of its configuration.
fn remove_webhook(facts: &Facts) -> Option<String> {
    let entry = pod_webhook(facts)?;
    let path = format!("/webhooks/{}", entry.index);
    let patch = json!([
        {"op": "test", "path": format!("{path}/name"), "value": entry.webhook.name},
        {"op": "remove", "path": path},
    ]);
    Some(shell::patch(None, "mutatingwebhookconfiguration", &entry.configuration_name(), &patch))
}

fn append(path: &str, list: &str, has_list: bool, value: &Value) -> Value {
    if has_list {
        json!({"op": "add", "path": format!("{path}/{list}/-"), "value": value})
    } else {
        json!({"op": "add", "path": format!("{path}/{list}"), "value": [value]})
    }
}

fn patch_workload(workload: &Workload, patches: impl IntoIterator<Item = Value>) -> String {
    let (kind, name) = workload.name.split_once('/').unwrap_or(("deployment", &workload.name));
    shell::patch(Some(&workload.namespace), kind, name, &Value::Array(patches.into_iter().collect()))
}

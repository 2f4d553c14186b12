//! Preflight checks of nodes: volume groups, kubelet's directory and lvmd's socket. Each node is checked by a pod in a
//! temporary namespace.

use std::collections::BTreeSet;
use std::time::Duration;

use cli_runtime::objects::is_ready;
use cli_runtime::request::RequestError;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use topolvm_api::{DEFAULT_LVMD_SOCKET, NodeSelection, NodeState, STORAGE_LABEL};

use crate::install::options::{Lvmd, Options, VolumeGroups};
use crate::install::rendering::Rendering;
use crate::install::{InstallError, node_pods, print_progress, temporary};

/// Nodes at the same time.
const CONCURRENCY: usize = 8;

/// Writes its findings as the container's termination message, which can be read without the right to read logs. Of the
/// mounts of the node only those of this pod are known to belong to the kubelet; a volume in memory is one.
const SCRIPT: &str = r#"exec >/dev/termination-log 2>&1
while read -r id parent device root point rest; do
  case $point in
  */pods/"$POD_UID"/volumes/*) echo "kubelet=${point%%/pods/"$POD_UID"/*}" ;;
  esac
done </proc/1/mountinfo
[ -S "/proc/1/root$SOCKET" ] && echo socket=there
if groups=$(/usr/bin/nsenter -m -u -i -n -p -t 1 /sbin/lvm vgs --noheadings -o vg_name 2>&1); then
  for group in $groups; do echo "group=$group"; done
else
  echo lvm=$groups
fi
exit 0
"#;

/// Checks each node that the DaemonSets will select; the error names every problem.
pub(crate) async fn check(
    client: &Client,
    options: &Options,
    rendering: &Rendering,
    limit: Duration,
) -> Result<(), InstallError> {
    let labels: Vec<_> = options.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let selection = options.node_labels();
    let nodes = ready_nodes(client, &labels.join(","), &selection).await?;
    if nodes.is_empty() {
        let which = if labels.is_empty() { String::new() } else { format!(" with the labels {}", labels.join(", ")) };
        let problem = if selection.is_everything() {
            format!("no node{which} is ready; see kubectl get nodes --show-labels")
        } else {
            let (key, value) = STORAGE_LABEL;
            format!("no node{which} is selected and ready; select some with kubectl label node NAME {key}={value}")
        };
        return Err(InstallError::Unfit(vec![problem]));
    }
    print_progress(&format!("checking volume groups and the kubelet's directory on {}", nodes.join(", ")));
    let wanted = Requirements::new(options, rendering);
    let image = rendering.image();
    let findings = temporary::within(client, "topolvm-preflight-", "privileged", async |namespace: &str| {
        let api = Api::<Pod>::namespaced(client.clone(), namespace);
        let checks = nodes.iter().map(|node| check_node(&api, node, image, &wanted, limit));
        futures::stream::iter(checks).buffered(CONCURRENCY).try_collect::<Vec<_>>().await
    });
    report(&wanted, &nodes, &findings.await?)
}

/// Reports the nodes that get no storage; the error names every problem.
fn report(wanted: &Requirements, nodes: &[String], findings: &[Findings]) -> Result<(), InstallError> {
    let mut problems: Vec<_> = findings.iter().flat_map(|found| found.problems.clone()).collect();
    let optional = wanted.groups.as_ref().map(|groups| groups.optional.join(" or ")).unwrap_or_default();
    let without: Vec<_> =
        nodes.iter().zip(findings).filter(|(_, found)| found.lacks_storage).map(|(node, _)| node.as_str()).collect();
    if problems.is_empty() && without.len() == nodes.len() {
        problems.push(format!(
            "no node has the volume group {optional}; create it on a node (vgcreate NAME DEVICE), or set another one \
             with --volume-group or in the file of --lvmd-config"
        ));
    }
    if !problems.is_empty() {
        return Err(InstallError::Unfit(problems));
    }
    if !without.is_empty() {
        let without = without.join(", ");
        print_progress(&format!("no storage on {without}: the volume group {optional} does not exist there"));
    }
    Ok(())
}

/// The outcome of the check of a node.
#[derive(Debug, Default)]
struct Findings {
    /// The reasons for which the programs cannot work there.
    problems: Vec<String>,
    /// True if it has no volume group of any device class, and every class is optional.
    lacks_storage: bool,
}

/// Returns the ready nodes with these labels; on others the pod of a check cannot start.
async fn ready_nodes(client: &Client, labels: &str, selection: &NodeSelection) -> Result<Vec<String>, InstallError> {
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default().labels(labels)).await;
    let nodes = nodes.map_err(|error| RequestError::new("list", "nodes".to_owned(), error))?;
    let has_pods = |node: &Node| {
        selection.state(node.metadata.labels.as_ref()) != NodeState::Excluded && is_machine_with_linux(node)
    };
    let (ready, others): (Vec<_>, Vec<_>) = nodes.into_iter().filter(has_pods).partition(is_ready);
    for node in others {
        print_progress(&format!("node {} is not ready and is not checked", node.name_any()));
    }
    Ok(ready.iter().map(ResourceExt::name_any).collect())
}

/// Returns false for nodes that the DaemonSets of the manifests leave out: those of other systems, and virtual ones.
fn is_machine_with_linux(node: &Node) -> bool {
    let has = |label: &str, value: &str| node.labels().get(label).is_some_and(|found| found == value);
    node.labels().get("kubernetes.io/os").is_none_or(|system| system == "linux")
        && !has("type", "virtual-kubelet")
        && !has("eks.amazonaws.com/compute-type", "fargate")
}

/// Requirements of each node.
#[derive(Debug)]
struct Requirements {
    kubelet: String,
    /// None where lvmd is the administrator's own.
    groups: Option<VolumeGroups>,
}

impl Requirements {
    fn new(options: &Options, rendering: &Rendering) -> Self {
        let mut groups = (options.lvmd != Lvmd::Host).then(|| rendering.volume_groups());
        if let Some(groups) = groups.as_mut().filter(|_| options.trial.is_some()) {
            // The group of the trial is created after the checks, and is storage enough
            groups.optional.clear();
        }
        Self { kubelet: options.kubelet().to_owned(), groups }
    }

    /// Returns the findings about a node in the report of its pod.
    fn findings(&self, node: &str, output: &str) -> Findings {
        let found = report_values(output, "group");
        let has = |group: &String| found.contains(group.as_str());
        let lacks_storage = |groups: &VolumeGroups| {
            groups.required.is_empty() && !groups.optional.is_empty() && !groups.optional.iter().any(has)
        };
        Findings {
            problems: self.problems(node, output),
            lacks_storage: self.groups.as_ref().is_some_and(lacks_storage),
        }
    }

    /// Returns the requirements that a node does not meet, by the report of its pod.
    fn problems(&self, node: &str, output: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let found = report_values(output, "kubelet");
        if !found.contains(self.kubelet.as_str()) {
            let wanted = &self.kubelet;
            problems.push(found.first().map_or_else(
                || format!("node {node}: cannot determine the kubelet's directory; use --skip-node-checks"),
                |place| {
                    format!(
                        "node {node}: the kubelet's directory is {place} and not {wanted}; use --kubelet-dir {place}"
                    )
                },
            ));
        }
        let Some(wanted) = &self.groups else {
            if report_values(output, "socket").is_empty() {
                problems.push(format!(
                    "node {node}: lvmd does not listen on {DEFAULT_LVMD_SOCKET}; start it, or use --lvmd=daemonset"
                ));
            }
            return problems;
        };
        if let Some(reason) = report_values(output, "lvm").first() {
            problems.push(format!("node {node}: LVM does not work; install it (package lvm2): {reason}"));
            return problems;
        }
        let groups = report_values(output, "group");
        for group in wanted.required.iter().filter(|group| !groups.contains(group.as_str())) {
            problems.push(format!(
                "node {node}: the volume group {group} does not exist; create it (vgcreate {group} DEVICE), set \
                 another one with --volume-group, select nodes with --node-selector, or set optional: true for the \
                 device class in the file of --lvmd-config to run this node without storage"
            ));
        }
        problems
    }
}

/// Returns the values of a key in a report.
fn report_values<'a>(output: &'a str, key: &str) -> BTreeSet<&'a str> {
    output.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// Checks one node.
async fn check_node(
    api: &Api<Pod>,
    node: &str,
    image: &str,
    wanted: &Requirements,
    limit: Duration,
) -> Result<Findings, InstallError> {
    Ok(match node_pods::run(api, node, check_pod(node, image), "the check", limit).await? {
        Ok(outcome) => wanted.findings(node, &outcome.message),
        Err(problem) => {
            Findings { problems: vec![format!("{problem}; or use --skip-node-checks")], ..Findings::default() }
        }
    })
}

/// Returns the pod of a check, which sees the processes of the node, with them its mounts and LVM, and changes nothing.
fn check_pod(node: &str, image: &str) -> Value {
    json!({
        "metadata": { "generateName": "check-" },
        "spec": {
            "nodeName": node, "hostPID": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "check", "image": image, "command": ["/bin/sh", "-c", SCRIPT],
                "env": [
                    { "name": "POD_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } },
                    { "name": "SOCKET", "value": DEFAULT_LVMD_SOCKET },
                ],
                "securityContext": { "privileged": true, "readOnlyRootFilesystem": true },
                "volumeMounts": [{ "name": "mark", "mountPath": "/mark" }],
            }],
            "volumes": [{ "name": "mark", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }],
        },
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::install::loop_file::LoopFile;

    #[rstest]
    #[case(json!({"kubernetes.io/os": "linux"}), true)]
    #[case(json!({"kubernetes.io/os": "windows"}), false)]
    #[case(json!({"kubernetes.io/os": "linux", "type": "virtual-kubelet"}), false)]
    #[case(json!({"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"}), false)]
    fn nodes_without_disks_are_not_checked(#[case] labels: Value, #[case] expected: bool) {
        let node = serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels}})).unwrap();
        assert_eq!(is_machine_with_linux(&node), expected);
    }

    const WITHOUT: &str = "kubelet=/var/lib/kubelet\ngroup=other\n";
    const WELL: &str = "kubelet=/var/lib/kubelet\ngroup=myvg1\ngroup=other\n";

    #[rstest]
    #[case(WELL, None)]
    #[case("kubelet=/var/lib/k0s/kubelet\ngroup=myvg1\n", Some("use --kubelet-dir /var/lib/k0s/kubelet"))]
    #[case("group=myvg1\n", Some("cannot determine the kubelet's directory"))]
    #[case("kubelet=/var/lib/kubelet\ngroup=other\n", Some("optional: true for the device class"))]
    #[case("kubelet=/var/lib/kubelet\nlvm=nsenter: failed to execute /sbin/lvm\n", Some("LVM does not work"))]
    fn what_a_node_lacks_is_said(#[case] output: &str, #[case] expected: Option<&str>) {
        let groups = VolumeGroups { required: vec!["myvg1".to_owned()], ..VolumeGroups::default() };
        let wanted = Requirements { kubelet: "/var/lib/kubelet".to_owned(), groups: Some(groups) };
        let problems = wanted.findings("n1", output).problems;
        assert_eq!(problems.len(), usize::from(expected.is_some()), "{problems:?}");
        assert!(problems.iter().zip(expected).all(|(problem, words)| problem.contains(words)), "{problems:?}");
    }

    #[rstest]
    #[case::one_of_two(&[WELL, WITHOUT], true)]
    #[case::none(&[WITHOUT, WITHOUT], false)]
    #[case::without_lvm(&[WELL, "kubelet=/var/lib/kubelet\nlvm=no such file\n"], false)]
    fn nodes_without_an_optional_group_get_no_storage(#[case] output: &[&str], #[case] is_fit: bool) {
        let groups = VolumeGroups { optional: vec!["myvg1".to_owned()], ..VolumeGroups::default() };
        let wanted = Requirements { kubelet: "/var/lib/kubelet".to_owned(), groups: Some(groups) };
        let nodes: Vec<_> = (0..output.len()).map(|number| format!("n{number}")).collect();
        let findings: Vec<_> = nodes.iter().zip(output).map(|(node, output)| wanted.findings(node, output)).collect();
        assert_eq!(report(&wanted, &nodes, &findings).is_ok(), is_fit);
    }

    #[test]
    fn volume_group_of_a_trial_is_not_looked_for() {
        let trial = LoopFile { size: 1 << 30, directory: "/d".to_owned(), is_alone: true };
        let options = Options { trial: Some(trial), ..Options::default() };
        let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: topolvm-lvmd}\ndata:\n  lvmd.yaml: \
                      '{device-classes: [{name: trial, volume-group: topolvm-trial, optional: true}]}'\n";
        let rendering = Rendering::parse(config.to_owned()).unwrap();
        assert_eq!(rendering.volume_groups().optional, ["topolvm-trial"]);
        let wanted = Requirements::new(&options, &rendering);
        assert!(report(&wanted, &["n1".to_owned()], &[wanted.findings("n1", WITHOUT)]).is_ok());
    }

    #[test]
    fn lvmd_of_the_host_is_known_by_its_socket() {
        let wanted = Requirements { kubelet: "/var/lib/kubelet".to_owned(), groups: None };
        assert!(wanted.problems("n1", "kubelet=/var/lib/kubelet\nsocket=there\n").is_empty());
        assert!(wanted.problems("n1", WELL)[0].contains("does not listen"));
    }

    #[test]
    fn the_pod_is_one_of_kubernetes() {
        let spec = serde_json::from_value::<Pod>(check_pod("n1", "i:1")).unwrap().spec.unwrap();
        assert_eq!((spec.node_name.as_deref(), spec.host_pid), (Some("n1"), Some(true)));
    }
}

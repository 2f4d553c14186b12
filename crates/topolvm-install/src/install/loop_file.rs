//! The volume group on a loop file of `kubectl topolvm trial`, as a part of an installation: its options, its objects,
//! and the scripts that run on nodes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;

/// Label of the nodes on which the volume group is, and its value.
pub(crate) const LABEL: (&str, &str) = ("topolvm.io/trial", "true");
/// Name of the volume group, of the DaemonSet that attaches it, and of the StorageClass.
pub(crate) const NAME: &str = "topolvm-trial";
/// Device class.
pub(crate) const DEVICE_CLASS: &str = "trial";
/// LVM tag of the volume group. A group of the same name without it belongs to another owner.
const TAG: &str = "topolvm.io/trial";

/// Image in the manifests, which kustomize replaces where another one is wanted.
const IMAGE: &str = concat!("localhost/topolvm:", env!("CARGO_PKG_VERSION"));
const ATTACH: &str = concat!(include_str!("loop_file/functions.sh"), "\n", include_str!("loop_file/attach.sh"));
const REMOVE: &str = concat!(include_str!("loop_file/functions.sh"), "\n", include_str!("loop_file/remove.sh"));
/// Keeps a container without a process that ever runs: one that is stopped. It is ended by SIGKILL. Of two dollar signs
/// in a row kubelet takes one away.
const STOPPED: &str = "kill -STOP ${$}";

/// A volume group on a loop file of each node with the label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoopFile {
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// Directory of the file.
    pub(crate) directory: String,
    /// True if the installation was made for it, and has no other device class.
    pub(crate) is_alone: bool,
}

impl LoopFile {
    /// Returns the objects for kustomize: the DaemonSet that attaches the file, and the StorageClass.
    pub(super) fn objects(&self, namespace: &str, flavor: ApiFlavor) -> [Value; 2] {
        let labels = json!({ "app.kubernetes.io/name": "topolvm", "app.kubernetes.io/component": "trial" });
        let daemon_set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": NAME, "namespace": namespace, "labels": labels },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": self.pod() },
            },
        });
        let storage_class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": { "name": NAME },
            "provisioner": flavor.driver_name(),
            "parameters": { "csi.storage.k8s.io/fstype": "ext4", flavor.device_class_parameter(): DEVICE_CLASS },
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        });
        [daemon_set, storage_class]
    }

    /// Returns the pod of the DaemonSet, which is ready when the volume group exists. After a reboot its init container
    /// runs again.
    fn pod(&self) -> Value {
        let mut attach = host_container("attach", IMAGE, ATTACH, &self.directory);
        if let Some(environment) = attach.get_mut("env").and_then(Value::as_array_mut) {
            environment.push(json!({ "name": "SIZE", "value": self.size.to_string() }));
        }
        json!({
            "automountServiceAccountToken": false, "priorityClassName": "system-node-critical",
            "nodeSelector": { LABEL.0: LABEL.1 }, "tolerations": [{ "operator": "Exists" }], "hostPID": true,
            "terminationGracePeriodSeconds": 1,
            "initContainers": [attach],
            "containers": [{
                "name": "attached", "image": IMAGE, "command": ["/bin/sh", "-c", STOPPED],
                "resources": { "requests": { "cpu": "1m", "memory": "2Mi" } },
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
        })
    }

    /// Returns a configuration of lvmd with the device class, which nodes without the volume group do not offer.
    pub(super) fn add_class(&self, config: &str) -> Result<String, String> {
        let mut class = json!({ "name": DEVICE_CLASS, "volume-group": NAME, "spare-gb": 0, "optional": true });
        if self.is_alone {
            class.as_object_mut().into_iter().for_each(|class| drop(class.insert("default".to_owned(), true.into())));
            return Ok(json!({ "device-classes": [class] }).to_string());
        }
        let mut config: Value = serde_saphyr::from_str(config).map_err(|error| format!("invalid YAML: {error}"))?;
        let classes = config.get_mut("device-classes").and_then(Value::as_array_mut).ok_or("no device classes")?;
        if classes.iter().any(|other| other.get("name") == class.get("name")) {
            return Err(format!("the device class {DEVICE_CLASS} already exists; rename it"));
        }
        classes.push(class);
        // JSON is YAML
        serde_json::to_string_pretty(&config).map_err(|error| error.to_string())
    }

    /// Returns the container that removes the group and the file on a node, if no LV is in them.
    pub(crate) fn removal(&self, image: &str) -> Value {
        host_container("remove", image, REMOVE, &self.directory)
    }
}

/// Returns a container that runs a script on the host, with the programs of the host.
fn host_container(name: &str, image: &str, script: &str, directory: &str) -> Value {
    let on_host = ["/usr/bin/nsenter", "-m", "-u", "-i", "-n", "-p", "-t", "1", "--", "/bin/sh", "-c", script];
    let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
    json!({
        "name": name, "image": image, "command": on_host,
        "env": [variable("DIRECTORY", directory), variable("GROUP", NAME), variable("TAG", TAG)],
        // The last lines that it prints are its message, which can be read without the right to read logs
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": { "privileged": true, "readOnlyRootFilesystem": true },
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;
    use k8s_openapi::api::storage::v1::StorageClass;

    use super::*;

    const CONFIG: &str = "socket-name: /run/x\ndevice-classes:\n- {name: ssd, volume-group: vg}\n";

    fn loop_file(is_alone: bool) -> LoopFile {
        LoopFile { size: 1 << 30, directory: "/var/lib/topolvm-trial".to_owned(), is_alone }
    }

    #[test]
    fn the_objects_are_those_of_kubernetes() {
        let [set, class] = loop_file(false).objects("topolvm-system", ApiFlavor::TopoLvm);
        let pod = serde_json::from_value::<DaemonSet>(set).unwrap().spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.node_selector.unwrap(), [("topolvm.io/trial".to_owned(), "true".to_owned())].into());
        let environment = pod.init_containers.unwrap()[0].env.clone().unwrap();
        assert!(environment.iter().any(|one| one.name == "SIZE" && one.value.as_deref() == Some("1073741824")));
        let class: StorageClass = serde_json::from_value(class).unwrap();
        assert_eq!(class.parameters.unwrap()["topolvm.io/device-class"], "trial");
    }

    #[test]
    fn trial_class_follows_existing_classes_or_is_the_default() {
        let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        let added = parse(loop_file(false).add_class(CONFIG).unwrap());
        let class = json!({ "name": "trial", "volume-group": "topolvm-trial", "spare-gb": 0, "optional": true });
        assert_eq!(added["device-classes"], json!([{ "name": "ssd", "volume-group": "vg" }, class]));
        assert_eq!(added["socket-name"], "/run/x");
        let error = loop_file(false).add_class(&added.to_string()).unwrap_err();
        assert!(error.starts_with("the device class trial already exists"), "{error}");
        let alone = parse(loop_file(true).add_class(CONFIG).unwrap());
        assert_eq!(
            (&alone["device-classes"][0]["default"], alone["device-classes"].as_array().unwrap().len()),
            (&true.into(), 1)
        );
    }
}

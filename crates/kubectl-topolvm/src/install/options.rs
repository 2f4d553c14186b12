//! Options of an installation.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use topolvm_api::ApiFlavor;

/// Root directory of kubelet in the manifests.
pub(super) const KUBELET: &str = "/var/lib/kubelet";

/// Place of lvmd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lvmd {
    /// In a DaemonSet of its own, with the LVM of the host.
    #[default]
    Daemonset,
    /// Inside topolvm-node, with the LVM of the host.
    Embedded,
    /// On the host, where somebody else starts it.
    Host,
}

/// Way in which kube-scheduler learns the free space of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheduling {
    /// By storage capacity tracking of Kubernetes.
    #[default]
    Capacity,
    /// By the webhook and topolvm-scheduler, for which kube-scheduler has to be configured.
    Extender,
}

/// Issuer of the webhook's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Certificates {
    /// topolvm-controller.
    #[default]
    SelfManaged,
    /// cert-manager, which has to be there.
    CertManager,
}

/// Options of an installation, recorded in the cluster for upgrades.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Options {
    pub(crate) lvmd: Lvmd,
    pub(crate) volume_group: Option<String>,
    /// The text of lvmd.yaml.
    pub(crate) lvmd_config: Option<String>,
    pub(crate) scheduling: Scheduling,
    pub(crate) certificates: Certificates,
    pub(crate) legacy: bool,
    /// With its tag; the manifests' without.
    pub(crate) image: Option<String>,
    pub(crate) kubelet_dir: Option<String>,
    /// Of topolvm-controller.
    pub(crate) replicas: Option<u16>,
    pub(crate) node_selector: BTreeMap<String, String>,
    pub(crate) storage_class: Option<String>,
    pub(crate) components: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lvmd: Lvmd::default(),
            volume_group: None,
            lvmd_config: None,
            scheduling: Scheduling::default(),
            certificates: Certificates::default(),
            legacy: false,
            image: None,
            kubelet_dir: None,
            replicas: None,
            node_selector: BTreeMap::new(),
            storage_class: Some("topolvm-provisioner".to_owned()),
            components: Vec::new(),
        }
    }
}

impl Options {
    pub(crate) const fn flavor(&self) -> ApiFlavor {
        if self.legacy { ApiFlavor::Legacy } else { ApiFlavor::TopoLvm }
    }

    /// Returns the configuration of lvmd, if it is another than the manifests'.
    pub(super) fn lvmd_yaml(&self) -> Option<String> {
        let of_group = |group: &String| {
            format!("device-classes:\n- name: ssd\n  volume-group: {group}\n  default: true\n  spare-gb: 10\n")
        };
        self.lvmd_config.clone().or_else(|| self.volume_group.as_ref().map(of_group))
    }

    pub(super) fn kubelet(&self) -> &str {
        self.kubelet_dir.as_deref().unwrap_or(KUBELET)
    }
}

/// Returns the volume groups of all device classes in a configuration of lvmd.
pub(super) fn volume_groups(text: &str) -> Result<Vec<String>, String> {
    let config: Value = serde_saphyr::from_str(text).map_err(|error| format!("no YAML: {error}"))?;
    let classes = config.get("device-classes").and_then(Value::as_array);
    let groups: Vec<_> = classes
        .into_iter()
        .flatten()
        .filter_map(|class| class.get("volume-group").and_then(Value::as_str).map(str::to_owned))
        .collect();
    if groups.is_empty() {
        return Err("no device class with a volume group; `lvmd check-config FILE` says what is wrong".to_owned());
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_older_versions_have_the_defaults_for_what_they_lack() {
        let options: Options = serde_json::from_str(r#"{"lvmd": "host"}"#).unwrap();
        assert_eq!(options, Options { lvmd: Lvmd::Host, ..Options::default() });
    }

    #[test]
    fn the_volume_groups_of_a_configuration_are_those_of_its_classes() {
        let options = Options { volume_group: Some("fast".to_owned()), ..Options::default() };
        assert_eq!(volume_groups(&options.lvmd_yaml().unwrap()).unwrap(), ["fast"]);
        assert!(volume_groups("device-classes: []").is_err());
        assert!(volume_groups("{").is_err());
    }
}

//! Options of an installation.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use topolvm_api::{ApiFlavor, NodeSelection, STORAGE_LABEL, SUPEREDGE_LABEL};

use super::loop_file::{self, LoopFile};

/// Root directory of kubelet in the manifests.
pub(super) const KUBELET: &str = "/var/lib/kubelet";

/// Component that selects nodes by labels.
pub(super) const NODE_LABEL: &str = "node-label";
/// Volume group in the manifests.
const VOLUME_GROUP: &str = "myvg1";

/// Place of lvmd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lvmd {
    /// In a separate DaemonSet, with the LVM of the host.
    #[default]
    Daemonset,
    /// Inside topolvm-node, with the LVM of the host.
    Embedded,
    /// On the host, started outside of Kubernetes.
    Host,
}

/// Way in which kube-scheduler learns the free space of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheduling {
    /// Storage capacity tracking of Kubernetes.
    #[default]
    Capacity,
    /// The webhook and topolvm-scheduler; requires a kube-scheduler configuration.
    Extender,
}

/// Issuer of the webhook's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Certificates {
    /// topolvm-controller.
    #[default]
    SelfManaged,
    /// cert-manager, which must be installed.
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
    /// The volume group of `kubectl topolvm trial`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trial: Option<LoopFile>,
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
            trial: None,
        }
    }
}

impl Options {
    pub(crate) const fn flavor(&self) -> ApiFlavor {
        if self.legacy { ApiFlavor::Legacy } else { ApiFlavor::TopoLvm }
    }

    /// Returns the configuration of lvmd, if it is another than the manifests'.
    pub(super) fn lvmd_yaml(&self) -> Option<String> {
        let of_group = |group: &str| {
            format!(
                "device-classes:\n- name: ssd\n  volume-group: {group}\n  default: true\n  optional: true\n  \
                 spare-gb: 10\n"
            )
        };
        let own = self.lvmd_config.clone().or_else(|| self.volume_group.as_deref().map(of_group));
        let Some(trial) = &self.trial else { return own };
        let own = own.unwrap_or_else(|| of_group(VOLUME_GROUP));
        // A configuration that cannot be extended was refused when the trial was requested
        Some(trial.add_class(&own).unwrap_or(own))
    }

    /// Returns why the device class of the trial cannot be added to the configuration of lvmd.
    pub(crate) fn trial_problem(&self) -> Option<String> {
        let trial = self.trial.as_ref()?;
        let own = Self { trial: None, ..self.clone() }.lvmd_yaml();
        own.and_then(|own| trial.add_class(&own).err())
    }

    /// Returns the labels that select the nodes of agents and lvmd, in addition to `node_selector`.
    pub(super) fn node_labels(&self) -> NodeSelection {
        let [ours, superedge] = [STORAGE_LABEL, SUPEREDGE_LABEL].map(|(key, value)| format!("{key}={value}"));
        let is_used = self.components.iter().any(|component| component == NODE_LABEL);
        // It is parsed in a test
        if is_used { format!("{ours},{superedge}").parse().unwrap_or_default() } else { NodeSelection::default() }
    }

    /// Returns the StorageClass with which the smoke test makes its volume.
    pub(super) fn smoke_test_class(&self) -> Option<&str> {
        if self.trial.is_some() { Some(loop_file::NAME) } else { self.storage_class.as_deref() }
    }

    pub(super) fn kubelet(&self) -> &str {
        self.kubelet_dir.as_deref().unwrap_or(KUBELET)
    }
}

/// The volume groups of lvmd's device classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeGroups {
    /// Without one of these lvmd does not start.
    pub(crate) required: Vec<String>,
    /// Those of optional device classes.
    pub(crate) optional: Vec<String>,
}

/// Returns the volume groups in a configuration of lvmd.
pub(super) fn volume_groups(text: &str) -> Result<VolumeGroups, String> {
    let config: Value = serde_saphyr::from_str(text).map_err(|error| format!("invalid YAML: {error}"))?;
    let classes = config.get("device-classes").and_then(Value::as_array);
    let with_group = classes.into_iter().flatten().filter_map(|class| {
        let is_optional = class.get("optional").and_then(Value::as_bool).unwrap_or_default();
        Some((class.get("volume-group")?.as_str()?.to_owned(), is_optional))
    });
    let with_group: Vec<_> = with_group.collect();
    if with_group.is_empty() {
        return Err("no device class has a volume group; run `lvmd check-config FILE` to find the mistake".to_owned());
    }
    let (optional, required): (Vec<_>, Vec<_>) = with_group.into_iter().partition(|(_, is_optional)| *is_optional);
    let names = |groups: Vec<(String, bool)>| groups.into_iter().map(|(group, _)| group).collect();
    Ok(VolumeGroups { required: names(required), optional: names(optional) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_older_records_get_defaults_for_missing_fields() {
        let options: Options = serde_json::from_str(r#"{"lvmd": "host"}"#).unwrap();
        assert_eq!(options, Options { lvmd: Lvmd::Host, ..Options::default() });
    }

    #[test]
    fn node_labels_match_the_node_label_component() {
        let options = Options { components: vec![NODE_LABEL.to_owned()], ..Options::default() };
        let labels = format!("{}={},{}={}", STORAGE_LABEL.0, STORAGE_LABEL.1, SUPEREDGE_LABEL.0, SUPEREDGE_LABEL.1);
        let component = include_str!("../../../../deploy/manifests/components/node-label/kustomization.yaml");
        assert_eq!(component.matches(&format!("value: \"{labels}\"")).count(), 2);
        assert_eq!(options.node_labels(), labels.parse().unwrap());
        assert!(Options::default().node_labels().is_everything());
    }

    #[test]
    fn volume_groups_are_those_of_the_device_classes() {
        let options = Options { volume_group: Some("fast".to_owned()), ..Options::default() };
        // Nodes without the group that --volume-group names have no storage, and everything else works there
        let alone = VolumeGroups { optional: vec!["fast".to_owned()], ..VolumeGroups::default() };
        assert_eq!(volume_groups(&options.lvmd_yaml().unwrap()).unwrap(), alone);
        let both = "device-classes: [{volume-group: a, optional: true}, {volume-group: b, optional: false}]";
        let expected = VolumeGroups { required: vec!["b".to_owned()], optional: vec!["a".to_owned()] };
        assert_eq!(volume_groups(both).unwrap(), expected);
        for (config, expected) in
            [("device-classes: []", "no device class has a volume group"), ("{", "invalid YAML: ")]
        {
            let error = volume_groups(config).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

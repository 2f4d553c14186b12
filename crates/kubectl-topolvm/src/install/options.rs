//! What an installation is like, and the flags that say so.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use topolvm_api::ApiFlavor;

use super::InstallError;
use super::manifests;

/// Where lvmd runs.
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

/// How pods come to nodes with room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scheduling {
    /// By storage capacity tracking of Kubernetes.
    #[default]
    Capacity,
    /// By the webhook and topolvm-scheduler, for which kube-scheduler has to be configured.
    Extender,
}

/// Who makes the certificate of the webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Certificates {
    /// topolvm-controller.
    #[default]
    SelfManaged,
    /// cert-manager, which has to be there.
    CertManager,
}

/// What an installation is like; recorded in the cluster for upgrades.
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

    /// The configuration of lvmd, if it is another than the manifests'.
    pub(super) fn lvmd_yaml(&self) -> Option<String> {
        let of_group = |group: &String| {
            format!("device-classes:\n- name: ssd\n  volume-group: {group}\n  default: true\n  spare-gb: 10\n")
        };
        self.lvmd_config.clone().or_else(|| self.volume_group.as_ref().map(of_group))
    }

    pub(super) fn kubelet(&self) -> &str {
        self.kubelet_dir.as_deref().unwrap_or(manifests::KUBELET)
    }
}

/// Flags that change options.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// Where lvmd runs [default: daemonset].
    #[arg(long, value_enum, value_name = "WHERE")]
    lvmd: Option<Lvmd>,

    /// Volume group of each node, for a device class ssd that leaves 10 GiB free [default: myvg1].
    #[arg(long, value_name = "NAME", value_parser = volume_group, conflicts_with = "lvmd_config")]
    volume_group: Option<String>,

    /// Configuration of lvmd for all nodes, as docs/lvmd.md explains it.
    #[arg(long, value_name = "FILE")]
    lvmd_config: Option<PathBuf>,

    /// How pods come to nodes with room [default: capacity].
    #[arg(long, value_enum, value_name = "HOW")]
    scheduling: Option<Scheduling>,

    /// Who makes the certificate of the webhook, with --scheduling=extender [default: self-managed].
    #[arg(long, value_enum, value_name = "WHO")]
    certificates: Option<Certificates>,

    /// Image of the programs [default: the one of this version].
    #[arg(long, value_name = "NAME:TAG")]
    image: Option<String>,

    /// Root directory of kubelet on the nodes [default: /var/lib/kubelet].
    #[arg(long, value_name = "DIR", value_parser = directory)]
    kubelet_dir: Option<String>,

    /// Replicas of topolvm-controller [default: 2].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=9))]
    controller_replicas: Option<u16>,

    /// Label of the nodes that have storage; may be repeated [default: all nodes].
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    node_selector: Vec<(String, String)>,

    /// Name of the StorageClass that is made [default: topolvm-provisioner].
    #[arg(long, value_name = "NAME", conflicts_with = "no_storage_class")]
    storage_class: Option<String>,

    /// Make no StorageClass.
    #[arg(long)]
    no_storage_class: bool,

    /// Component of deploy/manifests to add, such as secure-metrics; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(manifests::components()))]
    component: Vec<String>,
}

impl Flags {
    /// The options with what the flags change. What no flag names stays.
    pub(super) fn onto(self, legacy: bool, options: Options) -> Result<Options, InstallError> {
        let names_config = self.volume_group.is_some() || self.lvmd_config.is_some();
        let lvmd = self.lvmd.unwrap_or(options.lvmd);
        if lvmd == Lvmd::Host && names_config {
            let message = "lvmd on the host has a configuration of its own, /etc/topolvm/lvmd.yaml; leave out \
                           --volume-group and --lvmd-config";
            return Err(InstallError::Flag(message.to_owned()));
        }
        let config = self.lvmd_config.map(|path| {
            let text = fs::read_to_string(&path).map_err(|source| InstallError::Read { path: path.clone(), source })?;
            volume_groups(&text)
                .map_err(|reason| InstallError::Flag(format!("{}: {reason}", path.display())))
                .map(|_| text)
        });
        let (volume_group, lvmd_config) = match (self.volume_group, config.transpose()?) {
            (None, None) => (options.volume_group, options.lvmd_config),
            named => named,
        };
        let selector: BTreeMap<_, _> = self.node_selector.into_iter().collect();
        Ok(Options {
            lvmd,
            volume_group,
            lvmd_config,
            scheduling: self.scheduling.unwrap_or(options.scheduling),
            certificates: self.certificates.unwrap_or(options.certificates),
            legacy: legacy || options.legacy,
            image: self.image.or(options.image),
            kubelet_dir: self.kubelet_dir.or(options.kubelet_dir),
            replicas: self.controller_replicas.or(options.replicas),
            node_selector: if selector.is_empty() { options.node_selector } else { selector },
            storage_class: if self.no_storage_class { None } else { self.storage_class.or(options.storage_class) },
            components: if self.component.is_empty() { options.components } else { self.component },
        })
    }
}

/// The volume groups of all device classes of a configuration of lvmd.
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

/// What LVM allows in a name.
fn volume_group(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_allowed) {
        return Err("LVM allows letters, digits and + _ . - in the name of a volume group".to_owned());
    }
    Ok(text.to_owned())
}

fn directory(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    if !path.starts_with('/') {
        return Err("kubelet's directory is an absolute path, and not the root directory".to_owned());
    }
    Ok(path.to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("a label is KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_flag_names_stays_as_it_is_recorded() {
        let recorded =
            Options { lvmd: Lvmd::Embedded, volume_group: Some("fast".to_owned()), legacy: true, ..Options::default() };
        assert_eq!(Flags::default().onto(false, recorded.clone()).unwrap(), recorded);
        let flags = Flags { no_storage_class: true, lvmd: Some(Lvmd::Daemonset), ..Flags::default() };
        let changed = flags.onto(false, recorded.clone()).unwrap();
        assert_eq!(changed, Options { lvmd: Lvmd::Daemonset, storage_class: None, ..recorded });
    }

    #[test]
    fn lvmd_on_the_host_takes_no_configuration_from_here() {
        let flags = Flags { lvmd: Some(Lvmd::Host), volume_group: Some("vg".to_owned()), ..Flags::default() };
        assert!(matches!(flags.onto(false, Options::default()), Err(InstallError::Flag(_))));
    }

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

    #[test]
    fn values_that_cannot_be_meant_are_refused() {
        assert!(volume_group("a b").is_err() && volume_group("-a").is_err() && volume_group("a_b-1").is_ok());
        assert_eq!(directory("/var/lib/k0s/kubelet/").unwrap(), "/var/lib/k0s/kubelet");
        assert!(directory("kubelet").is_err() && directory("/").is_err());
        assert!(label("=x").is_err() && label("x").is_err() && label("a=b=c").is_ok());
    }
}

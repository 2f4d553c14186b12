//! Flags of `install` and `upgrade`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use cli_runtime::output::ReportFormat;

use super::options::{Certificates, Lvmd, NODE_LABEL, Options, Scheduling, volume_groups};
use super::{InstallError, manifests};

/// Component with the web page.
const UI: &str = "ui";

/// Flags that change options.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Where lvmd runs [default: daemonset].
    #[arg(long, value_enum, value_name = "WHERE")]
    lvmd: Option<Lvmd>,

    /// Volume group of nodes with storage, for an optional device class ssd that leaves 10 GiB free [default: myvg1].
    #[arg(long, value_name = "NAME", value_parser = volume_group, conflicts_with = "lvmd_config")]
    volume_group: Option<String>,

    /// Configuration of lvmd for all nodes; see docs/lvmd.md.
    #[arg(long, value_name = "FILE")]
    lvmd_config: Option<PathBuf>,

    /// How kube-scheduler finds nodes with free space [default: capacity].
    #[arg(long, alias = "scheduling", value_enum, value_name = "MODE")]
    scheduling_mode: Option<Scheduling>,

    /// Issuer of the webhook certificate, with --scheduling-mode=extender [default: self-managed].
    #[arg(long, value_enum, value_name = "WHO")]
    certificates: Option<Certificates>,

    /// Container image [default: the image of this version].
    #[arg(long, value_name = "NAME:TAG")]
    image: Option<String>,

    /// Root directory of the kubelet on the nodes [default: /var/lib/kubelet].
    #[arg(long, value_name = "DIR", value_parser = directory)]
    kubelet_dir: Option<String>,

    /// Replicas of topolvm-controller [default: 2].
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=9))]
    controller_replicas: Option<u16>,

    /// Label of the nodes with storage; may be repeated [default: all nodes].
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    node_selector: Vec<(String, String)>,

    /// Run only on nodes with the label topolvm.io/storage=enabled or superedge.io/local.pv=topolvm; see
    /// docs/node-selection.md. Same as --component node-label.
    #[arg(long)]
    node_label: bool,

    /// Name of the StorageClass to create [default: topolvm-provisioner].
    #[arg(long, value_name = "NAME", conflicts_with = "no_storage_class")]
    storage_class: Option<String>,

    /// Do not create a StorageClass.
    #[arg(long)]
    no_storage_class: bool,

    /// Enable or disable the read-only web page that kubectl topolvm ui opens [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    ui: Option<bool>,

    /// Component of deploy/manifests to add, such as secure-metrics; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(manifests::components()))]
    component: Vec<String>,
}

impl Flags {
    /// Returns the options with what the flags change; options without a flag stay.
    pub(super) fn onto(self, legacy: bool, options: Options) -> Result<Options, InstallError> {
        let names_config = self.volume_group.is_some() || self.lvmd_config.is_some();
        let lvmd = self.lvmd.unwrap_or(options.lvmd);
        if lvmd == Lvmd::Host && names_config {
            let message = "lvmd on the host has its own configuration, /etc/topolvm/lvmd.yaml; omit --volume-group and \
                           --lvmd-config";
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
        let mut components = if self.component.is_empty() { options.components } else { self.component };
        // Recorded ones that no longer exist: the base does what they did
        components.retain(|name| manifests::components().contains(&name.as_str()));
        if self.node_label && !components.iter().any(|component| component == NODE_LABEL) {
            components.push(NODE_LABEL.to_owned());
        }
        let selector: BTreeMap<_, _> = self.node_selector.into_iter().collect();
        Ok(Options {
            lvmd,
            volume_group,
            lvmd_config,
            scheduling: self.scheduling_mode.unwrap_or(options.scheduling),
            certificates: self.certificates.unwrap_or(options.certificates),
            legacy: legacy || options.legacy,
            image: self.image.or(options.image),
            kubelet_dir: self.kubelet_dir.or(options.kubelet_dir),
            replicas: self.controller_replicas.or(options.replicas),
            node_selector: if selector.is_empty() { options.node_selector } else { selector },
            storage_class: if self.no_storage_class { None } else { self.storage_class.or(options.storage_class) },
            components: with_web_page(components, self.ui),
            trial: options.trial,
        })
    }
}

/// Returns the components with that of the web page, or without it.
fn with_web_page(mut components: Vec<String>, ui: Option<bool>) -> Vec<String> {
    if let Some(is_on) = ui {
        components.retain(|name| name != UI);
        components.extend(is_on.then(|| UI.to_owned()));
    }
    components
}

/// Flags of a run of `install` or `upgrade`: dry runs, checks that are left out, timeout, output format.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub struct RunFlags {
    /// Print the objects as rendered by kustomize, and change nothing.
    #[arg(long, conflicts_with_all = ["dry_run", "diff"])]
    pub(super) render: bool,

    /// Print the plan, validated by the API server with a dry run, and change nothing.
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Like --dry-run, with each value that would change.
    #[arg(long)]
    pub(super) diff: bool,

    /// Take over objects that were applied by another program or by hand.
    #[arg(long)]
    pub(super) adopt: bool,

    /// Do not start the check pods that inspect volume groups and the kubelet's directory on the nodes.
    #[arg(long)]
    pub(super) skip_node_checks: bool,

    /// Do not create a test volume.
    #[arg(long)]
    pub(super) no_smoke_test: bool,

    /// Timeout of each step: a check of a node, the start of all pods, the smoke test.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,

    /// Output format of the plan, or of --render (default for --render: YAML).
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: ReportFormat,
}

impl RunFlags {
    /// Returns the flags of a run for `trial`.
    pub(crate) fn for_trial(timeout: u64, skip_node_checks: bool, no_smoke_test: bool) -> Self {
        Self {
            render: false,
            dry_run: false,
            diff: false,
            adopt: false,
            skip_node_checks,
            no_smoke_test,
            timeout,
            output: ReportFormat::default(),
        }
    }
}

/// Parses the name of a volume group: letters, digits and `+_.-`, as LVM allows.
fn volume_group(text: &str) -> Result<String, String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_allowed) {
        return Err("LVM allows only letters, digits and + _ . - in the name of a volume group".to_owned());
    }
    Ok(text.to_owned())
}

pub(crate) fn directory(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    if !path.starts_with('/') {
        return Err("the kubelet's directory must be an absolute path other than /".to_owned());
    }
    Ok(path.to_owned())
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("a label must have the form KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

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
    fn the_node_label_is_a_component() {
        let flags = |component: &[&str]| Flags {
            node_label: true,
            component: component.iter().map(|&name| name.to_owned()).collect(),
            ..Flags::default()
        };
        for (component, expected) in
            [(&[][..], &["node-label"][..]), (&["node-label", "webhooks"], &["node-label", "webhooks"])]
        {
            assert_eq!(flags(component).onto(false, Options::default()).unwrap().components, expected);
        }
    }

    #[test]
    fn recorded_components_that_no_longer_exist_are_dropped() {
        let components = ["embedded-capacity", "rebuild"].map(str::to_owned).to_vec();
        let upgraded = Flags::default().onto(false, Options { components, ..Options::default() }).unwrap();
        assert_eq!(upgraded.components, ["rebuild"]);
    }

    #[test]
    fn the_scheduling_mode_has_its_earlier_flag_too() {
        for flag in ["--scheduling-mode=extender", "--scheduling=extender"] {
            let flags = Flags::from_arg_matches(
                &Flags::augment_args(Command::new("install")).get_matches_from(["install", flag]),
            );
            let options = flags.unwrap().onto(false, Options::default()).unwrap();
            assert_eq!(options.scheduling, Scheduling::Extender, "{flag}");
        }
    }

    #[test]
    fn the_web_page_is_turned_on_and_off_beside_other_components() {
        let recorded = Options { components: vec!["secure-metrics".to_owned()], ..Options::default() };
        let on = Flags { ui: Some(true), ..Flags::default() }.onto(false, recorded.clone()).unwrap();
        assert_eq!(on.components, ["secure-metrics", "ui"]);
        assert_eq!(Flags { ui: Some(true), ..Flags::default() }.onto(false, on.clone()).unwrap(), on);
        assert_eq!(Flags::default().onto(false, on.clone()).unwrap(), on);
        assert_eq!(Flags { ui: Some(false), ..Flags::default() }.onto(false, on).unwrap(), recorded);
        assert!(manifests::components().contains(&UI));
    }

    #[test]
    fn lvmd_on_the_host_takes_no_configuration_from_here() {
        let flags = Flags { lvmd: Some(Lvmd::Host), volume_group: Some("vg".to_owned()), ..Flags::default() };
        assert!(matches!(flags.onto(false, Options::default()), Err(InstallError::Flag(_))));
    }

    #[test]
    fn values_that_cannot_be_meant_are_refused() {
        assert!(volume_group("a b").is_err() && volume_group("-a").is_err() && volume_group("a_b-1").is_ok());
        assert_eq!(directory("/var/lib/k0s/kubelet/").unwrap(), "/var/lib/k0s/kubelet");
        assert!(directory("kubelet").is_err() && directory("/").is_err());
        assert!(label("=x").is_err() && label("x").is_err() && label("a=b=c").is_ok());
    }
}

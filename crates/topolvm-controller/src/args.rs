//! Flags and environment of `topolvm-controller`, and the configuration they become.

use std::path::PathBuf;

use claim_growth::GrowthArgs;
use claim_rebuild::RebuildArgs;
use clap::{ArgAction, Parser, ValueEnum};
use cluster_inventory::AgentAccess;
use doctor_controller::DoctorArgs;
use embedded_provisioner::ProvisionerArgs;
use embedded_resizer::ResizerArgs;
use embedded_snapshotter::SnapshotterArgs;
use topolvm_api::{ApiFlavor, DEFAULT_CSI_SOCKET, NodeSelection, NodeStrategy};
use topolvm_runtime::inventory_server::{InventoryArgs, InventoryConfig};
use topolvm_runtime::listen::{Listen, ListenAddress};
use topolvm_runtime::metrics_server::{MetricsArgs, MetricsConfig};
use topolvm_runtime::{ConfigError, LogArgs, RetiredArgs};
use topolvm_webhook::{CapacityResource, WebhookArgs, WebhookConfig};

use crate::MinimumAllocation;
use crate::driver::DriverSettings;
use crate::leader::{ElectionTiming, LeaseName};
use crate::reconcile::{CleanupSettings, ControllerSettings};
use crate::scheduling::{SchedulingArgs, SchedulingConfig, SchedulingMode};

/// Serves the CSI controller service of TopoLVM.
#[derive(Clone, Debug, Parser)]
#[command(name = "topolvm-controller", version)]
pub struct Args {
    /// Unix socket of the CSI services; the sidecars of this pod connect to it.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_CSI_SOCKET)]
    pub csi_socket: PathBuf,

    /// The metrics.
    #[command(flatten)]
    pub metrics: MetricsArgs,

    /// Address of /healthz and /readyz over HTTP; empty or 0 disables them.
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub health_probe_bind_address: Listen,

    /// Address of the read-only web page, which kubectl topolvm ui opens. Must be an address local to the pod, such as
    /// 127.0.0.1:8082; empty or 0 disables the page.
    #[arg(long, env = "UI_BIND_ADDRESS", value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    pub ui_bind_address: Listen,

    /// The lists of volume groups and volumes of all nodes.
    #[command(flatten)]
    pub inventory: InventoryArgs,

    #[command(flatten)]
    pub(crate) agent_access: AgentAccess,

    #[command(flatten)]
    pub(crate) minimums: MinimumAllocation,

    /// Support snapshots, restored volumes and clones. Disable it if no node has a thin device class.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub enable_snapshots: bool,

    /// Let one replica at a time run the controllers; set false only with a single replica.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub leader_election: bool,

    /// Name of the Lease of the leader election.
    #[arg(long, value_name = "NAME", default_value = "topolvm")]
    pub leader_election_id: String,

    /// Namespace of the Lease; empty means the namespace of this pod.
    #[arg(long, value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    pub leader_election_namespace: String,

    #[command(flatten)]
    pub(crate) election_timing: ElectionTiming,

    #[command(flatten)]
    pub(crate) controllers: ControllerSettings,

    #[command(flatten)]
    pub(crate) growth: GrowthArgs,

    #[command(flatten)]
    pub(crate) rebuild: RebuildArgs,

    #[command(flatten)]
    pub(crate) cleanup: CleanupSettings,

    #[command(flatten)]
    pub(crate) doctor: DoctorArgs,

    /// Controllers of CSI sidecars that run in this process, separated by commas. Remove the sidecar, or start it
    /// without this task.
    #[arg(long = "controllers", env = "CONTROLLERS", value_name = "NAMES", value_enum, value_delimiter = ',')]
    pub embedded: Vec<Embedded>,

    /// Earlier name of --controllers.
    #[arg(long, env = "EMBED", value_name = "NAMES", value_enum, value_delimiter = ',', hide = true)]
    pub embed: Vec<Embedded>,

    #[command(flatten)]
    pub(crate) provisioner: ProvisionerArgs,

    #[command(flatten)]
    pub(crate) resizer: ResizerArgs,

    #[command(flatten)]
    pub(crate) snapshotter: SnapshotterArgs,

    /// Name of this pod. Its Deployment owns the objects that --controllers=capacity writes, and the ConfigMap
    /// topolvm-doctor; empty means the host name.
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "", hide_default_value = true)]
    pub pod_name: String,

    /// Namespace of this pod, in which --controllers=capacity and the checks write; empty means the namespace of the
    /// service account.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "", hide_default_value = true)]
    pub pod_namespace: String,

    /// Labels of the nodes with storage, separated by commas; a node needs one of them. Empty selects all nodes. A node
    /// that loses its label keeps its volumes, gets no new ones, and stays labelled while it has volumes.
    #[arg(long, env = "NODE_LABELS", value_name = "KEY=VALUE", default_value = "", hide_default_value = true)]
    pub node_labels: NodeSelection,

    /// Node for a volume whose claim binds immediately: spread selects the node with the most free space; binpack
    /// selects the node with the least sufficient free space, which keeps space for large volumes. Default: the first
    /// node in the order of csi-provisioner, which starts with another node for each claim.
    #[arg(long, value_name = "STRATEGY")]
    pub node_strategy: Option<NodeStrategy>,

    #[command(flatten)]
    pub(crate) scheduling: SchedulingArgs,

    /// Any non-empty value selects the API group topolvm.cybozu.com instead of topolvm.io.
    #[arg(long, env = "USE_LEGACY", value_name = "ANY", default_value = "", hide_default_value = true)]
    pub use_legacy: String,

    /// The admission webhooks.
    #[command(flatten)]
    pub webhooks: WebhookArgs,

    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,

    #[command(flatten)]
    pub(crate) retired: RetiredArgs,
}

/// A controller of a CSI sidecar that runs in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Embedded {
    /// None of them.
    None,
    /// Create and delete volumes for claims, instead of csi-provisioner.
    Provisioner,
    /// Publish free space as CSIStorageCapacity objects when it changes, instead of csi-provisioner's
    /// --enable-capacity. Without effect with --scheduling-mode=extender, where nothing reads them.
    Capacity,
    /// Expand and modify the volumes of claims, instead of csi-resizer.
    Resizer,
    /// Create and delete snapshots for VolumeSnapshotContents, instead of csi-snapshotter.
    Snapshotter,
}

/// The configuration of a controller that does the work of a sidecar.
#[derive(Clone, Debug)]
pub(crate) struct EmbeddedConfig<S> {
    pub(crate) settings: S,
    /// The sidecar's Lease.
    pub(crate) lease: LeaseName,
    pub(crate) timing: ElectionTiming,
}

/// The validated configuration of the controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Unix socket of the CSI services.
    pub csi_socket: PathBuf,
    /// Address and TLS of the metrics.
    pub metrics: MetricsConfig,
    /// Address of the health probes.
    pub health_probe_bind_address: Listen,
    /// Address of the web page; `None` turns it off.
    pub ui: Option<ListenAddress>,
    /// Address and certificate of the lists of all nodes; `None` turns them off.
    pub inventory: Option<InventoryConfig>,
    /// Access to agents, which are asked for them.
    pub(crate) agent_access: AgentAccess,
    /// The settings of the CSI services.
    pub driver: DriverSettings,
    /// The Lease of the leader election; `None` where there is one replica.
    pub(crate) lease: Option<(LeaseName, ElectionTiming)>,
    /// The settings of the controllers.
    pub(crate) controllers: ControllerSettings,
    /// Automatic growth of claims.
    pub(crate) growth: GrowthArgs,
    /// Recreation of the claims of lost nodes.
    pub(crate) rebuild: RebuildArgs,
    /// The settings of the search for volumes of Nodes that are gone.
    pub(crate) cleanup: CleanupSettings,
    /// The checks.
    pub(crate) doctor: DoctorArgs,
    /// True if the leader publishes capacity.
    pub publishes_capacity: bool,
    /// The provisioner, with the Lease that it shares with csi-provisioner; `None` where that sidecar provisions.
    pub(crate) provisioner: Option<EmbeddedConfig<ProvisionerArgs>>,
    /// The resizer, with the Lease that it shares with csi-resizer; `None` where that sidecar expands volumes.
    pub(crate) resizer: Option<EmbeddedConfig<ResizerArgs>>,
    /// The snapshotter, with the Lease that it shares with csi-snapshotter; `None` where that sidecar does the work.
    pub(crate) snapshotter: Option<EmbeddedConfig<SnapshotterArgs>>,
    /// The scheduling mode.
    pub(crate) scheduling: SchedulingConfig,
    /// The name of this pod; empty is the host name.
    pub pod_name: String,
    /// Its namespace; empty is that of the service account.
    pub pod_namespace: String,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The admission webhooks, unless they are off.
    pub webhooks: Option<WebhookConfig>,
}

impl TryFrom<Args> for Config {
    type Error = ConfigError;

    fn try_from(args: Args) -> Result<Self, ConfigError> {
        let (mode, namespace) = (args.scheduling.scheduling_mode, args.webhooks.namespace());
        let capacity_resource = capacity_resource(mode, args.webhooks.pod_capacity_resource)?;
        let webhooks = args.webhooks.config(capacity_resource, args.controllers.pvc_finalizer)?;
        let flavor = ApiFlavor::from_use_legacy(Some(&args.use_legacy));
        let embedded = embedded_controllers(&args.embedded, &args.embed)?;
        let lease_namespace = Some(args.leader_election_namespace).filter(|namespace| !namespace.is_empty());
        let lease = |name| LeaseName { namespace: lease_namespace.clone(), name };
        Ok(Self {
            csi_socket: args.csi_socket,
            metrics: args.metrics.into(),
            health_probe_bind_address: args.health_probe_bind_address,
            ui: ui_address(args.ui_bind_address)?,
            inventory: args.inventory.config(),
            agent_access: args.agent_access,
            driver: DriverSettings {
                minimums: args.minimums,
                node_labels: args.node_labels,
                node_strategy: args.node_strategy,
                snapshots: args.enable_snapshots,
            },
            lease: args.leader_election.then(|| (lease(args.leader_election_id), args.election_timing)),
            controllers: args.controllers,
            growth: args.growth,
            rebuild: args.rebuild,
            cleanup: args.cleanup,
            doctor: args.doctor,
            publishes_capacity: embedded.contains(&Embedded::Capacity) && mode != Some(SchedulingMode::Extender),
            provisioner: embedded.contains(&Embedded::Provisioner).then(|| EmbeddedConfig {
                settings: args.provisioner,
                lease: lease(provisioner_lease(flavor)),
                timing: args.election_timing,
            }),
            resizer: embedded.contains(&Embedded::Resizer).then(|| EmbeddedConfig {
                settings: args.resizer,
                lease: lease(resizer_lease(flavor)),
                timing: args.election_timing,
            }),
            snapshotter: embeds_snapshotter(&embedded, args.enable_snapshots)?.then(|| EmbeddedConfig {
                settings: args.snapshotter,
                lease: lease(snapshotter_lease(flavor)),
                timing: args.election_timing,
            }),
            scheduling: args.scheduling.config(webhooks.is_some(), namespace)?,
            pod_name: args.pod_name,
            pod_namespace: args.pod_namespace,
            flavor,
            webhooks,
        })
    }
}

/// Returns the controllers that the flag and its earlier name select.
fn embedded_controllers(embedded: &[Embedded], earlier: &[Embedded]) -> Result<Vec<Embedded>, ConfigError> {
    let all: Vec<_> = embedded.iter().chain(earlier).copied().collect();
    if all.contains(&Embedded::None) && all.iter().any(|one| *one != Embedded::None) {
        return Err(ConfigError::new("--controllers has none and another controller; remove one of them"));
    }
    Ok(all)
}

/// Returns whether the snapshotter is selected. It would have every snapshot refused while they are disabled.
fn embeds_snapshotter(embedded: &[Embedded], snapshots: bool) -> Result<bool, ConfigError> {
    let is_selected = embedded.contains(&Embedded::Snapshotter);
    if is_selected && !snapshots {
        let message =
            "--controllers=snapshotter and --enable-snapshots=false contradict each other; remove one of them";
        return Err(ConfigError::new(message));
    }
    Ok(is_selected)
}

/// Returns the name of the Lease of csi-provisioner for this driver.
fn provisioner_lease(flavor: ApiFlavor) -> String {
    flavor.driver_name().replace('.', "-")
}

/// Returns the name of the Lease of csi-resizer for this driver.
fn resizer_lease(flavor: ApiFlavor) -> String {
    format!("external-resizer-{}", flavor.driver_name().replace('.', "-"))
}

/// Returns the name of the Lease of csi-snapshotter for this driver.
fn snapshotter_lease(flavor: ApiFlavor) -> String {
    format!("external-snapshotter-leader-{}", flavor.driver_name().replace('.', "-"))
}

/// Returns the resource that pods get in this scheduling mode, where one is chosen, with this value of the flag.
fn capacity_resource(
    mode: Option<SchedulingMode>,
    resource: Option<CapacityResource>,
) -> Result<CapacityResource, ConfigError> {
    let contradiction = |mode: &str, other: &str| {
        let message = format!(
            "--scheduling-mode={mode} and --pod-capacity-resource contradict each other; remove \
             --pod-capacity-resource, or set --scheduling-mode={other}"
        );
        Err(ConfigError::new(message))
    };
    match (mode, resource) {
        (Some(SchedulingMode::Capacity), None | Some(CapacityResource::None)) => Ok(CapacityResource::None),
        (Some(SchedulingMode::Capacity), Some(_)) => contradiction("capacity", "extender"),
        (Some(SchedulingMode::Extender), Some(CapacityResource::None)) => contradiction("extender", "capacity"),
        (Some(SchedulingMode::Extender) | None, resource) => Ok(resource.unwrap_or_default()),
    }
}

/// Checks the address of the web page, which has no login: anyone who may forward a port to the pod may read it.
fn ui_address(address: Listen) -> Result<Option<ListenAddress>, ConfigError> {
    match address {
        Listen::Off => Ok(None),
        Listen::On(address) if address.is_loopback() => Ok(Some(address)),
        Listen::On(address) => Err(ConfigError::new(format!(
            "--ui-bind-address={address} would expose the web page, which has no login, to everyone who can reach this \
             pod; set 127.0.0.1 before the port, and open the page with kubectl topolvm ui"
        ))),
    }
}

#[cfg(test)]
mod tests;

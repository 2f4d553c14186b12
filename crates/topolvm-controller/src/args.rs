//! Flags and environment of `topolvm-controller`, and the configuration they become.

use std::path::PathBuf;

use claim_growth::GrowthArgs;
use claim_rebuild::RebuildArgs;
use clap::{ArgAction, Parser, ValueEnum};
use cluster_inventory::AgentAccess;
use doctor_controller::DoctorArgs;
use topolvm_api::{ApiFlavor, DEFAULT_CSI_SOCKET, NodeSelection, NodeStrategy};
use topolvm_runtime::inventory_server::{InventoryArgs, InventoryConfig};
use topolvm_runtime::listen::{Listen, ListenAddress};
use topolvm_runtime::metrics_server::{MetricsArgs, MetricsConfig};
use topolvm_runtime::{ConfigError, LogArgs, RetiredArgs};
use topolvm_webhook::{CapacityResource, WebhookArgs, WebhookConfig};

use crate::MinimumAllocation;
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

    /// Tasks of CSI sidecars that the leader takes over, separated by commas. Start the sidecar without these tasks.
    #[arg(long, env = "EMBED", value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub embed: Vec<Embedded>,

    /// Name of this pod. Its Deployment owns the objects that --embed=capacity writes, and the ConfigMap
    /// topolvm-doctor; empty means the host name.
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "", hide_default_value = true)]
    pub pod_name: String,

    /// Namespace of this pod, in which --embed=capacity and the checks write; empty means the namespace of the service
    /// account.
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

/// Work of a CSI sidecar that the controller can do itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Embedded {
    /// Publish free space as CSIStorageCapacity objects when it changes, instead of csi-provisioner's
    /// --enable-capacity.
    Capacity,
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
    /// The smallest sizes of volumes.
    pub minimums: MinimumAllocation,
    /// True if snapshots and copies are enabled.
    pub snapshots: bool,
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
    /// The selection of the nodes that have storage.
    pub node_labels: NodeSelection,
    /// The strategy by which a node is preferred where none was selected.
    pub node_strategy: Option<NodeStrategy>,
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
        Ok(Self {
            csi_socket: args.csi_socket,
            metrics: args.metrics.into(),
            health_probe_bind_address: args.health_probe_bind_address,
            ui: ui_address(args.ui_bind_address)?,
            inventory: args.inventory.config(),
            agent_access: args.agent_access,
            minimums: args.minimums,
            snapshots: args.enable_snapshots,
            lease: args.leader_election.then(|| {
                let namespace = Some(args.leader_election_namespace).filter(|namespace| !namespace.is_empty());
                (LeaseName { namespace, name: args.leader_election_id }, args.election_timing)
            }),
            controllers: args.controllers,
            growth: args.growth,
            rebuild: args.rebuild,
            cleanup: args.cleanup,
            doctor: args.doctor,
            publishes_capacity: args.embed.contains(&Embedded::Capacity),
            node_labels: args.node_labels,
            node_strategy: args.node_strategy,
            scheduling: args.scheduling.config(webhooks.is_some(), namespace)?,
            pod_name: args.pod_name,
            pod_namespace: args.pod_namespace,
            flavor: ApiFlavor::from_use_legacy(Some(&args.use_legacy)),
            webhooks,
        })
    }
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
mod tests {
    use std::time::Duration;

    use clap::CommandFactory as _;

    use topolvm_webhook::Certificates;

    use crate::scheduling::ProbeSettings;

    use super::*;

    fn config(args: &[&str]) -> Config {
        Args::try_parse_from(std::iter::once(&"topolvm-controller").chain(args)).unwrap().try_into().unwrap()
    }

    #[test]
    fn help_is_what_deployments_rely_on() {
        insta::assert_snapshot!(
            Args::command().term_width(100).mut_args(|arg| arg.hide_env_values(true)).render_long_help()
        );
    }

    #[test]
    fn minimum_allocations_of_all_filesystems_are_configured() {
        let minimums = config(&[
            "--minimum-allocation-block=1Mi",
            "--minimum-allocation-ext4",
            "2Mi",
            "--minimum-allocation-xfs=3Mi",
            "--minimum-allocation-btrfs=-1",
        ])
        .minimums;
        assert_eq!(minimums, MinimumAllocation { block: 1 << 20, ext4: 2 << 20, xfs: 3 << 20, btrfs: 0 });
    }

    #[test]
    fn a_minimum_that_is_no_quantity_is_refused_with_an_example() {
        let error = Args::try_parse_from(["topolvm-controller", "--minimum-allocation-xfs=lots"]).unwrap_err();
        assert!(error.to_string().contains("such as 1Gi"), "{error}");
    }

    #[test]
    fn a_flag_that_is_not_served_is_refused_with_a_hint() {
        let error = Args::try_parse_from(["topolvm-controller", "--minimum-allocation-ext3=1Mi"]).unwrap_err();
        assert!(error.to_string().contains("a similar argument exists"), "{error}");
    }

    #[test]
    fn metrics_are_served_where_older_deployments_say() {
        let address = |flag| config(&[flag]).metrics;
        assert_eq!(address("--metrics-addr=:28080"), address("--metrics-bind-address=:28080"));
        assert_ne!(address("--metrics-addr=:28080"), config(&[]).metrics);
    }

    #[test]
    fn the_web_page_is_off_or_for_this_pod_alone() {
        assert_eq!((config(&[]).ui, config(&["--ui-bind-address=0"]).ui), (None, None));
        assert_eq!(config(&["--ui-bind-address=127.0.0.1:8082"]).ui.unwrap().to_string(), "127.0.0.1:8082");
        let args = Args::try_parse_from(["topolvm-controller", "--ui-bind-address=:8082"]).unwrap();
        let error = Config::try_from(args).unwrap_err().to_string();
        assert!(error.contains("set 127.0.0.1 before the port"), "{error}");
    }

    #[test]
    fn every_flag_of_topolvm_reaches_the_configuration() {
        let taken = config(&[
            "--zap-log-level=debug",
            "-v=4",
            "--logtostderr",
            "--csi-socket=/run/other/csi.sock",
            "--metrics-bind-address=:28080",
            "--secure-metrics-server",
            "--health-probe-bind-address=:28081",
            "--webhook-addr=:29443",
            "--enable-webhooks=true",
            "--cert-dir=/other",
            "--leader-election=true",
            "--leader-election-id=other",
            "--leader-election-namespace=ns",
            "--leader-election-lease-duration=30s",
            "--leader-election-renew-deadline=20s",
            "--leader-election-retry-period=4s",
            "--skip-node-finalize=true",
            "--profiling-bind-address=:6060",
            "--minimum-allocation-block=1Mi",
            "--minimum-allocation-ext4=2Mi",
            "--minimum-allocation-xfs=3Mi",
            "--minimum-allocation-btrfs=4Mi",
        ]);
        assert_eq!(taken.csi_socket, PathBuf::from("/run/other/csi.sock"));
        let metrics = |flags: &[&str]| config(flags).metrics;
        assert_eq!(taken.metrics, metrics(&["--secure-metrics-server=true", "--metrics-bind-address=:28080"]));
        assert_ne!(taken.metrics, metrics(&["--secure-metrics-server"]));
        assert_ne!(taken.metrics, metrics(&["--metrics-bind-address=:28080"]));
        assert_eq!(taken.health_probe_bind_address, ":28081".parse().unwrap());
        let webhooks = taken.webhooks.unwrap();
        assert_eq!(webhooks.address, ":29443".parse().unwrap());
        assert_eq!(webhooks.certificates, Certificates::Files("/other".into()));
        let lease = LeaseName { namespace: Some("ns".to_owned()), name: "other".to_owned() };
        let seconds = Duration::from_secs;
        let timing =
            ElectionTiming { lease_duration: seconds(30), renew_deadline: seconds(20), retry_period: seconds(4) };
        assert_eq!(taken.lease, Some((lease, timing)));
        assert!(taken.controllers.skip_node_finalize);
        let minimums = MinimumAllocation { block: 1 << 20, ext4: 2 << 20, xfs: 3 << 20, btrfs: 4 << 20 };
        assert_eq!(taken.minimums, minimums);
    }

    #[rstest::rstest]
    #[case(&[], true)]
    #[case(&["--enable-snapshots=false"], false)]
    #[case(&["--enable-snapshots"], true)]
    fn snapshots_can_be_turned_off(#[case] args: &[&str], #[case] snapshots: bool) {
        assert_eq!(config(args).snapshots, snapshots);
    }

    #[test]
    fn nodes_are_preferred_by_a_strategy_on_demand() {
        assert_eq!(config(&[]).node_strategy, None);
        assert_eq!(config(&["--node-strategy=binpack"]).node_strategy, Some(NodeStrategy::Binpack));
        assert_eq!(config(&["--node-strategy=spreadout"]).node_strategy, Some(NodeStrategy::Spread));
        let error = Args::try_parse_from(["topolvm-controller", "--node-strategy=best"]).unwrap_err().to_string();
        assert!(error.contains("must be spread or binpack"), "{error}");
    }

    #[rstest::rstest]
    #[case(&[], false)]
    #[case(&["--embed=capacity"], true)]
    #[case(&["--embed", "capacity,capacity"], true)]
    fn capacity_is_published_on_demand(#[case] args: &[&str], #[case] publishes: bool) {
        assert_eq!(config(args).publishes_capacity, publishes);
    }

    #[test]
    fn leader_election_and_cleanup_defaults_match_topolvm() {
        let defaults = config(&[]);
        let seconds = Duration::from_secs;
        let timing =
            ElectionTiming { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) };
        assert_eq!(defaults.lease, Some((LeaseName { namespace: None, name: "topolvm".to_owned() }, timing)));
        let settings = ControllerSettings { skip_node_finalize: false, pvc_finalizer: false };
        assert_eq!(defaults.controllers, settings);
        assert_eq!(defaults.growth, GrowthArgs { grow_claims: true });
        let rebuild = RebuildArgs { rebuild_claims: false, rebuild_grace_period: Duration::from_mins(5) };
        assert_eq!(defaults.rebuild, rebuild);
        let (stale_period, cleanup_interval) = (Duration::from_hours(24), Duration::from_mins(10));
        assert_eq!(defaults.cleanup, CleanupSettings { stale_period, cleanup_interval });
        assert_eq!(defaults.doctor, DoctorArgs { doctor_interval: Duration::from_mins(5) });

        assert_eq!(config(&["--leader-election=false"]).lease, None);
        let told = config(&["--leader-election-namespace=ns", "--skip-node-finalize", "--stale-period=1h30m"]);
        assert_eq!(told.lease.unwrap().0.namespace.as_deref(), Some("ns"));
        assert!(told.controllers.skip_node_finalize);
        assert_eq!(told.cleanup.stale_period, Duration::from_mins(90));
    }

    #[rstest::rstest]
    #[case::lease("--leader-election-lease-duration=10s")]
    #[case::fraction("--leader-election-lease-duration=15500ms")]
    #[case::renew("--leader-election-retry-period=9s")]
    fn times_with_which_two_could_lead_are_refused(#[case] flag: &str) {
        let args = Args::try_parse_from(["topolvm-controller", flag]).unwrap();
        assert!(args.election_timing.check().unwrap_err().to_string().contains("--leader-election-"), "{flag}");
    }

    #[rstest::rstest]
    #[case("0", Duration::ZERO)]
    #[case("0s", Duration::ZERO)]
    #[case("1h", Duration::from_hours(1))]
    fn checks_can_be_turned_off(#[case] interval: &str, #[case] expected: Duration) {
        let flag = format!("--doctor-interval={interval}");
        assert_eq!(config(&[&flag]).doctor.doctor_interval, expected);
        let error = Args::try_parse_from(["topolvm-controller", "--doctor-interval=-1s"]).unwrap_err().to_string();
        assert!(error.contains("such as 15s"), "{error}");
    }

    #[rstest::rstest]
    #[case("0s")]
    #[case("-1h")]
    #[case("soon")]
    fn a_period_that_is_no_time_is_refused_with_an_example(#[case] period: &str) {
        let flag = format!("--stale-period={period}");
        let error = Args::try_parse_from(["topolvm-controller", &flag]).unwrap_err();
        assert!(error.to_string().contains("such as 15s"), "{error}");
    }

    #[test]
    fn webhooks_are_served_if_enabled_or_with_a_certificate() {
        assert_eq!(config(&[]).webhooks, None);
        assert_eq!(config(&["--cert-dir=/certs", "--enable-webhooks=false"]).webhooks, None);
        let files = config(&["--cert-dir=/certs"]).webhooks.unwrap();
        let expected = WebhookConfig {
            address: ":9443".parse().unwrap(),
            client_authorities: None,
            certificates: Certificates::Files("/certs".into()),
            capacity_resource: CapacityResource::Marker,
            pvc_finalizer: false,
        };
        assert_eq!(files, expected);
        let own = config(&["--enable-webhooks", "--pod-capacity-resource=bytes", "--pvc-finalizer"]).webhooks.unwrap();
        assert!(matches!(own.certificates, Certificates::SelfManaged(_)), "{own:?}");
        assert_eq!((own.capacity_resource, own.pvc_finalizer), (CapacityResource::Bytes, true));
    }

    /// Returns the resource of pods, the mode, and whether kube-scheduler is probed, with these flags and the webhooks.
    fn scheduling(flags: &[&str]) -> (CapacityResource, Option<SchedulingMode>, bool) {
        let config = config(&[&["--enable-webhooks"], flags].concat());
        (config.webhooks.unwrap().capacity_resource, config.scheduling.mode, config.scheduling.probe.is_some())
    }

    #[test]
    fn the_scheduling_mode_decides_what_pods_get() {
        use {CapacityResource as Resource, SchedulingMode as Mode};
        assert_eq!(scheduling(&[]), (Resource::Marker, None, false));
        assert_eq!(scheduling(&["--pod-capacity-resource=none"]), (Resource::None, None, false));
        assert_eq!(scheduling(&["--scheduling-mode=capacity"]), (Resource::None, Some(Mode::Capacity), false));
        let extender = "--scheduling-mode=extender";
        assert_eq!(scheduling(&[extender]), (Resource::Marker, Some(Mode::Extender), true));
        assert_eq!(scheduling(&[extender, "--assume-extender"]), (Resource::Marker, Some(Mode::Extender), false));
        let bytes = scheduling(&[extender, "--pod-capacity-resource=bytes"]);
        assert_eq!(bytes, (Resource::Bytes, Some(Mode::Extender), true));
        // Where no webhooks are served the mode is for the controllers
        assert_eq!(config(&["--scheduling-mode=capacity"]).scheduling.mode, Some(Mode::Capacity));
        let probe = config(&["--enable-webhooks", extender, "--webhook-namespace=ns", "--extender-probe-interval=90s"]);
        let settings = ProbeSettings { namespace: "ns".to_owned(), interval: Duration::from_secs(90) };
        assert_eq!(probe.scheduling.probe, Some(settings));
    }

    #[rstest::rstest]
    #[case(&["--scheduling-mode=capacity", "--pod-capacity-resource=marker"], "remove --pod-capacity-resource")]
    #[case(&["--scheduling-mode=capacity", "--pod-capacity-resource=bytes"], "or set --scheduling-mode=extender")]
    #[case(&["--scheduling-mode=extender", "--pod-capacity-resource=none"], "or set --scheduling-mode=capacity")]
    #[case(&["--scheduling-mode=extender", "--enable-webhooks=false"], "add --enable-webhooks")]
    #[case(&["--scheduling-mode=capacity", "--assume-extender"], "or remove --assume-extender")]
    #[case(&["--assume-extender"], "--scheduling-mode=extender; add it")]
    fn flags_that_contradict_each_other_are_refused_with_the_remedy(#[case] flags: &[&str], #[case] remedy: &str) {
        let flags = [&["topolvm-controller", "--cert-dir=/certs"], flags].concat();
        let error = Config::try_from(Args::try_parse_from(flags).unwrap()).unwrap_err();
        assert!(error.to_string().contains(remedy), "{error}");
    }

    #[test]
    fn a_certificate_that_could_not_be_renewed_in_time_is_refused() {
        let allowed = "must be between 1m and 876000h";
        for (lifetime, hint) in [("59s", allowed), ("-1h", allowed), ("soon", "use a duration such as 8760h")] {
            let flag = format!("--webhook-certificate-lifetime={lifetime}");
            let error = Args::try_parse_from(["topolvm-controller", &flag]).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
    }
}

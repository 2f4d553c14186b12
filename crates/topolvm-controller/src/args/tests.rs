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
    .driver
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
    let timing = ElectionTiming { lease_duration: seconds(30), renew_deadline: seconds(20), retry_period: seconds(4) };
    assert_eq!(taken.lease, Some((lease, timing)));
    assert!(taken.controllers.skip_node_finalize);
    let minimums = MinimumAllocation { block: 1 << 20, ext4: 2 << 20, xfs: 3 << 20, btrfs: 4 << 20 };
    assert_eq!(taken.driver.minimums, minimums);
}

#[rstest::rstest]
#[case(&[], true)]
#[case(&["--enable-snapshots=false"], false)]
#[case(&["--enable-snapshots"], true)]
fn snapshots_can_be_turned_off(#[case] args: &[&str], #[case] snapshots: bool) {
    assert_eq!(config(args).driver.snapshots, snapshots);
}

#[test]
fn nodes_are_preferred_by_a_strategy_on_demand() {
    assert_eq!(config(&[]).driver.node_strategy, None);
    assert_eq!(config(&["--node-strategy=binpack"]).driver.node_strategy, Some(NodeStrategy::Binpack));
    assert_eq!(config(&["--node-strategy=spreadout"]).driver.node_strategy, Some(NodeStrategy::Spread));
    let error = Args::try_parse_from(["topolvm-controller", "--node-strategy=best"]).unwrap_err().to_string();
    assert!(error.contains("must be spread or binpack"), "{error}");
}

#[rstest::rstest]
#[case(&[], false, false)]
#[case(&["--controllers=capacity"], true, false)]
#[case(&["--controllers", "provisioner,capacity"], true, true)]
#[case(&["--controllers=none"], false, false)]
#[case(&["--controllers=provisioner,capacity", "--scheduling-mode=capacity"], true, true)]
#[case(&["--controllers=provisioner,capacity", "--scheduling-mode=extender", "--enable-webhooks"], false, true)]
#[case(&["--embed=capacity"], true, false)]
#[case(&["--embed", "capacity,capacity", "--controllers=provisioner"], true, true)]
fn embedded_controllers_run_on_demand(#[case] args: &[&str], #[case] publishes: bool, #[case] provisions: bool) {
    let config = config(args);
    assert_eq!((config.publishes_capacity, config.provisioner.is_some()), (publishes, provisions));
}

#[test]
fn embedded_controllers_none_is_refused_next_to_another() {
    let args = ["topolvm-controller", "--controllers=none,provisioner"];
    let error = Config::try_from(Args::try_parse_from(args).unwrap()).unwrap_err().to_string();
    assert!(error.contains("remove one of them"), "{error}");
}

#[test]
fn resizer_shares_the_lease_of_csi_resizer() {
    assert!(config(&["--controllers=provisioner"]).resizer.is_none());
    let config = config(&["--controllers=capacity", "--controllers=resizer", "--leader-election-namespace=ns"]);
    let name = "external-resizer-topolvm-io".to_owned();
    assert_eq!(config.resizer.unwrap().lease, LeaseName { namespace: Some("ns".to_owned()), name });
    assert!(config.publishes_capacity, "a flag that is given twice adds up");
}

#[test]
fn snapshotter_shares_the_lease_of_csi_snapshotter() {
    let name = "external-snapshotter-leader-topolvm-io".to_owned();
    let lease = config(&["--controllers=snapshotter"]).snapshotter.unwrap().lease;
    assert_eq!(lease, LeaseName { namespace: None, name });
}

#[test]
fn snapshotter_needs_snapshots() {
    assert!(config(&["--enable-snapshots=false", "--controllers=resizer"]).snapshotter.is_none());
    let args = ["topolvm-controller", "--enable-snapshots=false", "--controllers=snapshotter"];
    let refused = Config::try_from(Args::try_parse_from(args).unwrap()).unwrap_err();
    assert!(refused.to_string().contains("--enable-snapshots=false"), "{refused}");
}

#[test]
fn provisioner_shares_the_lease_of_csi_provisioner() {
    let config = config(&["--controllers=provisioner", "--leader-election-namespace=ns"]);
    let expected = LeaseName { namespace: Some("ns".to_owned()), name: "topolvm-io".to_owned() };
    assert_eq!(config.provisioner.unwrap().lease, expected);
}

#[test]
fn leader_election_and_cleanup_defaults_match_topolvm() {
    let defaults = config(&[]);
    let seconds = Duration::from_secs;
    let timing = ElectionTiming { lease_duration: seconds(15), renew_deadline: seconds(10), retry_period: seconds(2) };
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
    let given = config(&["--leader-election-namespace=ns", "--skip-node-finalize", "--stale-period=1h30m"]);
    assert_eq!(given.lease.unwrap().0.namespace.as_deref(), Some("ns"));
    assert!(given.controllers.skip_node_finalize);
    assert_eq!(given.cleanup.stale_period, Duration::from_mins(90));
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

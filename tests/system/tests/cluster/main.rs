//! The product in a real cluster: stock kubelet, csi-provisioner and csi-resizer, real LVM. Tests that neither kill nor
//! replace its programs use clusters in which it runs as pods, the other tests use clusters with its programs as
//! processes; each test has exclusive use of one.
#![expect(
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "progress for the user; reading a member that a JSON value lacks gives null"
)]

mod claims;
mod classes;
mod cloud_disk;
mod crashes;
mod database;
mod devices;
mod disks;
mod disks_of_nodes;
mod etcd_backup;
mod evacuation;
mod events;
mod examples;
mod extender;
mod filesystems;
mod fixture;
mod growth;
mod health;
mod helm;
mod install;
mod inventory;
mod io_limits;
mod job;
mod kube_scheduler;
mod legacy;
mod metrics;
mod monitoring;
mod node_label;
mod nudge;
mod old_objects;
mod older_versions;
mod orphan_causes;
mod orphans;
mod pages;
mod permissions;
mod plugin;
mod pods;
mod replicas;
mod scheduling;
mod snapshots;
mod switching;
mod three_nodes;
mod topology_label;
mod trial;
mod undelete;
mod upstream_provisioner;
mod vault;
mod volume_health;
mod web_page;
mod webhooks;

use std::process::ExitCode;

use fixture::Fixture;
use libtest_mimic::Trial;
use testbed::suite::{self, InSoak};

/// Tests that only the soak runs. The others test each capability at least once.
const IN_SOAK: InSoak = InSoak {
    only: &[
        // Large clusters and releases, minutes each
        pages::GETTING_STARTED,
        pages::NODE_LABEL,
        pods::MOVES,
        pods::ROLL_OUTS,
        helm::NAME,
        "pods_on_three_nodes_survive_bad_rollouts_and_a_dead_node",
        "doctor_commands_start_pods_that_wait_for_two_reasons",
        "etcd_restore_neither_loses_nor_creates_volumes",
        "orphans_of_every_cause_are_reported_and_keep_their_data",
        "database_pages_expand_restore_and_find_unclaimed_volumes",
        "prometheus_queries_have_data_and_alerts_fire_only_on_faults",
        "the_examples_run_as_they_are_and_leave_nothing_behind",
        // A program that is built for these tests only: cert-manager
        "certificates_of_cert_manager_are_served_and_renewed",
        "webhook_uses_cert_manager_with_helm_and_with_kustomize",
        "webhook_certificate_of_two_replicas_renews_without_refusals",
        // The same for an older release, another group, another filesystem
        "topolvm_0_8_3_and_0_9_are_switched_by_the_page_and_back",
        "switch_keeps_volumes_of_the_older_api_group_usable",
        "larger_xfs_and_btrfs_copies_mount_next_to_their_source",
        "restored_btrfs_has_fsynced_data_next_to_its_source",
        "smallest_volume_of_each_filesystem_is_writable",
        "immediate_volumes_follow_the_node_strategy",
        "io_limits_of_pods_on_one_disk_are_their_rates",
        "io_limits_are_enforced_after_a_reboot",
        "io_limits_survive_restarts_of_container_agent_and_kubelet",
        // The same with more kills
        "evacuation_survives_ten_lvmd_kills_and_a_power_cut",
        "crash::lvmd_dies_before_fullreport",
        "crash::the_agent_dies_before_fullreport",
        "crash::lvmd_dies_before_lvcreate",
        "crash::the_agent_dies_before_lvcreate",
        "crash::both_die_before_lvcreate",
        "crash::lvcreate_dies_at_once",
        "crash::lvcreate_dies_early",
        "crash::the_agent_dies_after_lvcreate",
        "crash::both_die_after_lvcreate",
        "crash::lvmd_dies_before_lvremove",
        "crash::lvmd_dies_after_lvremove",
        "crash::the_agent_dies_after_lvremove",
    ],
    // With more sizes
    also: &["copies_may_request_what_the_claim_of_their_source_requests"],
};

/// The function of a test, which runs with a cluster.
type Body = fn(&Fixture) -> anyhow::Result<()>;

fn main() -> ExitCode {
    let in_pods = [
        job::tests(),
        claims::tests(),
        classes::tests(),
        filesystems::tests(),
        permissions::tests(),
        snapshots::tests(),
        database::tests(),
        devices::tests(),
        disks::tests(),
        disks_of_nodes::tests(),
        plugin::tests(),
        monitoring::tests(),
        examples::tests(),
        io_limits::tests(),
        growth::tests(),
        inventory::tests(),
    ];
    let with_processes = [
        job::tests_with_processes(),
        evacuation::tests_with_processes(),
        health::tests(),
        scheduling::tests(),
        extender::tests(),
        upstream_provisioner::tests(),
        metrics::tests(),
        events::tests(),
        nudge::tests(),
        orphans::tests(),
        replicas::tests(),
        switching::tests(),
        topology_label::tests(),
        legacy::tests(),
        io_limits::tests_with_processes(),
    ];
    let in_pods = in_pods.into_iter().flatten();
    let with_processes = with_processes.into_iter().flatten();
    // The longest first, so that none is left alone at the end
    let mut tests: Vec<Trial> =
        [pods::tests(), helm::tests(), pages::tests(), install::tests()].into_iter().flatten().collect();
    tests.extend(in_pods.map(|(name, body)| suite::test(name, move || fixture::with_pods(body))));
    tests.extend(with_processes.map(|(name, body)| suite::test(name, move || fixture::with_processes(body))));
    let crashes = crashes::ALL.iter();
    tests.extend(
        crashes.map(|crash| suite::test(crash.name(), || fixture::with_processes(|fixture| crash.run(fixture)))),
    );
    tests.extend(webhooks::tests());
    tests.extend(older_versions::tests());
    tests.extend(three_nodes::tests());
    tests.extend(vault::tests());
    tests.extend(etcd_backup::tests());
    tests.extend(orphan_causes::tests());
    tests.extend(undelete::tests());
    let code = suite::on_host(IN_SOAK.select(tests));
    if let Err(error) = fixture::down() {
        eprintln!("cluster: taking it down failed: {error:#}");
        return ExitCode::FAILURE;
    }
    code
}

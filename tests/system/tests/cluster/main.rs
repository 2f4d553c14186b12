//! The product in a real cluster: stock kubelet, csi-provisioner and csi-resizer, real LVM. Clusters in which it
//! runs as pods serve all trials that neither kill nor replace its programs, others the rest; each trial has one for
//! itself.
#![expect(
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "progress for whoever waits; reading a member that a JSON value lacks gives null"
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
use testbed::suite;

/// A trial's function, which runs with a cluster.
type Body = fn(&Fixture) -> anyhow::Result<()>;

fn main() -> ExitCode {
    let in_pods = [
        job::trials(),
        claims::trials(),
        classes::trials(),
        filesystems::trials(),
        permissions::trials(),
        snapshots::trials(),
        database::trials(),
        devices::trials(),
        disks::trials(),
        disks_of_nodes::trials(),
        plugin::trials(),
        monitoring::trials(),
        examples::trials(),
        io_limits::trials(),
        growth::trials(),
        inventory::trials(),
    ];
    let with_processes = [
        job::trials_with_processes(),
        evacuation::trials_with_processes(),
        health::trials(),
        scheduling::trials(),
        extender::trials(),
        upstream_provisioner::trials(),
        metrics::trials(),
        events::trials(),
        nudge::trials(),
        orphans::trials(),
        replicas::trials(),
        switching::trials(),
        topology_label::trials(),
        legacy::trials(),
        io_limits::trials_with_processes(),
    ];
    let in_pods = in_pods.into_iter().flatten();
    let with_processes = with_processes.into_iter().flatten();
    // The longest first, so that none is left alone at the end
    let mut trials: Vec<Trial> = [pods::trials(), helm::trials(), install::trials()].into_iter().flatten().collect();
    trials.extend(in_pods.map(|(name, body)| suite::test(name, move || fixture::with_pods(body))));
    trials.extend(with_processes.map(|(name, body)| suite::test(name, move || fixture::with_processes(body))));
    let crashes = crashes::ALL.iter();
    trials.extend(
        crashes.map(|crash| suite::test(crash.name(), || fixture::with_processes(|fixture| crash.run(fixture)))),
    );
    trials.extend(webhooks::trials());
    trials.extend(older_versions::trials());
    trials.extend(three_nodes::trials());
    trials.extend(vault::trials());
    trials.extend(etcd_backup::trials());
    trials.extend(orphan_causes::trials());
    trials.extend(undelete::trials());
    trials.extend(pages::trials());
    let code = suite::on_host(trials);
    if let Err(error) = fixture::down() {
        eprintln!("cluster: taking it down failed: {error:#}");
        return ExitCode::FAILURE;
    }
    code
}

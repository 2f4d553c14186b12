//! The product in a real cluster: stock kubelet, csi-provisioner and csi-resizer, real LVM. Two clusters serve all trials; each trial
//! has one for itself.
#![expect(
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "progress for whoever waits; reading a member that a JSON value lacks gives null"
)]

mod claims;
mod classes;
mod crashes;
mod devices;
mod events;
mod examples;
mod filesystems;
mod fixture;
mod health;
mod helm;
mod install;
mod install_page;
mod job;
mod legacy;
mod metrics;
mod nudge;
mod past;
mod permissions;
mod plugin;
mod pods;
mod replicas;
mod scheduling;
mod snapshots;
mod switching;
mod upstream_provisioner;
mod webhooks;

use std::process::ExitCode;

use fixture::Fixture;
use libtest_mimic::{Failed, Trial};

/// What a trial does with the cluster.
type Body = fn(&Fixture) -> anyhow::Result<()>;

fn main() -> ExitCode {
    let groups = [
        job::trials(),
        claims::trials(),
        classes::trials(),
        filesystems::trials(),
        health::trials(),
        permissions::trials(),
        snapshots::trials(),
        scheduling::trials(),
        upstream_provisioner::trials(),
        metrics::trials(),
        events::trials(),
        devices::trials(),
        nudge::trials(),
        replicas::trials(),
        switching::trials(),
        legacy::trials(),
        plugin::trials(),
        examples::trials(),
    ];
    let all = groups.into_iter().flatten();
    let mut trials: Vec<Trial> = all.map(|(name, body)| trial(name, body)).collect();
    trials.extend(webhooks::trials());
    trials.extend(pods::trials());
    trials.extend(helm::trials());
    trials.extend(install_page::trials());
    trials.extend(install::trials());
    trials.extend(crashes::ALL.iter().map(|crash| trial(crash.name(), |fixture| crash.run(fixture))));
    let code = testbed::suite::on_host(trials);
    if let Err(error) = fixture::down() {
        eprintln!("cluster: taking it down failed: {error:#}");
        return ExitCode::FAILURE;
    }
    code
}

fn trial(name: String, body: impl FnOnce(&Fixture) -> anyhow::Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || fixture::with(body).map_err(|error| Failed::from(format!("{error:#}"))))
}

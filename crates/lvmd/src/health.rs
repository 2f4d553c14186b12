//! The health of lvmd: `grpc.health.v1.Health`, the line in `systemctl status`, and `lvmd health`.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as CheckResult;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::HealthReporter;
use topolvm_runtime::CancellationToken;
use topolvm_runtime::systemd::Systemd;

use crate::reload::ReloadStatus;

/// The service name for the process: serving as long as lvmd answers, as in TopoLVM's lvmd. Agents query it when they
/// are probed. If it reported failures of LVM, the kubelet would restart the agents, which does not repair LVM.
const PROCESS: &str = "";
/// The service names for LVM: those of the gRPC services that need it.
const SERVICES: [&str; 2] = ["proto.LVService", "proto.VGService"];
/// The service name for the configuration: serving while the file as it is now is in use.
const CONFIGURATION: &str = "configuration";
/// The service name for the storage: serving while no problem is known. Volumes without a problem are not affected.
const STORAGE: &str = "storage";
/// Timeout of a call. The kubelet waits one second for a probe unless configured otherwise; a person can wait longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The sources of the health.
#[derive(Debug)]
pub(crate) struct Sources {
    /// True while LVM works or is only slow.
    pub(crate) lvm_works: watch::Receiver<bool>,
    /// Problems of the storage, one sentence each.
    pub(crate) storage_problems: watch::Receiver<Vec<String>>,
    /// Settings of the host's `lvm.conf` that keep LVM from its work, one sentence each.
    pub(crate) lvm_conf_obstacles: watch::Receiver<Vec<String>>,
    /// The result of the last reload of the configuration.
    pub(crate) reload: watch::Receiver<ReloadStatus>,
}

/// Reports the health to the gRPC health service and to systemd, now and after each change, until the shutdown begins.
/// A slow LVM is a problem of the storage and no failure of LVM: a probe that ended lvmd for it would only make it wait
/// again.
pub(crate) async fn report(
    reporter: HealthReporter,
    systemd: Systemd,
    sources: Sources,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Sources { mut lvm_works, mut storage_problems, mut lvm_conf_obstacles, mut reload } = sources;
    let status = |good| if good { ServingStatus::Serving } else { ServingStatus::NotServing };
    loop {
        let (works, reloaded) = (*lvm_works.borrow_and_update(), reload.borrow_and_update().clone());
        let problems =
            [&lvm_conf_obstacles.borrow_and_update()[..], &storage_problems.borrow_and_update()[..]].concat();
        for service in SERVICES {
            reporter.set_service_status(service, status(works)).await;
        }
        reporter.set_service_status(CONFIGURATION, status(reloaded.failure.is_none())).await;
        reporter.set_service_status(STORAGE, status(problems.is_empty())).await;
        systemd.status(&status_line(works, &problems, &reloaded));
        tokio::select! {
            // The engine goes away during the shutdown, which is no failure.
            biased;
            () = shutdown.cancelled() => return Ok(()),
            changed = lvm_works.changed() => changed.context("the engine has stopped")?,
            changed = storage_problems.changed() => changed.context("the engine has stopped")?,
            changed = lvm_conf_obstacles.changed() => changed.context("the check of the LVM settings has stopped")?,
            changed = reload.changed() => changed.context("the watch of the configuration has stopped")?,
        }
    }
}

/// Returns the line in `systemctl status`.
fn status_line(lvm_works: bool, problems: &[String], reload: &ReloadStatus) -> String {
    let mut text = if lvm_works { "LVM works".to_owned() } else { "LVM does not work, see the log".to_owned() };
    for problem in problems {
        text += "; ";
        text += problem;
    }
    if let Some(failure) = &reload.failure {
        text += "; the previous configuration is in use: ";
        text += failure;
    }
    if !reload.needs_restart.is_empty() {
        text += "; restart to use the new ";
        text += &reload.needs_restart.join(", ");
    }
    text
}

/// Fails if the lvmd behind a socket does not answer, whatever it answers.
pub(crate) async fn ping(socket: &Path) -> anyhow::Result<()> {
    call_check(&mut HealthClient::new(connect(socket).await?), PROCESS, socket).await.map(drop)
}

/// Fails if the lvmd behind a socket does not answer or its LVM does not work. Prints problems that affect only a part.
pub(crate) async fn check_health(socket: &Path) -> anyhow::Result<()> {
    let lvmd = format!("lvmd on {}", socket.display());
    let mut client = check_lvm(socket).await?;
    let partial = [
        (
            CONFIGURATION,
            format!("{lvmd} uses its previous configuration because the new one is not valid; see its log"),
        ),
        (STORAGE, format!("the storage of {lvmd} has a problem; see its log or `systemctl status`")),
    ];
    // TopoLVM's lvmd has no such services.
    for (service, problem) in partial {
        if is_not_serving(&mut client, service, socket).await {
            writeln!(std::io::stdout(), "LVM works, but {problem}").context("cannot write to standard output")?;
        }
    }
    Ok(())
}

/// Fails if the lvmd behind a socket does not answer or its LVM does not work. Returns the client that asked it.
pub(crate) async fn check_lvm(socket: &Path) -> anyhow::Result<HealthClient<Channel>> {
    let lvmd = format!("lvmd on {}", socket.display());
    let mut client = HealthClient::new(connect(socket).await?);
    if call_check(&mut client, PROCESS, socket).await? != CheckResult::Serving {
        bail!("{lvmd} is not serving; see its log");
    }
    for service in SERVICES {
        if is_not_serving(&mut client, service, socket).await {
            bail!("{lvmd} is not serving {service}: LVM does not work; see its log");
        }
    }
    Ok(client)
}

async fn is_not_serving(client: &mut HealthClient<Channel>, service: &str, socket: &Path) -> bool {
    call_check(client, service, socket).await.is_ok_and(|answer| answer == CheckResult::NotServing)
}

/// Connects to the lvmd behind a socket.
pub(crate) async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    let name = socket.display();
    Endpoint::try_from(format!("unix:{name}"))?
        .connect_timeout(CALL_TIMEOUT)
        .timeout(CALL_TIMEOUT)
        .connect()
        .await
        .with_context(|| format!("cannot connect to lvmd on {name}; check that it is running"))
}

async fn call_check(client: &mut HealthClient<Channel>, service: &str, socket: &Path) -> anyhow::Result<CheckResult> {
    let answer = client
        .check(HealthCheckRequest { service: service.to_owned() })
        .await
        .with_context(|| format!("lvmd on {} does not answer", socket.display()))?;
    Ok(answer.into_inner().status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_line_names_all_problems() {
        assert_eq!(status_line(true, &[], &ReloadStatus::default()), "LVM works");
        let disks = ["a disk is missing".to_owned(), "so is another".to_owned()];
        assert_eq!(status_line(true, &disks, &ReloadStatus::default()), "LVM works; a disk is missing; so is another");
        let reload =
            ReloadStatus { failure: Some("lvmd.yaml:1: no".to_owned()), needs_restart: vec!["socket-name", "b"] };
        let expected = "LVM does not work, see the log; the previous configuration is in use: lvmd.yaml:1: no; restart \
                        to use the new socket-name, b";
        assert_eq!(status_line(false, &[], &reload), expected);
    }
}

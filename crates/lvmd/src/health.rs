//! How lvmd is, told to those who ask: `grpc.health.v1.Health`, the line in `systemctl status`, and `lvmd health`.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::HealthReporter;
use topolvm_runtime::CancellationToken;
use topolvm_runtime::systemd::Systemd;

use crate::reload::Standing;

/// Whether lvmd answers, as TopoLVM's lvmd means it. Agents ask for it when they are probed: one that is ended because
/// LVM fails does not get further with the next process. A reporter says that this serves as long as there is one.
const PROCESS: &str = "";
/// Whether LVM works: the services that need it.
const SERVICES: [&str; 2] = ["proto.LVService", "proto.VGService"];
/// Whether the configuration file as it is now is in use: with the previous one all goes on.
const CONFIGURATION: &str = "configuration";
/// Whether nothing is wrong with what LVM works on: other volumes are not affected.
const STORAGE: &str = "storage";
/// kubelet waits a second for a probe unless told otherwise; a person can wait for a slow one.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is told to those who ask.
#[derive(Debug)]
pub(crate) struct Told {
    /// Whether LVM answers, or may yet.
    pub(crate) works: watch::Receiver<bool>,
    /// What is wrong with the storage.
    pub(crate) troubles: watch::Receiver<Vec<String>>,
    /// What the host's `lvm.conf` keeps LVM from doing.
    pub(crate) obstacles: watch::Receiver<Vec<String>>,
    /// Which configuration is in use.
    pub(crate) standing: watch::Receiver<Standing>,
}

/// The services are serving as long as LVM does not fail. A slow one is named as wrong with the storage: a probe that
/// ended lvmd for it would only make it wait again.
pub(crate) async fn report(
    reporter: HealthReporter,
    systemd: Systemd,
    told: Told,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Told { mut works, mut troubles, mut obstacles, mut standing } = told;
    let status = |good| if good { ServingStatus::Serving } else { ServingStatus::NotServing };
    loop {
        let (lvm_works, configuration) = (*works.borrow_and_update(), standing.borrow_and_update().clone());
        let storage = [&obstacles.borrow_and_update()[..], &troubles.borrow_and_update()[..]].concat();
        for service in SERVICES {
            reporter.set_service_status(service, status(lvm_works)).await;
        }
        reporter.set_service_status(CONFIGURATION, status(configuration.failure.is_none())).await;
        reporter.set_service_status(STORAGE, status(storage.is_empty())).await;
        systemd.status(&sentence(lvm_works, &storage, &configuration));
        tokio::select! {
            // The engine goes away during the shutdown, which is no failure.
            biased;
            () = shutdown.cancelled() => return Ok(()),
            changed = works.changed() => changed.context("the engine is gone")?,
            changed = troubles.changed() => changed.context("the engine is gone")?,
            changed = obstacles.changed() => changed.context("nobody asks LVM for its settings")?,
            changed = standing.changed() => changed.context("nobody follows the configuration")?,
        }
    }
}

/// How lvmd is, in one line.
fn sentence(lvm_works: bool, troubles: &[String], configuration: &Standing) -> String {
    let mut text = if lvm_works { "LVM works".to_owned() } else { "LVM does not work, the log says why".to_owned() };
    for trouble in troubles {
        text += "; ";
        text += trouble;
    }
    if let Some(failure) = &configuration.failure {
        text += "; the previous configuration is in use: ";
        text += failure;
    }
    if !configuration.needs_restart.is_empty() {
        text += "; restart to use the new ";
        text += &configuration.needs_restart.join(", ");
    }
    text
}

/// Whether the lvmd behind a socket answers, whatever it answers.
pub(crate) async fn answers(socket: &Path) -> anyhow::Result<()> {
    check(&mut connect(socket).await?, PROCESS, socket).await.map(drop)
}

/// Asks the lvmd behind a socket whether it is well.
pub(crate) async fn ask(socket: &Path) -> anyhow::Result<()> {
    let name = socket.display();
    let mut client = connect(socket).await?;
    if check(&mut client, PROCESS, socket).await? != Answer::Serving {
        bail!("lvmd on {name} is not serving; its log says why");
    }
    for service in SERVICES {
        if check(&mut client, service, socket).await.is_ok_and(|answer| answer == Answer::NotServing) {
            bail!("lvmd on {name} is not serving {service}: LVM does not work; its log says why");
        }
    }
    // An lvmd of another make does not know this service
    if check(&mut client, CONFIGURATION, socket).await.is_ok_and(|answer| answer == Answer::NotServing) {
        writeln!(
            std::io::stdout(),
            "LVM works, but lvmd on {name} uses its previous configuration: the new one cannot work, its log says why"
        )
        .context("cannot write to standard output")?;
    }
    if check(&mut client, STORAGE, socket).await.is_ok_and(|answer| answer == Answer::NotServing) {
        writeln!(
            std::io::stdout(),
            "LVM works, but something is wrong with the storage of lvmd on {name}: its log and `systemctl status` say what"
        )
        .context("cannot write to standard output")?;
    }
    Ok(())
}

async fn connect(socket: &Path) -> anyhow::Result<HealthClient<Channel>> {
    let name = socket.display();
    let channel = Endpoint::try_from(format!("unix:{name}"))?
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .connect()
        .await
        .with_context(|| format!("no lvmd listens on {name}"))?;
    Ok(HealthClient::new(channel))
}

async fn check(client: &mut HealthClient<Channel>, service: &str, socket: &Path) -> anyhow::Result<Answer> {
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
    fn the_line_for_systemctl_says_all_that_is_wrong() {
        assert_eq!(sentence(true, &[], &Standing::default()), "LVM works");
        let disks = ["a disk is missing".to_owned(), "so is another".to_owned()];
        assert_eq!(sentence(true, &disks, &Standing::default()), "LVM works; a disk is missing; so is another");
        let standing =
            Standing { failure: Some("lvmd.yaml:1: no".to_owned()), needs_restart: vec!["socket-name", "b"] };
        let expected = "LVM does not work, the log says why; the previous configuration is in use: lvmd.yaml:1: no; restart to use \
                        the new socket-name, b";
        assert_eq!(sentence(false, &[], &standing), expected);
    }
}

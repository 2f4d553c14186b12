//! `grpc.health.v1.Health`: the server's side, which tells the truth about LVM, and `lvmd health`, which asks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Answer;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::HealthReporter;
use topolvm_runtime::CancellationToken;

/// What can be asked for: everything, and each service.
const SERVICES: &[&str] = &["", "proto.LVService", "proto.VGService"];
/// kubelet waits a second for a probe unless told otherwise; a person can wait for a slow one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serving as long as LVM works.
pub(crate) async fn report(
    reporter: HealthReporter,
    mut works: watch::Receiver<bool>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let status = if *works.borrow_and_update() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in SERVICES {
            reporter.set_service_status(service, status).await;
        }
        tokio::select! {
            // The engine goes away during the shutdown, which is no failure.
            biased;
            () = shutdown.cancelled() => return Ok(()),
            changed = works.changed() => changed.context("the engine is gone")?,
        }
    }
}

/// Asks the lvmd behind a socket whether it is well.
pub(crate) async fn ask(socket: &Path) -> anyhow::Result<()> {
    let name = socket.display();
    let channel = Endpoint::try_from(format!("unix:{name}"))?
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .connect()
        .await
        .with_context(|| format!("no lvmd listens on {name}"))?;
    let answer = HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await
        .with_context(|| format!("lvmd on {name} does not answer"))?;
    if answer.into_inner().status() == Answer::Serving {
        Ok(())
    } else {
        bail!("lvmd on {name} is not serving: LVM does not work; its log says why")
    }
}

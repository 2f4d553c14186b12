//! lvmd embedded in the process of its client: the same services, called without a socket.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use lvm::Host;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::body::Body;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{Backoff, CancellationToken, Tasks, error_chain};
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use crate::daemon::Daemon;
use crate::grpc::{EmbeddedServices, not_started};
use crate::reload::Mode;
use crate::settings::Settings;

/// Back-off of the start while a volume group is missing or LVM does not work. Only another attempt with LVM shows that
/// it works again.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Starts lvmd in this process and returns its gRPC services at once. They answer `Unavailable` until lvmd has found
/// its volume groups: a client that starts at the boot of a machine must not fail because of a disk that appears a
/// little later.
///
/// `instance` distinguishes the volumes of this lvmd from those of others on the same volume groups, for example the
/// path of the client's own socket.
pub fn embed<R: Host + Clone>(
    settings: Settings<R>,
    instance: &Path,
    registry: &mut Registry,
    tasks: &Tasks,
    shutdown: CancellationToken,
) -> anyhow::Result<BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>> {
    let daemon = Daemon::new(settings, Mode::Embedded, instance, Systemd::default(), registry)?;
    let (sender, receiver) = watch::channel(EmbeddedServices::Starting);
    tasks.spawn("embedded lvmd", run(daemon, sender, tasks.clone(), shutdown));
    Ok(BoxCloneSyncService::new(tower::service_fn(move |request| {
        let services = receiver.borrow().clone();
        async move {
            match services {
                EmbeddedServices::Started(routes) => routes.oneshot(request).await,
                EmbeddedServices::Starting => Ok(not_started("it is starting")),
                EmbeddedServices::Failed(reason) => Ok(not_started(&reason)),
            }
        }
    })))
}

async fn run<R: Host + Clone>(
    mut daemon: Daemon<R>,
    services: watch::Sender<EmbeddedServices>,
    tasks: Tasks,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let starting = async {
        daemon.wait_for_orphans().await;
        let mut backoff = BACKOFF;
        let mut logged = String::new();
        loop {
            let error = match daemon.start(&tasks, &shutdown).await {
                Ok(engine) => return engine,
                Err(error) => error_chain(&error),
            };
            if logged != error {
                tracing::error!(error, "the embedded lvmd cannot start; retrying");
                error.clone_into(&mut logged);
            }
            services.send_replace(EmbeddedServices::Failed(error));
            tokio::select! {
                () = tokio::time::sleep(backoff.fail()) => {}
                () = daemon.wait_for_new_classes() => backoff.reset(),
            }
        }
    };
    let Some(engine) = shutdown.run_until_cancelled(starting).await else { return Ok(()) };
    services.send_replace(EmbeddedServices::Started(daemon.serve_engine(&engine, &tasks, &shutdown)));
    tracing::info!("the embedded lvmd is ready");
    shutdown.cancelled().await;
    Ok(())
}

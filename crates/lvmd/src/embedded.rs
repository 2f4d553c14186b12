//! lvmd in the process of its client: the same services, called without a socket.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use lvm::Host;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::body::Body;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, Tasks, error_chain};
use tower::{Service, ServiceExt as _};

use crate::daemon::Daemon;
use crate::grpc::{Offer, not_started};
use crate::reload::Place;
use crate::settings::Settings;

/// Pauses between attempts to start while a volume group is missing or LVM does not work, which nothing but LVM itself can tell.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Starts lvmd in this process and returns its gRPC services at once. They answer `Unavailable` until its volume groups were found: a
/// client that starts at the boot of a machine must not fail because of a disk that comes a little later.
///
/// `maker` tells what this lvmd makes from what others make on the same volume groups: the path of the client's own socket, say.
pub fn embed<R: Host + Clone>(
    settings: Settings<R>,
    maker: &Path,
    registry: &mut Registry,
    tasks: &Tasks,
    shutdown: CancellationToken,
) -> anyhow::Result<
    impl Service<
        http::Request<Body>,
        Response = http::Response<Body>,
        Error = Infallible,
        Future = impl Future<Output = Result<http::Response<Body>, Infallible>> + Send + use<R>,
    > + Clone
    + Send
    + Sync
    + use<R>,
> {
    let daemon = Daemon::new(settings, Place::Embedded, maker, Systemd::default(), registry)?;
    let (offer, offered) = watch::channel(Offer::Starting);
    tasks.spawn("embedded lvmd", run(daemon, offer, tasks.clone(), shutdown));
    Ok(tower::service_fn(move |request| {
        let offered = offered.borrow().clone();
        async move {
            match offered {
                Offer::Started(routes) => routes.oneshot(request).await,
                Offer::Starting => Ok(not_started("it is starting")),
                Offer::Failed(reason) => Ok(not_started(&reason)),
            }
        }
    }))
}

async fn run<R: Host + Clone>(
    mut daemon: Daemon<R>,
    offer: watch::Sender<Offer>,
    tasks: Tasks,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let starting = async {
        daemon.wait_for_leftovers().await;
        let mut pause = FIRST_PAUSE;
        let mut said = String::new();
        loop {
            let error = match daemon.start(&tasks, &shutdown).await {
                Ok(engine) => return engine,
                Err(error) => error_chain(&error),
            };
            if said != error {
                tracing::error!(error, "the embedded lvmd cannot start; trying again");
                error.clone_into(&mut said);
            }
            offer.send_replace(Offer::Failed(error));
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = daemon.reconfigured() => pause = FIRST_PAUSE,
            }
        }
    };
    let Some(engine) = shutdown.run_until_cancelled(starting).await else { return Ok(()) };
    offer.send_replace(Offer::Started(daemon.look_after(&engine, &tasks, &shutdown)));
    tracing::info!("the embedded lvmd works");
    shutdown.cancelled().await;
    Ok(())
}

//! Forwards connections of the browser to a pod, through the API server.

use std::io::Write as _;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::net::{TcpListener, TcpStream};

use super::target::Target;
use crate::error::{Error, UiError};

/// Forwards all connections until Ctrl-C. If one cannot be forwarded, searches for the leader again: another pod may be
/// it by now.
pub(super) async fn serve(
    client: &Client,
    namespace: &str,
    mut target: Target,
    listener: &TcpListener,
) -> Result<(), Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let mut connections = FuturesUnordered::new();
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    loop {
        tokio::select! {
            interrupted = &mut interrupt => return Ok(interrupted.map_err(UiError::Signal)?),
            accepted = listener.accept() => {
                let (stream, _) = accepted.map_err(UiError::Accept)?;
                connections.push(forward(pods.clone(), target.clone(), stream));
            }
            Some(ended) = connections.next(), if !connections.is_empty() => {
                let Err(failure) = ended else { continue };
                // A browser closes connections as it likes
                if !matches!(failure, UiError::Broken(_)) {
                    print_failure(&failure);
                    target = Target::find(client, namespace).await.unwrap_or(target);
                }
            }
        }
    }
}

/// Forwards a connection until either side closes it.
async fn forward(pods: Api<Pod>, target: Target, mut browser: TcpStream) -> Result<(), UiError> {
    let Target { pod, port } = target;
    let mut forwarder = match pods.portforward(&pod, &[port]).await {
        Ok(forwarder) => forwarder,
        Err(kube::Error::Api(status)) if status.is_forbidden() => return Err(UiError::Forbidden(pod)),
        Err(error) => return Err(UiError::Forward { pod, source: Box::new(error) }),
    };
    let Some(mut stream) = forwarder.take_stream(port) else { return Err(UiError::NoStream(pod)) };
    tokio::io::copy_bidirectional(&mut browser, &mut stream).await.map(drop).map_err(UiError::Broken)
}

fn print_failure(failure: &UiError) {
    // Without a reader the error has no effect
    let _written = writeln!(std::io::stderr(), "{}", cli_runtime::request::error_chain(failure));
}

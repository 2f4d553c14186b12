//! The Kubernetes client with its timeouts, and waiting until the API server answers.

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use crate::credentials::{CredentialSource, Credentials};

/// Read timeout of a connection. Longer than a watch, which the API server ends after 290 s at most.
const READ_TIMEOUT: Duration = Duration::from_secs(330);
/// Timeout of the question for the API server's version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between attempts to reach the API server. kube's own go up to half a minute, for which nothing could be made
/// on a node, and no CSI call answered, after a long outage.
pub(crate) const RECONNECT: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Makes a client from `KUBECONFIG`, `~/.kube/config` or, in a pod, from its service account, and what is known of its
/// credentials. Nothing is sent yet.
pub async fn client(user_agent: &'static str) -> anyhow::Result<(Client, Credentials)> {
    let mut config = kube::Config::infer().await.context(
        "cannot determine how to reach the Kubernetes API server; run in a pod with a service account, or set \
         KUBECONFIG to a kubeconfig file",
    )?;
    // A server that accepts a request and never answers must not block a reconciler forever; kube itself limits only
    // watches
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(user_agent)));
    let server = config.cluster_url.clone();
    let source = CredentialSource::of(&config);
    let client = Client::try_from(config)
        .with_context(|| format!("cannot create a client for the Kubernetes API server at {server}"))?;
    Ok(Credentials::observe(client, source))
}

/// Waits until the API server answers. An agent must not give up here: volumes that exist are still to be unmounted and
/// measured while the API server is away.
pub async fn wait_until_reachable(client: &Client, shutdown: &CancellationToken) {
    // Also a request that is never answered must not hold up the end
    shutdown.run_until_cancelled(retry_until_reached(client)).await;
}

async fn retry_until_reached(client: &Client) {
    let mut backoff = RECONNECT;
    loop {
        let error = match tokio::time::timeout(VERSION_TIMEOUT, client.apiserver_version()).await {
            Ok(Ok(version)) => {
                tracing::info!(version = version.git_version, "connected to the Kubernetes API server");
                return;
            }
            Ok(Err(error)) => error_chain(&error),
            Err(elapsed) => error_chain(&elapsed),
        };
        tracing::warn!(
            error,
            "cannot reach the Kubernetes API server; check its address in the kubeconfig, the network and the \
             credentials; trying again"
        );
        tokio::time::sleep(backoff.fail()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_never_answers_does_not_hold_up_the_shutdown() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let client = Client::try_from(kube::Config::new(url)).unwrap();
        let shutdown = CancellationToken::new();
        let silent = async {
            let connection = listener.accept().await.unwrap();
            shutdown.cancel();
            connection
        };
        let (_connection, ()) = tokio::join!(silent, wait_until_reachable(&client, &shutdown));
    }
}

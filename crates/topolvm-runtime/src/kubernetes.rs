//! The Kubernetes client, with errors that say what to do.

use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use tokio_util::sync::CancellationToken;

/// A client from `KUBECONFIG`, `~/.kube/config` or, in a pod, from its service account. Nothing is sent yet.
pub async fn client(user_agent: &'static str) -> anyhow::Result<Client> {
    let mut config = kube::Config::infer().await.context(
        "cannot find out how to reach the Kubernetes API server; run in a pod with a service account, or set KUBECONFIG to a kubeconfig file",
    )?;
    // A connection that hangs must not hang a reconciler; watches have their own, longer time-outs.
    config.connect_timeout = Some(Duration::from_secs(10));
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(user_agent)));
    let server = config.cluster_url.clone();
    Client::try_from(config).with_context(|| format!("cannot make a client for the Kubernetes API server at {server}"))
}

/// Waits until the API server answers. An agent must not give up here: volumes that exist are still to be unmounted and
/// measured while the API server is away.
pub async fn wait_until_reachable(client: &Client, shutdown: &CancellationToken) {
    let mut pause = Duration::from_millis(200);
    loop {
        let error = match client.apiserver_version().await {
            Ok(version) => {
                tracing::info!(version = version.git_version, "the Kubernetes API server answers");
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(
            error = format!("{:#}", anyhow::Error::from(error)),
            "cannot reach the Kubernetes API server; check its address in the kubeconfig, the network and the credentials; trying again"
        );
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            () = shutdown.cancelled() => return,
        }
    }
}

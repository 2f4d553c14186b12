//! A client of the API server for measurements inside the cluster's namespace, so that requests and watch events take
//! the same path as the product's.

use std::path::Path;

use anyhow::{Context as _, Result};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Creates the client of a kubeconfig.
pub(crate) async fn connect(kubeconfig: &Path) -> Result<Client> {
    let config = Kubeconfig::read_from(kubeconfig).context("read the kubeconfig")?;
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    Client::try_from(config.context("use the kubeconfig")?).context("create a client")
}

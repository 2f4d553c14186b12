//! Readiness of the agent for CSI's `Probe`: lvmd and the API server must answer.

use std::time::Duration;

use kube::Client;
use lvmd_client::{LvmdClient, LvmdError};
use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_kube::api_server::{self, ApiError};
use topolvm_kube::{Credentials, CredentialsRejected};

/// Time for which an answer of the API server is cached. The liveness probe asks every few seconds on every node.
const FRESH: Duration = Duration::from_mins(1);
/// Deadline of the API server. The liveness probe's own limit is 3 seconds, and lvmd is asked as well.
const LIMIT: Duration = Duration::from_secs(2);

/// Checks that lvmd and the API server answer.
pub(crate) struct ReadinessCheck {
    lvmd: LvmdClient,
    client: Client,
    credentials: Credentials,
    reached: Mutex<Option<Instant>>,
}

/// Error of a check: what does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// lvmd answered with an error, or not at all.
    #[error("not ready")]
    Lvmd(#[source] LvmdError),
    /// The API server rejects the credentials.
    #[error("not ready")]
    Credentials(#[from] CredentialsRejected),
    /// The API server answered with an error, or not at all.
    #[error("not ready: the Kubernetes API server cannot be reached")]
    Api(#[from] ApiError),
}

impl ReadinessCheck {
    /// Makes the check of an agent that needs this lvmd and this API server, and asks it with these credentials.
    pub(crate) const fn new(lvmd: LvmdClient, client: Client, credentials: Credentials) -> Self {
        Self { lvmd, client, credentials, reached: Mutex::new(None) }
    }

    /// Checks lvmd, what all requests of the agent know of its credentials, and the API server if it has not answered
    /// for a minute.
    pub(crate) async fn check(&self) -> Result<(), ProbeError> {
        let (lvmd, api) = tokio::join!(self.lvmd.check_health(), self.check_api());
        lvmd.map_err(ProbeError::Lvmd)?;
        api
    }

    /// Checks the API server if it has not answered for a minute.
    async fn check_api(&self) -> Result<(), ProbeError> {
        self.credentials.check()?;
        let reached = *self.reached.lock();
        if reached.is_some_and(|reached| reached.elapsed() < FRESH) {
            return Ok(());
        }
        api_server::call(LIMIT, self.client.apiserver_version()).await?;
        *self.reached.lock() = Some(Instant::now());
        Ok(())
    }
}

//! Whether the agent can do its work: what `Probe` answers.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use kube::Client;
use tokio::time::Instant;
use tonic::{Code, Status};
use topolvm_runtime::grpc::{GrpcCode, into_status};

use crate::lvmd::{self, Lvmd};

/// The liveness probe asks every few seconds on every node; the API server is asked once a minute.
const FRESH: Duration = Duration::from_mins(1);
/// The liveness probe's own limit is 3 seconds, and lvmd is asked as well.
const LIMIT: Duration = Duration::from_secs(2);

/// What the agent depends on.
pub struct Health {
    lvmd: Lvmd,
    client: Client,
    reached: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").finish_non_exhaustive()
    }
}

/// What is missing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// lvmd.
    #[error("not ready")]
    Lvmd(#[source] lvmd::Error),
    /// The API server.
    #[error("not ready: the Kubernetes API server cannot be reached")]
    Api(#[source] Box<kube::Error>),
    /// The API server is slow.
    #[error("not ready: the Kubernetes API server did not answer within {} s", LIMIT.as_secs())]
    SlowApi,
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            // CSI's code for "not healthy" in Probe
            Self::Lvmd(_) | Self::Api(_) | Self::SlowApi => Code::FailedPrecondition,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        into_status(error)
    }
}

impl Health {
    /// The health of an agent that needs lvmd and the API server.
    pub const fn new(lvmd: Lvmd, client: Client) -> Self {
        Self { lvmd, client, reached: Mutex::new(None) }
    }

    /// Asks lvmd, and the API server where it has not answered for a minute.
    pub async fn check(&self) -> Result<(), Error> {
        let (lvmd, api) = tokio::join!(self.lvmd.check_health(), self.check_api());
        lvmd.map_err(Error::Lvmd)?;
        api
    }

    async fn check_api(&self) -> Result<(), Error> {
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if reached.is_some_and(|reached| reached.elapsed() < FRESH) {
            return Ok(());
        }
        match tokio::time::timeout(LIMIT, self.client.apiserver_version()).await {
            Ok(Ok(_)) => {
                *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                Ok(())
            }
            Ok(Err(error)) => Err(Error::Api(Box::new(error))),
            Err(_) => Err(Error::SlowApi),
        }
    }
}

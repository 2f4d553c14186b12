//! Calls of the Kubernetes API server with a deadline, and their errors.

use std::time::Duration;

/// Deadline of a call while a volume is worked on. The lock of the volume is held until then, and the process does not
/// end before.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Error of a call of the API server.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It answered with an error, or cannot be reached.
    #[error(transparent)]
    Kube(Box<kube::Error>),
    /// It did not answer in time.
    #[error("the Kubernetes API server did not answer within {} s", .0.as_secs())]
    Slow(Duration),
}

impl ApiError {
    /// Returns the HTTP status with which the API server answered.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Kube(error) if let kube::Error::Api(status) = &**error => Some(status.code),
            Self::Kube(_) | Self::Slow(_) => None,
        }
    }
}

/// Awaits a call of the API server until a deadline.
pub async fn call<T>(deadline: Duration, call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    let answer = tokio::time::timeout(deadline, call).await.map_err(|_| ApiError::Slow(deadline))?;
    answer.map_err(|error| ApiError::Kube(Box::new(error)))
}

//! A client for one GET request over an existing connection.

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::http_server::{BodyError, read_body};

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The server does not speak HTTP, or the connection broke.
    #[error("the server does not speak HTTP")]
    Http(#[from] hyper::Error),
    /// The answer cannot be read.
    #[error(transparent)]
    Body(#[from] BodyError),
}

/// Sends a request without a body, and reads the answer, of `longest` bytes at most.
pub async fn send<S>(stream: S, request: Request<Body>, longest: usize) -> Result<(StatusCode, Bytes), RequestError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asking = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = read_body(Body::new(response.into_body()), longest).await?;
        // The connection ends with the sender
        Ok((status, body))
    };
    let (answer, _ended) = tokio::join!(asking, connection);
    answer
}

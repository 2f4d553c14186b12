//! Reads bodies of requests.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::connections::Connection;

/// A body that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The connection broke, or what came is no HTTP.
    #[error("the request body did not arrive")]
    Broken,
    /// It is longer than the limit.
    #[error("the request body is longer than {0} bytes")]
    TooLong(usize),
}

/// Reads the whole body into one piece of memory that never grows beyond `limit` bytes.
pub async fn read_body(mut body: Body, limit: usize) -> Result<Bytes, BodyError> {
    let announced = body.size_hint().exact().unwrap_or_default();
    let announced = usize::try_from(announced).unwrap_or(usize::MAX);
    if announced > limit {
        return Err(BodyError::TooLong(limit));
    }
    let mut read = BytesMut::with_capacity(announced);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        if read.len() + data.len() > limit {
            return Err(BodyError::TooLong(limit));
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// The body of a request, which reports to its connection when it has been received whole.
pub(super) struct TrackedBody {
    body: Incoming,
    connection: Arc<Connection>,
}

impl TrackedBody {
    pub(super) fn new(body: Incoming, connection: Arc<Connection>) -> Self {
        if body.is_end_stream() {
            connection.request_received();
        }
        Self { body, connection }
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.connection.request_received();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

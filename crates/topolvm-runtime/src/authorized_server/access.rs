//! The port through which a server learns who may get what it serves.

use std::error::Error;
use std::future::Future;

/// The answer about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// The holder of the token may do it.
    Allowed,
    /// The token identifies no user.
    Unauthenticated,
    /// The user of this name, whose token it is, may not do it.
    Forbidden(String),
}

/// Decides by its bearer token who may get something.
pub trait Authorizer: Send + Sync + 'static {
    /// Error of the question who may get it.
    type Error: Error + Send + Sync + 'static;

    /// Decides whether the holder of `token` may do `verb`, an HTTP method in lower case, to `path`.
    fn authorize(
        &self,
        token: &str,
        verb: &str,
        path: &str,
    ) -> impl Future<Output = Result<Authorization, Self::Error>> + Send;
}

//! The port through which a comparison hands over the LVs that are without an object.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

use super::listing::Listing;

/// Handles LVs whose object does not exist.
pub trait HandleOrphans: fmt::Debug + Send + Sync {
    /// Handles the LVs that a comparison has found. Whatever fails is tried again after the next one.
    fn handle(&self, found: Listing) -> BoxFuture<'_, ()>;

    /// Returns the time after which the LVs must be compared again; `None` if that is not urgent.
    fn next_check(&self) -> Option<Duration>;
}

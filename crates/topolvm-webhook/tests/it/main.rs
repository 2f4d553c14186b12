//! The webhooks over a fake API server.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod claim;
mod extender;
mod harness;
mod load;
mod pod;

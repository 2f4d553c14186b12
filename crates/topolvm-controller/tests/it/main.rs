//! The CSI services of the controller over a fake API server, with a fake node agent.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod agent;
mod bench;
mod capacity;
mod create;
mod create_failures;
mod create_retries;
mod delete;
mod expand;
mod identity;
mod process;
mod webhook_bench;
mod webhook_claim;
mod webhook_pod;
mod webhook_tls;

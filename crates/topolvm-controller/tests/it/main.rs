//! The CSI services of the controller over a fake API server, with a fake node agent.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod agent;
mod capability;
mod capacity;
mod copies;
mod create;
mod create_failures;
mod create_retries;
mod delete;
mod expand;
mod get;
mod harness;
mod identity;
mod legacy;
mod lists;
mod modify;
mod process;
mod snapshot_groups;
mod snapshots;
mod webhook_load;
mod webhook_tls;
mod whole_pod;

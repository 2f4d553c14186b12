//! Flags about how agents are asked for their lists.

use std::path::PathBuf;

use clap::Args;

/// Access to agents.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct AgentAccess {
    /// File with the token that the controller sends to agents for --inventory-bind-address. Its audience must be
    /// inventory.topolvm.io, so that other services reject it.
    #[arg(long, value_name = "FILE", default_value = "/var/run/secrets/topolvm-inventory/token")]
    pub(super) inventory_token_file: PathBuf,

    /// File with the CA certificates of the agents, whose certificates must have the name topolvm-node. Empty:
    /// certificates of agents are not verified.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub(super) inventory_agents_ca: String,
}

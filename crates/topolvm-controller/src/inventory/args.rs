//! Flags about how agents are asked for their lists.

use std::path::PathBuf;

use clap::Args;

/// Access to agents.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(crate) struct AgentAccess {
    /// File with the token that is sent to agents for --inventory-bind-address. It is to be of the audience
    /// inventory.topolvm.io, so that it is worth nothing elsewhere.
    #[arg(long, value_name = "FILE", default_value = "/var/run/secrets/topolvm-inventory/token")]
    pub(super) inventory_token_file: PathBuf,

    /// File with the authorities of the certificates of agents, which are to have the name topolvm-node. Empty: agents
    /// are asked whatever their certificate.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub(super) inventory_agents_ca: String,
}

//! Installs, upgrades and removes the product in a cluster, from the manifests that are in it.
//!
//! [`run`] runs a [`Command`] of the kubectl plugin. Module `install` upgrades too, and `trial` uses `install` and
//! `uninstall`. What was applied is recorded in the cluster for the next command.

mod args;
mod error;
mod install;
mod trial;
mod uninstall;

use cli_runtime::connection::ClusterArgs;

pub use args::Command;
pub use error::Error;
pub use install::manifests::NAMESPACE;
pub use install::record::is_installed;

use install::Mode;

/// Runs the command in the cluster of the flags.
pub async fn run(cluster: &ClusterArgs, command: Command) -> Result<(), Error> {
    match command {
        Command::Install { options, run } => Box::pin(install::run(cluster, Mode::Install, options, run)).await?,
        Command::Upgrade { options, run } => Box::pin(install::run(cluster, Mode::Upgrade, options, run)).await?,
        Command::Trial { flags } => Box::pin(trial::run(cluster, flags)).await?,
        Command::Uninstall { flags } => Box::pin(uninstall::run(cluster, flags)).await?,
    }
    Ok(())
}

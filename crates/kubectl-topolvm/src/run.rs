//! Runs the command of the flags, and returns the exit status.

use std::io::Write as _;
use std::process::ExitCode;

use cli_runtime::connection::ClusterArgs;
use cli_runtime::{connection, output};
use jiff::Timestamp;
use kube::Client;
use topolvm_install::NAMESPACE;

use crate::args::{Args, Command};
use crate::error::Error;
use crate::{bundle, disk, doctor, events, generated, orphans, restart_pending, status, ui, undelete, volumes};

/// Runs the command of the flags.
pub fn main() -> ExitCode {
    let args = Args::read();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime);
    match runtime.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // Without a reader the error has no effect
            let _written = writeln!(std::io::stderr(), "error: {}", error.chain());
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the only read of the clock; all functions below get the time")]
async fn run(args: Args) -> Result<ExitCode, Error> {
    let Args { cluster: flags, command } = args;
    let now = Timestamp::now();
    match command {
        Command::Installation(command) => topolvm_install::run(&flags, command).await?,
        Command::Status { output, watch } => {
            let cluster = connection::connect(&flags).await?;
            status::run(&cluster, output.format, watch).await?;
        }
        Command::Volumes { output, all_namespaces } => {
            let cluster = connection::connect(&flags).await?;
            let namespace = claims_namespace(&flags, &cluster.client, all_namespaces);
            volumes::run(&cluster, output.format, namespace.as_deref(), now).await?;
        }
        Command::Events { output, all_namespaces } => {
            let cluster = connection::connect(&flags).await?;
            let namespace = claims_namespace(&flags, &cluster.client, all_namespaces);
            events::run(&cluster, output.format, namespace.as_deref(), now).await?;
        }
        Command::RestartPending { output, all_namespaces, dry_run } => {
            let cluster = connection::connect(&flags).await?;
            let namespace = claims_namespace(&flags, &cluster.client, all_namespaces);
            restart_pending::run(&cluster, output.format, namespace.as_deref(), dry_run).await?;
        }
        Command::Orphans { command } => {
            let cluster = connection::connect(&flags).await?;
            let namespace = claims_namespace(&flags, &cluster.client, false).unwrap_or_default();
            Box::pin(orphans::run(&cluster, command, &namespace)).await?;
        }
        Command::Undelete { flags: undeletion } => {
            let cluster = connection::connect_or_default(&flags).await?;
            Box::pin(undelete::run(&cluster, &undeletion)).await?;
        }
        Command::Disk { command } => {
            let cluster = connection::connect(&flags).await?;
            Box::pin(disk::run(&cluster, command)).await?;
        }
        Command::Doctor { output } => {
            let cluster = connection::connect_or_default(&flags).await?;
            let report = doctor::run_checks(&cluster, programs_namespace(&flags), now).await;
            output::print(&doctor::render(output, &report)?)?;
            return Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::Ui { port, no_browser } => {
            let client = connection::client(&flags).await?;
            ui::run(&client, programs_namespace(&flags), port, !no_browser).await?;
        }
        Command::SupportBundle { file } => {
            let cluster = connection::connect_or_default(&flags).await?;
            Box::pin(bundle::run(&cluster, programs_namespace(&flags), file.as_deref(), now)).await?;
        }
        Command::Completions { shell } => output::print(&generated::completions(shell))?,
        Command::Man { directory } => output::print(&generated::manual(directory.as_deref())?)?,
        Command::Version => version(&flags).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the namespace of claims; none for all namespaces.
fn claims_namespace(cluster: &ClusterArgs, client: &Client, all: bool) -> Option<String> {
    let chosen = || cluster.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    (!all).then(chosen)
}

fn programs_namespace(cluster: &ClusterArgs) -> &str {
    cluster.namespace.as_deref().unwrap_or(NAMESPACE)
}

async fn version(cluster: &ClusterArgs) -> Result<(), Error> {
    let mut text = format!("kubectl-topolvm {}\n", env!("CARGO_PKG_VERSION"));
    // The version of this program is to be had without a cluster
    if let Ok(client) = connection::client(cluster).await
        && let Ok(server) = client.apiserver_version().await
    {
        text.extend(["API server ", &server.git_version, "\n"]);
    }
    Ok(output::print(&text)?)
}

//! The program: from flags to an exit status.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use jiff::Timestamp;
use kube::Client;

use crate::args::{Args, ClusterArgs, Command};
use crate::error::Error;
use crate::install::manifests::NAMESPACE;
use crate::{bundle, connection, doctor, events, install, output, printed, status, uninstall, volumes};

/// Runs the command of the flags.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime);
    match runtime.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(code) => code,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads there is nobody to tell
            let _told = writeln!(std::io::stderr(), "error: {}", error.chain());
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where the clock is read; all below are told the time")]
async fn run(args: Args) -> Result<ExitCode, Error> {
    let Args { cluster, command } = args;
    let now = Timestamp::now();
    match command {
        Command::Install { options, how } => {
            Box::pin(install::run(&cluster, install::Mode::Install, options, how)).await?;
        }
        Command::Upgrade { options, how } => {
            Box::pin(install::run(&cluster, install::Mode::Upgrade, options, how)).await?;
        }
        Command::Uninstall { how } => Box::pin(uninstall::run(&cluster, how)).await?,
        Command::Status { output, watch } => {
            let client = connection::client(&cluster).await?;
            let flavor = connection::flavor(&cluster, &client).await?;
            status::run(&client, flavor, output.format, watch).await?;
        }
        Command::Volumes { output, all_namespaces } => {
            let client = connection::client(&cluster).await?;
            let flavor = connection::flavor(&cluster, &client).await?;
            let namespace = of_claims(&cluster, &client, all_namespaces);
            volumes::run(&client, flavor, output.format, namespace.as_deref(), now).await?;
        }
        Command::Events { output, all_namespaces } => {
            let client = connection::client(&cluster).await?;
            let flavor = connection::flavor(&cluster, &client).await?;
            let namespace = of_claims(&cluster, &client, all_namespaces);
            events::run(&client, flavor, output.format, namespace.as_deref(), now).await?;
        }
        Command::Doctor { output } => {
            let client = connection::client(&cluster).await?;
            let flavor = wanted(&cluster, &client).await?;
            let report = doctor::examine(&client, flavor, of_programs(&cluster), now).await;
            output::print(&doctor::render(output, &report)?)?;
            return Ok(if report.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        Command::SupportBundle { file } => {
            let client = connection::client(&cluster).await?;
            let flavor = wanted(&cluster, &client).await?;
            Box::pin(bundle::run(&client, flavor, of_programs(&cluster), file.as_deref(), now)).await?;
        }
        Command::Completions { shell } => output::print(&String::from_utf8_lossy(&printed::completions(shell)))?,
        Command::Man { directory } => {
            output::print(&String::from_utf8_lossy(&printed::manual(directory.as_deref())?))?;
        }
        Command::Version => version(&cluster).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The namespace of claims; none for all of them.
fn of_claims(cluster: &ClusterArgs, client: &Client, all: bool) -> Option<String> {
    let chosen = || cluster.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    (!all).then(chosen)
}

fn of_programs(cluster: &ClusterArgs) -> &str {
    cluster.namespace.as_deref().unwrap_or(NAMESPACE)
}

/// The API group to look at, also where there is none: that is for doctor to say.
async fn wanted(cluster: &ClusterArgs, client: &Client) -> Result<topolvm_api::ApiFlavor, Error> {
    match connection::flavor(cluster, client).await {
        Err(Error::NotInstalled) => Ok(topolvm_api::ApiFlavor::TopoLvm),
        found => found,
    }
}

async fn version(cluster: &ClusterArgs) -> Result<(), Error> {
    let mut text = format!("kubectl-topolvm {}\n", env!("CARGO_PKG_VERSION"));
    // The version of this program is to be had without a cluster
    if let Ok(client) = connection::client(cluster).await
        && let Ok(server) = client.apiserver_version().await
    {
        text.extend(["API server ", &server.git_version, "\n"]);
    }
    output::print(&text)
}

//! Processes of the test bed that are the present program, started again with a keyword as its first argument (see
//! module `reexec`). The `main` of each test program must call [`serve`] first.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::netns::NetNs;
use crate::reexec::{AGENT, FORWARD, PROXY, REAPER};
use crate::{agent, cluster, forward, proxy, reaper};

/// Runs a process of the test bed when the command line names one, until it is ended from outside; `None` for every
/// other command line.
pub fn serve() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let result = match words.as_slice() {
        [AGENT, listen] => parse_address(listen).and_then(agent::serve),
        [PROXY, kubeconfig] => serve_proxy(Path::new(kubeconfig)),
        [FORWARD, netns, to, port_file] => {
            parse_address(to).and_then(|to| forward::run(&NetNs::at(Path::new(netns)), to, Path::new(port_file)))
        }
        [REAPER, directory, pid, start_time] => {
            reaper::run(Path::new(directory), pid, start_time, cluster::remove_directory)
        }
        [AGENT | PROXY | FORWARD | REAPER, ..] => Err(anyhow::anyhow!("wrong arguments: {}", words.join(" "))),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            use std::io::Write as _;
            // Standard error is a log; there is no other place to complain when it cannot be written to.
            writeln!(std::io::stderr(), "{e:#}").ok();
            ExitCode::FAILURE
        }
    })
}

fn serve_proxy(kubeconfig: &Path) -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start tokio")?;
    runtime.block_on(async {
        let config = kube::config::Kubeconfig::read_from(kubeconfig).context("read the kubeconfig")?;
        let config = kube::Config::from_custom_kubeconfig(config, &kube::config::KubeConfigOptions::default()).await?;
        proxy::run(kube::Client::try_from(config)?).await
    })?;
    bail!("the proxy ended")
}

fn parse_address(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| format!("{text:?} is not ADDRESS:PORT"))
}

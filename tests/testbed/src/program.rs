//! The parts of the test bed that are processes of their own, served by whatever program has the test bed in it.
//!
//! A test program starts itself with one of these words, so there is no second program that would have to be built,
//! found and current. Its `main` must call [`serve`] before anything else.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use crate::netns::NetNs;
use crate::{agent, forward, proxy, reaper};

/// `bed-agent ADDRESS:PORT`: [`agent::serve`], in a guest.
pub(crate) const AGENT: &str = "bed-agent";
/// `bed-proxy KUBECONFIG`: [`proxy::run`], in a cluster's namespace.
pub(crate) const PROXY: &str = "bed-proxy";
/// `bed-forward NETNS ADDRESS:PORT PORTFILE`: [`forward::run`]
pub(crate) const FORWARD: &str = "bed-forward";
/// `bed-reaper CLUSTER PID STARTTIME`: [`reaper::run`]
pub(crate) const REAPER: &str = "bed-reaper";

/// The program to start with one of the words.
pub(crate) fn path() -> Result<PathBuf> {
    std::env::current_exe().context("find this program's file")
}

/// Does what the command line asks for if that is a part of the test bed, for as long as it is not ended from outside;
/// `None` when the command line asks for something else.
pub fn serve() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let result = match words.as_slice() {
        [AGENT, listen] => address(listen).and_then(agent::serve),
        [PROXY, kubeconfig] => serve_proxy(Path::new(kubeconfig)),
        [FORWARD, netns, to, port_file] => {
            address(to).and_then(|to| forward::run(&NetNs::at(Path::new(netns)), to, Path::new(port_file)))
        }
        [REAPER, cluster, pid, start_time] => reaper::run(Path::new(cluster), pid, start_time),
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

fn address(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| format!("{text:?} is not ADDRESS:PORT"))
}

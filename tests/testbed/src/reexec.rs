//! Starting the present program again as a process of the test bed.
//!
//! A test program starts itself with one of these keywords as its first argument, so there is no second program that
//! would have to be built, found and current. [`crate::program::serve`] runs the process of the keyword.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// `testbed-agent ADDRESS:PORT`: the agent that runs commands, in a guest.
pub(crate) const AGENT: &str = "testbed-agent";
/// `testbed-proxy KUBECONFIG`: the proxy of the Services, in a cluster's namespace.
pub(crate) const PROXY: &str = "testbed-proxy";
/// `testbed-forward NETNS ADDRESS:PORT PORTFILE`: a port of this machine that leads into a cluster's namespace.
pub(crate) const FORWARD: &str = "testbed-forward";
/// `testbed-reaper CLUSTER PID STARTTIME`: the process that ends a cluster after its owner.
pub(crate) const REAPER: &str = "testbed-reaper";

/// Returns the path of the present program, to be started with one of the keywords.
pub(crate) fn program_path() -> Result<PathBuf> {
    std::env::current_exe().context("find this program's file")
}

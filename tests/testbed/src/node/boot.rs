//! Boot of a node's guest, until the node is Ready, and its power off.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node as ApiNode;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;

use super::{INIT_FILE, Node, READY_TIMEOUT};
use crate::assets;
use crate::exec::{self, Request, Target};
use crate::guest::CpuLock;
use crate::guest::uml::{Boot, Tap};
use crate::process::{Process, spawn, stop_file};
use crate::size::MIB;

/// Interval of the checks of a booting node.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Node {
    /// Boots the node and waits until it is Ready and, if it ran before, has another boot id than then.
    pub(super) fn boot(&self, end: Instant, old_boot_id: Option<&str>) -> Result<()> {
        let signs = ["network-up", "images"].map(|name| self.directory.join(name));
        for sign in &signs {
            match fs::remove_file(sign) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).context("remove a sign of the last boot");
                }
                _ => {}
            }
        }
        let [network_up, images] = signs;
        // A guest that was killed has the locks of its disks until the last of its threads has ended, and a kernel
        // panics over a disk that it cannot lock
        for disk in self.disks() {
            while !is_free(&disk)? {
                ensure!(Instant::now() < end, "another guest has {}", disk.display());
                sleep(POLL_INTERVAL);
            }
        }
        let cpu_lock = CpuLock::new(self.spec.cpu)?;
        cpu_lock.inherit()?;
        spawn(&self.boot_command(cpu_lock.cpu)?, &self.log("console"), &pid_file(&self.directory))?;
        drop(cpu_lock);
        // A file first: to dial before the guest has its address leaves a failed ARP entry, which is retried only once
        // a second.
        self.wait_until(end, "has no network", || Ok(fs::exists(&network_up)?))?;
        self.target().wait(end.saturating_duration_since(Instant::now()))?;
        self.wait_until(end, "is not Ready", || {
            let Some(node) = self.api_object()? else { return Ok(false) };
            // The Node of a stopped machine stays Ready for 40 s.
            Ok(is_ready(&node) && boot_id(&node) != old_boot_id)
        })?;
        self.wait_until(end, "has no images", || Ok(fs::exists(&images)?))
    }

    fn boot_command(&self, cpu: usize) -> Result<Command> {
        let kernel = assets::kernel()?;
        let init = self.control_plane.directory.join(INIT_FILE);
        let tap = self.network.tap();
        let config = self.directory.join("config");
        let mut arguments: Vec<_> =
            ["con=null", "con0=null,fd:1", "ssl=null", "quiet", "loglevel=3"].into_iter().map(Into::into).collect();
        arguments.push(format!("NODE_CONFIG={}", config.display()).into());
        if !self.spec.raid6 {
            arguments.push("initcall_blacklist=raid6_init".into());
        }
        Ok(Boot {
            kernel: &kernel,
            memory: self.spec.memory / MIB * MIB,
            cpu,
            init: &init,
            control: &self.directory,
            memory_dir: Path::new("/dev/shm"),
            disks: &self.disks(),
            shared_disks: &[],
            tap: Some(Tap { netns: &self.control_plane.netns, name: &tap }),
            arguments,
        }
        .command())
    }

    /// Returns the Node object, if there is one.
    pub(super) fn api_object(&self) -> Result<Option<ApiNode>> {
        // One item or none: a request by name would be an error when there is none yet.
        let path = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{}", self.name());
        let nodes: k8s_openapi::List<ApiNode> = self.control_plane.get(&path)?;
        Ok(nodes.items.into_iter().next())
    }

    /// Waits until a condition holds. Fails when the guest dies or the time is over.
    fn wait_until(&self, end: Instant, missing: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
        while !holds()? {
            let logs = || {
                let logs = ["console", "kubelet", "containerd"].map(|name| self.log_tail(name, 10));
                logs.join("\n")
            };
            if !Process::from_file(&pid_file(&self.directory))?.is_some_and(|guest| guest.is_alive()) {
                bail!("the guest died: {}", logs());
            }
            if Instant::now() >= end {
                bail!("the node {missing} after {READY_TIMEOUT:?}: {}", logs());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    pub(super) fn power_off(&self) -> Result<()> {
        power_off(&self.directory, &self.target())
    }
}

/// Returns true when no process has a lock on a file, as a kernel takes one on its disks (`F_SETLK`).
fn is_free(file: &Path) -> Result<bool> {
    let file = File::options().write(true).open(file).with_context(|| format!("open {}", file.display()))?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error).context("lock a disk"),
    }
}

/// Script that powers a guest off. It writes back first: the power goes at once, and the logs are files of this machine
/// which the guest has in its cache. The answer must leave before the power goes.
const POWER_OFF: &str = "sync; (sleep 0.05; echo o >/proc/sysrq-trigger) >/dev/null 2>&1 & exit 0";

/// Powers off the guest of a node, and kills it when it does not answer.
pub(super) fn power_off(directory: &Path, agent: &Target) -> Result<()> {
    let pid_file = pid_file(directory);
    if let Some(guest) = Process::from_file(&pid_file)?
        && guest.is_alive()
    {
        let request = Request::new(["bash", "-c", POWER_OFF]);
        // A guest that does not answer any more is killed below.
        if exec::run(agent, &request, b"", Duration::from_secs(5)).is_ok() {
            guest.wait(Duration::from_secs(3));
        }
    }
    stop_file(&pid_file, Duration::ZERO)
}

pub(super) fn pid_file(directory: &Path) -> PathBuf {
    directory.join("uml.pid")
}

fn is_ready(node: &ApiNode) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(super) fn boot_id(node: &ApiNode) -> Option<&str> {
    Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.as_str())
}

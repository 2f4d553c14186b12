//! Network namespaces that are bound to a file in the directory of a cluster.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A handle of a network namespace: dropping it changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetNs {
    path: PathBuf,
}

impl NetNs {
    /// Creates a namespace with nothing in it but a loopback device that is down, and binds it to the new file `path`.
    pub fn create(path: &Path) -> Result<Self> {
        File::create_new(path).with_context(|| format!("create {}", path.display()))?;
        let mut option = std::ffi::OsString::from("--net=");
        option.push(path);
        let output =
            Command::new("unshare").arg(option).arg("true").output().context("run unshare (package util-linux)")?;
        if !output.status.success() {
            fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
            bail!("no network namespace at {}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(Self::at(path))
    }

    /// Returns the namespace that was bound to `path` earlier.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs inside. nsenter replaces itself, so the process id is that of the program.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut option = std::ffi::OsString::from("--net=");
        option.push(&self.path);
        let mut command = Command::new("nsenter");
        command.arg(option).arg("--").arg(program);
        command
    }

    /// Runs `action` in a separate thread inside the namespace. A socket created there stays inside wherever it is used
    /// later.
    pub fn enter<T: Send>(&self, action: impl FnOnce() -> T + Send) -> Result<T> {
        let namespace = File::open(&self.path).with_context(|| format!("open {}", self.path.display()))?;
        thread::scope(|scope| {
            scope
                .spawn(|| -> Result<T> {
                    move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
                        .with_context(|| format!("enter the network namespace {}", self.path.display()))?;
                    Ok(action())
                })
                .join()
                .map_err(|_| anyhow!("the action inside {} panicked", self.path.display()))?
        })
    }

    /// Opens a TCP connection from inside.
    pub fn connect(&self, address: SocketAddr, timeout: Duration) -> Result<io::Result<TcpStream>> {
        self.enter(|| TcpStream::connect_timeout(&address, timeout))
    }

    /// Unbinds and removes the file. The namespace ends, with its devices, when the last process in it has ended. Safe
    /// to repeat.
    pub fn remove(&self) -> Result<()> {
        // Detached: a child that another thread of this program has forked holds all its open files until it has called
        // exec, and with one of this file among them the plain call fails with EBUSY
        match unmount(&self.path, UnmountFlags::DETACH) {
            // INVAL: not a mount point, so only the file is left.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(e) => return Err(e).with_context(|| format!("unbind {}", self.path.display())),
        }
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("remove {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

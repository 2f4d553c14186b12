//! Reloads the configuration on SIGHUP and when its file changes. An invalid one changes nothing.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use lvmd_config::{Config, DeviceClasses, DiskGroups};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use topolvm_runtime::files::Files;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, error_chain};

use crate::metrics::ConfigMetrics;

/// The result of the last reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadStatus {
    /// The reason for which the configuration was not applied; the previous one is in use then.
    pub(crate) failure: Option<String>,
    /// Keys that have changed since the start of the process and take effect at the next one.
    pub(crate) needs_restart: Vec<&'static str>,
}

/// The way in which clients call lvmd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On its own socket.
    Standalone,
    /// In the process of its client, so that no setting of the socket matters.
    Embedded,
}

/// The configuration and the watch of its file.
#[derive(Debug)]
pub(crate) struct Reload {
    path: PathBuf,
    mode: Mode,
    files: Files,
    hangup: Signal,
    /// The configuration that the process was started with.
    first: Config,
    /// The configuration in use.
    current: Config,
    systemd: Systemd,
    metrics: ConfigMetrics,
    status: watch::Sender<ReloadStatus>,
    disk_groups: watch::Sender<Arc<DiskGroups>>,
}

impl Reload {
    /// Begins to watch the file from which this configuration was read. From now on SIGHUP does not end the process.
    pub(crate) fn new(
        path: PathBuf,
        config: Config,
        mode: Mode,
        systemd: Systemd,
        metrics: ConfigMetrics,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            mode,
            files: Files::watch([path.clone()]),
            path,
            hangup: signal(SignalKind::hangup()).context("cannot handle SIGHUP")?,
            first: config.clone(),
            disk_groups: watch::Sender::new(Arc::new(config.disk_groups.clone())),
            current: config,
            systemd,
            metrics,
            status: watch::Sender::default(),
        })
    }

    /// Subscribes to the result of the last reload.
    pub(crate) fn status(&self) -> watch::Receiver<ReloadStatus> {
        self.status.subscribe()
    }

    /// Subscribes to the disk groups of the configuration in use.
    pub(crate) fn disk_groups(&self) -> watch::Receiver<Arc<DiskGroups>> {
        self.disk_groups.subscribe()
    }

    /// Returns the device classes of the configuration in use.
    pub(crate) fn classes(&self) -> &DeviceClasses {
        &self.current.classes
    }

    /// Waits until the file has other device classes, for an engine that has not started. Cancel safe.
    pub(crate) async fn wait_for_new_classes(&mut self) {
        let before = self.current.classes.clone();
        while self.current.classes == before {
            self.wait_for_change().await;
            self.reload(&async |_| Ok(())).await;
        }
    }

    /// Reloads the file after each change until the shutdown begins, and hands other device classes to `apply`, which
    /// uses all of them or fails. At the shutdown `apply` may be dropped.
    pub(crate) async fn run(
        mut self,
        apply: impl AsyncFn(DeviceClasses) -> anyhow::Result<()>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        let reloads = async {
            // The file may have changed between the start of the process and the watch.
            if lvmd_config::load(&self.path).ok().as_ref() != Some(&self.current) {
                self.reload(&apply).await;
            }
            loop {
                self.wait_for_change().await;
                self.reload(&apply).await;
            }
        };
        shutdown.run_until_cancelled(reloads).await;
        Ok(())
    }

    /// Waits for SIGHUP or a change of the file.
    async fn wait_for_change(&mut self) {
        tokio::select! {
            _ = self.hangup.recv() => {}
            () = self.files.changed() => {}
        }
    }

    async fn reload(&mut self, apply: &impl AsyncFn(DeviceClasses) -> anyhow::Result<()>) {
        self.systemd.reloading();
        let result = self.load_and_apply(apply).await;
        self.metrics.record(result.is_ok());
        let failure = result.err().map(|error| error_chain(&*error));
        if let Some(error) = &failure {
            tracing::error!(error, "cannot apply the configuration; the previous configuration stays in use");
        }
        let needs_restart = self.needs_restart();
        if !needs_restart.is_empty() {
            let keys = needs_restart.join(", ");
            tracing::warn!(keys, "changed settings take effect at the next start; restart this program");
        }
        self.status.send_replace(ReloadStatus { failure, needs_restart });
        self.systemd.ready();
    }

    async fn load_and_apply(
        &mut self,
        apply: &impl AsyncFn(DeviceClasses) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let new = lvmd_config::load(&self.path)?;
        if new == self.current {
            tracing::info!("reloaded the configuration; nothing changed");
            return Ok(());
        }
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        if new.classes != self.current.classes {
            apply(new.classes.clone()).await.context("cannot apply its device classes")?;
        }
        self.current = new;
        self.disk_groups.send_if_modified(|groups| {
            let differ = **groups != self.current.disk_groups;
            if differ {
                *groups = Arc::new(self.current.disk_groups.clone());
            }
            differ
        });
        tracing::info!("reloaded the configuration");
        Ok(())
    }

    /// Returns the changed keys that only a start uses. The pattern is exhaustive, so that no new key is forgotten.
    fn needs_restart(&self) -> Vec<&'static str> {
        let Config { socket, peers, lvm_command_prefix, classes: _, disk_groups: _, warnings: _ } = &self.current;
        let has_socket = self.mode == Mode::Standalone;
        [
            ("socket-name", has_socket && *socket != self.first.socket),
            ("allowed-uids", has_socket && peers.uids != self.first.peers.uids),
            ("allowed-gids", has_socket && peers.gids != self.first.peers.gids),
            ("lvm-command-prefix", *lvm_command_prefix != self.first.lvm_command_prefix),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }
}

#[cfg(test)]
mod tests;

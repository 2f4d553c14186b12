//! The configuration while lvmd runs: read again on SIGHUP and when its file changes. One that cannot work changes nothing.

use std::path::PathBuf;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use topolvm_runtime::files::Files;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, error_chain};

use crate::config::{self, Config};
use crate::device_class::DeviceClasses;
use crate::metrics::ConfigMetrics;

/// What came of reading the configuration last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Why it was not taken over; the previous one is in use then.
    pub(crate) failure: Option<String>,
    /// Keys that have another value than at the start of the process and take effect at the next one.
    pub(crate) needs_restart: Vec<&'static str>,
}

/// Where lvmd is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On its socket.
    Socket,
    /// In the process of its client, so that nothing about the socket matters.
    Embedded,
}

/// Follows the configuration file.
#[derive(Debug)]
pub(crate) struct Reload {
    path: PathBuf,
    place: Place,
    files: Files,
    hangup: Signal,
    /// What the process was started with.
    first: Config,
    /// What is in use.
    current: Config,
    systemd: Systemd,
    metrics: ConfigMetrics,
    standing: watch::Sender<Standing>,
}

impl Reload {
    /// Begins to watch the file from which this configuration was read. From now on SIGHUP does not end the process.
    pub(crate) fn new(
        path: PathBuf,
        config: Config,
        place: Place,
        systemd: Systemd,
        metrics: ConfigMetrics,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            place,
            files: Files::watch([path.clone()]),
            path,
            hangup: signal(SignalKind::hangup()).context("cannot handle SIGHUP")?,
            first: config.clone(),
            current: config,
            systemd,
            metrics,
            standing: watch::Sender::default(),
        })
    }

    /// What came of reading the configuration last, now and later.
    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// The device classes that are in use, or are to be.
    pub(crate) fn classes(&self) -> &DeviceClasses {
        &self.current.classes
    }

    /// Waits until the file says something else, for somebody who does not use any of it yet. When it is dropped before it is
    /// done, nothing is lost.
    pub(crate) async fn other_classes(&mut self) {
        let before = self.current.classes.clone();
        while self.current.classes == before {
            self.told().await;
            self.read_again(&|_| async { Ok(()) }).await;
        }
    }

    /// Hands other device classes to `apply`, which takes them over as a whole or not at all, until the shutdown begins. It may be
    /// dropped then.
    pub(crate) async fn follow<F>(
        mut self,
        apply: impl Fn(DeviceClasses) -> F,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let following = async {
            // Written between the start of the process and the watch
            if config::load(&self.path).ok().as_ref() != Some(&self.current) {
                self.read_again(&apply).await;
            }
            loop {
                self.told().await;
                self.read_again(&apply).await;
            }
        };
        shutdown.run_until_cancelled(following).await;
        Ok(())
    }

    /// Waits until it is time to read.
    async fn told(&mut self) {
        tokio::select! {
            _ = self.hangup.recv() => {}
            () = self.files.changed() => {}
        }
    }

    async fn read_again<F>(&mut self, apply: &impl Fn(DeviceClasses) -> F)
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        self.systemd.reloading();
        let result = self.take_over(apply).await;
        self.metrics.record(result.is_ok());
        let failure = result.err().map(|error| error_chain(&*error));
        if let Some(error) = &failure {
            tracing::error!(error, "the configuration was not taken over; the previous one stays in use");
        }
        let needs_restart = self.needs_restart();
        if !needs_restart.is_empty() {
            let keys = needs_restart.join(", ");
            tracing::warn!(keys, "settings were changed that take effect at the next start; restart this program");
        }
        self.standing.send_replace(Standing { failure, needs_restart });
        self.systemd.ready();
    }

    async fn take_over<F>(&mut self, apply: &impl Fn(DeviceClasses) -> F) -> anyhow::Result<()>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let new = config::load(&self.path)?;
        if new == self.current {
            tracing::info!("the configuration was read again and is the same");
            return Ok(());
        }
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        if new.classes != self.current.classes {
            apply(new.classes.clone()).await.context("its device classes cannot be used")?;
        }
        self.current = new;
        tracing::info!("the configuration was read again and is in use");
        Ok(())
    }

    /// Settings that only a start uses. Exhaustive, so that a new one is thought of.
    fn needs_restart(&self) -> Vec<&'static str> {
        let Config { socket, peers, lvm_command_prefix, classes: _, warnings: _ } = &self.current;
        let listens = self.place == Place::Socket;
        [
            ("socket-name", listens && *socket != self.first.socket),
            ("allowed-uids", listens && peers.uids != self.first.peers.uids),
            ("allowed-gids", listens && peers.gids != self.first.peers.gids),
            ("lvm-command-prefix", *lvm_command_prefix != self.first.lvm_command_prefix),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }
}

#[cfg(test)]
mod tests;

//! A certificate in files that somebody else renews: cert-manager, a Secret, an administrator.
//!
//! The directory is watched, not the files: in the volume of a Secret they are links through the link `..data`, which kubelet
//! exchanges for another while the files' own names stay.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use topolvm_runtime::CancellationToken;

use super::{CertificateError, KeyedCertificate, Served};

/// How long after a change to look: whoever writes two files one after the other is then ready.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// Serves `tls.crt` and `tls.key` of a directory, and what they are changed to, until `shutdown` is cancelled. Files that are
/// not there yet, or that do not fit together, change nothing.
pub(crate) async fn follow(directory: PathBuf, served: Served, shutdown: CancellationToken) -> anyhow::Result<()> {
    let watched = Watched::new(&directory).with_context(|| {
        format!("cannot watch {}; make the directory, or name another one with --cert-dir", directory.display())
    })?;
    loop {
        match load(&directory).await {
            Ok(certificate) => served.serve(certificate),
            Err(error) => tracing::warn!(
                directory = %directory.display(), error = format!("{:#}", anyhow::Error::from(error)),
                "no new certificate for the webhooks; tls.crt and tls.key are read again when they change"
            ),
        }
        if shutdown.run_until_cancelled(watched.changed()).await.is_none() {
            return Ok(());
        }
    }
}

/// Notices what is done to the files of a directory.
struct Watched {
    changed: Arc<Notify>,
    _watcher: RecommendedWatcher,
}

impl Watched {
    /// From now on.
    fn new(directory: &Path) -> notify::Result<Self> {
        let changed = Arc::new(Notify::new());
        let signal = changed.clone();
        let mut watcher = notify::recommended_watcher(move |event| {
            if is_write(&event) {
                signal.notify_one();
            }
        })?;
        watcher.watch(directory, RecursiveMode::NonRecursive)?;
        Ok(Self { changed, _watcher: watcher })
    }

    /// Waits for a change, and a little longer.
    async fn changed(&self) {
        self.changed.notified().await;
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Whether something was written. That a file was read is an event too, and we read them ourselves.
fn is_write(event: &notify::Result<Event>) -> bool {
    match event {
        Ok(event) => !event.kind.is_access() || event.kind == EventKind::Access(AccessKind::Close(AccessMode::Write)),
        // Events were lost
        Err(_) => true,
    }
}

async fn load(directory: &Path) -> Result<KeyedCertificate, CertificateError> {
    let read = async |name: &str| {
        let path = directory.join(name);
        let content = tokio::fs::read(&path).await;
        content.map_err(|source| CertificateError::Read { path: path.display().to_string(), source })
    };
    KeyedCertificate::from_pem(&read("tls.crt").await?, &read("tls.key").await?)
}

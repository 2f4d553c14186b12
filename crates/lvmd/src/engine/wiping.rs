//! Wiping removed volumes in the background, one at a time in each volume group, before their room is given to others.

mod hold;
mod ledger;
mod leftovers;
mod queue;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lvm::{Host, VgName, Wipe, Wipeable};
use tokio::time::{Instant, sleep_until, timeout};
use topolvm_runtime::{CancellationToken, error_chain};

use super::Engine;
use super::group::Group;
use crate::error::Error;
use crate::marks;

pub(super) use ledger::Ledger;
pub(super) use leftovers::look_for_leftovers;
use queue::{Next, Queue};

/// So many bytes are wiped at once: a slow disk needs less than a second, so that the process can end, and a fast one is not slowed
/// down.
const PIECE: u64 = 32 << 20;
/// At the end of the process a piece has so much time to be finished. Only a disk that hangs needs more.
const LAST_PIECE: Duration = Duration::from_secs(2);

/// A volume to wipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToWipe {
    /// LVM's identity of it: its name may change meanwhile.
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) how: Wipe,
    /// In bytes.
    pub(super) size: u64,
    /// Whether it is for this lvmd to wipe.
    pub(super) is_ours: bool,
}

/// Volumes of one class, or of none, that are being wiped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wiping {
    pub(crate) volume_group: VgName,
    /// Empty when no class has such volumes any more.
    pub(crate) device_class: String,
    pub(crate) volumes: u64,
    /// What is not wiped yet.
    pub(crate) bytes: u64,
    /// How often it failed since the start of the process.
    pub(crate) failures: u64,
}

/// Why a volume is not wiped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Engine(#[from] Error),
    #[error("it is in use")]
    InUse,
    #[error("cannot open its device")]
    Open(#[source] io::Error),
    #[error("its device has only {device} of {volume} bytes")]
    Size { device: u64, volume: u64 },
    #[error("cannot wipe it at byte {at}")]
    Wipe {
        at: u64,
        #[source]
        source: io::Error,
    },
    #[error("cannot make sure that it stays wiped")]
    Flush(#[source] io::Error),
    #[error("the work broke off")]
    Interrupted(#[from] tokio::task::JoinError),
    #[error("the process is about to end")]
    Stopping,
}

/// Wipes what is to be wiped in a group until the process is about to end.
pub(super) async fn work<R: Host>(
    engine: Engine<R>,
    group: Arc<Group>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let mut queue = Queue::default();
    loop {
        let volumes = engine.to_wipe(&group);
        if group.ledger.keep(&volumes) {
            engine.publish();
        }
        match queue.next(&volumes, Instant::now()) {
            Next::Wipe(volume) => match engine.wipe(&group, &volume, &shutdown).await {
                Ok(()) => {}
                Err(Failure::Stopping) => return Ok(()),
                // The one that it belongs to is at work.
                Err(Failure::InUse) if !volume.is_ours => queue.leave(&volume.uuid, Instant::now()),
                Err(failure) => {
                    queue.failed(&volume.uuid, Instant::now());
                    engine.cannot_wipe(&group, &volume, &failure);
                }
            },
            Next::Wait(until) => {
                let time_comes = async {
                    match until {
                        Some(until) => sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = shutdown.cancelled() => return Ok(()),
                    () = group.news.notified() => {}
                    () = time_comes => {}
                }
            }
        }
    }
}

impl<R: Host> Engine<R> {
    /// What is being wiped, and was by this process, by group and class. Classes that wipe are there also when nothing is.
    pub(crate) fn wiping(&self) -> Vec<Wiping> {
        let (groups, classes) = (self.groups(), self.classes());
        let mut all: Vec<Wiping> = Vec::new();
        let mut add = |vg: &VgName, class: String, volumes: u64, bytes: u64, failures: u64| {
            let is_it = |entry: &&mut Wiping| entry.volume_group == *vg && entry.device_class == class;
            match all.iter_mut().find(is_it) {
                Some(entry) => {
                    entry.volumes += volumes;
                    entry.bytes += bytes;
                    entry.failures += failures;
                }
                None => {
                    all.push(Wiping { volume_group: vg.clone(), device_class: class, volumes, bytes, failures });
                }
            }
        };
        for class in classes.iter().filter(|class| class.wipe.is_some() && class.thin_pool.is_none()) {
            add(&class.volume_group, class.name.clone(), 0, 0, 0);
        }
        for group in groups.values() {
            for volume in self.to_wipe(group) {
                let left = volume.size.saturating_sub(group.ledger.done(&volume.uuid));
                add(&group.name, self.class_of(group, &volume.name), 1, left, 0);
            }
            for (class, failures) in group.ledger.failures() {
                add(&group.name, class, 0, 0, failures);
            }
        }
        all
    }

    fn to_wipe(&self, group: &Group) -> Vec<ToWipe> {
        let Some(known) = group.get() else { return Vec::new() };
        let to_wipe = known.volumes.iter().filter_map(|volume| {
            Some(ToWipe {
                uuid: volume.uuid.to_string(),
                name: volume.name.to_string(),
                how: marks::wiping(volume)?,
                size: volume.size,
                is_ours: self.inner.maker.wipes(volume),
            })
        });
        to_wipe.collect()
    }

    /// The configured class that has volumes where this one is; empty for none.
    fn class_of(&self, group: &Group, name: &str) -> String {
        let known = group.get();
        let volume = known.as_ref().and_then(|known| known.volume(name));
        let class = volume.and_then(|volume| self.class_that_owns(&group.name, volume));
        class.map_or_else(String::new, |class| class.name.clone())
    }

    /// Wipes a volume from its beginning to its end and gives its room back. That it has gone meanwhile is success.
    async fn wipe(&self, group: &Arc<Group>, wanted: &ToWipe, shutdown: &CancellationToken) -> Result<(), Failure> {
        let uuid = wanted.uuid.clone();
        let holding = async move |engine: Self, group: Arc<Group>| Ok(engine.hold(&group, &uuid).await);
        let Some(mut held) = self.change(Arc::clone(group), holding).await?? else { return Ok(()) };
        let (started, size, how) = (Instant::now(), held.size(), wanted.how);
        if size < wanted.size {
            return Err(Failure::Size { device: size, volume: wanted.size });
        }
        tracing::info!(vg = %group.name, name = wanted.name, %how, size, "wiping a volume");
        let mut at = 0;
        while at < size {
            let end = size.min(at.saturating_add(PIECE));
            let piece = move |held: &mut dyn Wipeable| held.wipe(how, at..end);
            held = do_piece(held, shutdown, piece).await?.map_err(|source| Failure::Wipe { at, source })?;
            group.ledger.progress(&wanted.uuid, end);
            at = end;
        }
        let held = do_piece(held, shutdown, |held| held.flush()).await?.map_err(Failure::Flush)?;
        drop(held);
        let uuid = wanted.uuid.clone();
        let removing = async move |engine: Self, group: Arc<Group>| engine.remove_wiped(&group, &uuid).await;
        self.change(Arc::clone(group), removing).await?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(vg = %group.name, name = wanted.name, seconds, "wiped a volume and gave its room back");
        Ok(())
    }

    fn cannot_wipe(&self, group: &Group, volume: &ToWipe, failure: &Failure) {
        let class = self.class_of(group, &volume.name);
        let error = error_chain(failure);
        tracing::error!(
            vg = %group.name,
            name = volume.name,
            class,
            error,
            "cannot wipe a removed volume; its room is not given away, and it is tried again"
        );
        group.ledger.fail(volume, class, &error);
        self.publish();
    }
}

/// Does a piece of work on a device in a thread of its own. Returns the device for the next one.
async fn do_piece(
    mut held: Box<dyn Wipeable>,
    shutdown: &CancellationToken,
    piece: impl FnOnce(&mut dyn Wipeable) -> io::Result<()> + Send + 'static,
) -> Result<io::Result<Box<dyn Wipeable>>, Failure> {
    let mut working = tokio::task::spawn_blocking(move || piece(&mut *held).map(|()| held));
    let Some(done) = shutdown.run_until_cancelled(&mut working).await else {
        drop(timeout(LAST_PIECE, working).await);
        return Err(Failure::Stopping);
    };
    Ok(done?)
}

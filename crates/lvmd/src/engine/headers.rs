//! Reading LVM's metadata headers on physical volumes: each disk in a thread of its own, with a deadline and without a lock that
//! another disk needs. A disk that hangs costs one thread, not one for each read, and nobody waits for it twice.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use lvm::{Devices, PhysicalVolume, Version};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::group::PATIENCE;

/// What was read of a physical volume, with its identity.
pub(super) type Read = (String, io::Result<Option<Version>>);

/// The headers on the disks of a volume group.
#[derive(Debug, Default)]
pub(super) struct Headers {
    disks: Mutex<HashMap<String, Arc<Disk>>>,
}

#[derive(Debug, Default)]
struct Disk {
    /// Held while it is read, also when nobody waits for the result any more.
    reading: Arc<tokio::sync::Mutex<()>>,
    /// Whether the read that is going on is over its deadline.
    hangs: AtomicBool,
}

impl Headers {
    /// Reads all of these at the same time. One that does not answer within [`PATIENCE`] fails with
    /// [`io::ErrorKind::TimedOut`], and from then on at once, until it has answered.
    pub(super) async fn versions<D: Devices>(&self, devices: &Arc<D>, pvs: &[PhysicalVolume]) -> Vec<Read> {
        let disks: Vec<_> = {
            let mut disks = self.disks.lock();
            disks.retain(|uuid, _| pvs.iter().any(|pv| pv.uuid == *uuid));
            pvs.iter().map(|pv| (pv, Arc::clone(disks.entry(pv.uuid.clone()).or_default()))).collect()
        };
        join_all(disks.into_iter().map(async |(pv, disk)| (pv.uuid.clone(), disk.version(devices, pv).await))).await
    }
}

impl Disk {
    async fn version<D: Devices>(
        self: &Arc<Self>,
        devices: &Arc<D>,
        pv: &PhysicalVolume,
    ) -> io::Result<Option<Version>> {
        if self.hangs.load(Ordering::Acquire) && self.reading.try_lock().is_err() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let read = async {
            let reading = Arc::clone(&self.reading).lock_owned().await;
            let (devices, pv, disk) = (Arc::clone(devices), pv.clone(), Arc::clone(self));
            let read = tokio::task::spawn_blocking(move || {
                let version = devices.version(&pv);
                disk.hangs.store(false, Ordering::Release);
                drop(reading);
                version
            });
            read.await.map_err(io::Error::other)?
        };
        if let Ok(version) = timeout(PATIENCE, read).await {
            return version;
        }
        self.hangs.store(true, Ordering::Release);
        Err(io::ErrorKind::TimedOut.into())
    }
}

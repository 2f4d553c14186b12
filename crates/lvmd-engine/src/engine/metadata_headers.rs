//! Reads LVM's metadata headers on physical volumes: each disk in a separate thread, with a timeout and without a lock
//! that another disk needs. A disk that hangs blocks one thread, not one for each read, and no caller waits for it
//! twice.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use lvm::{Devices, PhysicalVolume, Version};
use parking_lot::Mutex;
use tokio::time::timeout;

/// Timeout of a read. Disks answer in milliseconds; one that takes longer is as good as unreadable.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The metadata version on one physical volume, with LVM's UUID of the physical volume. `None` where it has no
/// metadata.
pub(super) type HeaderRead = (String, io::Result<Option<Version>>);

/// The reads of one volume group's headers, by the UUID of the physical volume.
#[derive(Debug, Default)]
pub(super) struct MetadataHeaders {
    disks: Mutex<HashMap<String, Arc<Disk>>>,
}

#[derive(Debug, Default)]
struct Disk {
    /// Held while the disk is read, also when no caller waits for the result any more.
    read_lock: Arc<tokio::sync::Mutex<()>>,
    /// True if the read that holds the lock has timed out.
    hangs: AtomicBool,
}

impl MetadataHeaders {
    /// Reads the headers of all these physical volumes at the same time. A disk that does not answer within
    /// [`READ_TIMEOUT`] fails with [`io::ErrorKind::TimedOut`], and from then on at once, until it has answered.
    pub(super) async fn read<D: Devices>(&self, devices: &Arc<D>, pvs: &[PhysicalVolume]) -> Vec<HeaderRead> {
        let disks: Vec<_> = {
            let mut disks = self.disks.lock();
            disks.retain(|uuid, _| pvs.iter().any(|pv| pv.uuid == *uuid));
            pvs.iter().map(|pv| (pv, Arc::clone(disks.entry(pv.uuid.clone()).or_default()))).collect()
        };
        join_all(disks.into_iter().map(async |(pv, disk)| (pv.uuid.clone(), disk.read(devices, pv).await))).await
    }
}

impl Disk {
    async fn read<D: Devices>(self: &Arc<Self>, devices: &Arc<D>, pv: &PhysicalVolume) -> io::Result<Option<Version>> {
        if self.hangs.load(Ordering::Acquire) && self.read_lock.try_lock().is_err() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let read = async {
            let lock = Arc::clone(&self.read_lock).lock_owned().await;
            let (devices, pv, disk) = (Arc::clone(devices), pv.clone(), Arc::clone(self));
            let read = tokio::task::spawn_blocking(move || {
                let version = devices.version(&pv);
                disk.hangs.store(false, Ordering::Release);
                drop(lock);
                version
            });
            read.await.map_err(io::Error::other)?
        };
        if let Ok(version) = timeout(READ_TIMEOUT, read).await {
            return version;
        }
        self.hangs.store(true, Ordering::Release);
        Err(io::ErrorKind::TimedOut.into())
    }
}

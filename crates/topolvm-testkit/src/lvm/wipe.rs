//! Wiping of block devices, which tests stop half way.

use std::io;
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

use lvm::{LogicalVolume, Wipe, Wipeable};

use super::FakeLvm;
use super::state::FakeVolume;

/// The byte before which all wiping stops, if any.
#[derive(Default)]
pub(super) struct Gate {
    stop: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Wiping stops before this byte.
    at: Option<u64>,
    /// Number of wipes that wait there.
    waiting: usize,
}

impl Gate {
    fn set(&self, at: Option<u64>) {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).at = at;
        self.changed.notify_all();
    }

    /// Waits until the byte may be wiped.
    fn pass(&self, byte: u64) {
        let mut state = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting += 1;
        self.changed.notify_all();
        while state.at.is_some_and(|at| byte >= at) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }

    /// Waits until a wipe waits.
    fn wait_for_waiter(&self) {
        let mut state = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        while state.waiting == 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A stop of all wiping, until it is dropped.
#[must_use]
pub struct Stop(FakeLvm);

impl Stop {
    pub(super) fn new(lvm: FakeLvm, byte: u64) -> Self {
        lvm.shared.stop.set(Some(byte));
        Self(lvm)
    }

    /// Waits until a wipe has reached the stop.
    ///
    /// # Panics
    /// When the runtime ends first.
    pub async fn reached(&self) {
        let lvm = self.0.clone();
        tokio::task::spawn_blocking(move || lvm.shared.stop.wait_for_waiter()).await.expect("the wait broke off");
    }

    /// Resumes wiping.
    pub fn resume(self) {}
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.shared.stop.set(None);
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").finish_non_exhaustive()
    }
}

/// A block device that is held to be wiped. It is found by the UUID of its volume, which a rename does not change.
#[derive(Debug)]
pub struct Held {
    lvm: FakeLvm,
    vg: String,
    uuid: String,
    size: u64,
}

impl Held {
    pub(super) fn new(lvm: &FakeLvm, vg: &str, volume: &LogicalVolume) -> io::Result<Self> {
        let size = edit(lvm, vg, &volume.uuid, |volume| {
            if !volume.active {
                return Err(io::ErrorKind::NotFound.into());
            }
            if volume.open || volume.held {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            volume.held = true;
            Ok(volume.bytes())
        })?;
        Ok(Self { lvm: lvm.clone(), vg: vg.to_owned(), uuid: volume.uuid.to_string(), size })
    }
}

/// Changes a volume in place. A volume that has gone is an I/O error.
fn edit<T>(lvm: &FakeLvm, vg: &str, uuid: &str, edit: impl FnOnce(&mut FakeVolume) -> io::Result<T>) -> io::Result<T> {
    let mut state = lvm.state();
    let volume =
        state.groups.get_mut(vg).and_then(|group| group.volumes.values_mut().find(|volume| volume.uuid == uuid));
    edit(volume.ok_or_else(no_device)?)
}

fn no_device() -> io::Error {
    io::Error::other("Input/output error")
}

impl Wipeable for Held {
    fn size(&self) -> u64 {
        self.size
    }

    fn wipe(&mut self, how: Wipe, range: Range<u64>) -> io::Result<()> {
        self.lvm.shared.stop.pass(range.start);
        edit(&self.lvm, &self.vg, &self.uuid, |volume| {
            if range.start == 0 {
                // It starts again.
                volume.wiped = 0;
            }
            if volume.broken_at.is_some_and(|broken| range.end > broken) {
                return Err(no_device());
            }
            assert_eq!(range.start, volume.wiped, "something between was left out, or is wiped twice");
            assert!(range.end <= volume.bytes(), "beyond the end of the device");
            (volume.wiped, volume.wiped_by) = (range.end, Some(how));
            Ok(())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // It may have gone with its group.
        drop(edit(&self.lvm, &self.vg, &self.uuid, |volume| {
            volume.held = false;
            Ok(())
        }));
    }
}

//! The state of a wish about a disk: what has become of it, and when lvmd is asked again.

use std::time::Duration;

use tokio::time::Instant;
use topolvm_api::{DiskWishStatus, NodeStorageStatus};
use topolvm_runtime::{Backoff, error_chain};

use super::super::disks::cut;
use super::super::lvmd_watch::Reading;
use super::decision::Wish;
use crate::lvmd_client::LvmdError;

/// Pauses between two tries: a refusal may be over when somebody has made room.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(5));
const UNIMPLEMENTED: &str = "lvmd on the node does not know how to do this; install the version of topolvm-node";

/// A wish, and what is known of it.
#[derive(Debug)]
pub(super) struct Entry {
    /// The state as the object tells it. Of one that lvmd has the message names the disk.
    pub(super) status: DiskWishStatus,
    /// The disk for people, as long as lvmd has it.
    disk: String,
    is_addition: bool,
    /// It is not tried again when it is refused.
    is_tried_once: bool,
    /// It does not stand any more.
    is_gone: bool,
    backoff: Backoff,
    next_try: Option<Instant>,
}

impl From<DiskWishStatus> for Entry {
    /// Makes the entry of a wish about a disk of a volume group that an earlier agent has told of.
    fn from(status: DiskWishStatus) -> Self {
        Self {
            is_tried_once: Wish::Of(&status.disk, &status.wish).is_tried_once(),
            status,
            disk: String::new(),
            is_addition: false,
            is_gone: false,
            backoff: RETRY,
            next_try: None,
        }
    }
}

impl Entry {
    pub(super) fn new(wish: Wish<'_>) -> Self {
        let (disk, text) = (wish.disk().to_owned(), wish.text().to_owned());
        let status = DiskWishStatus { disk, wish: text, state: "waiting".to_owned(), message: String::new() };
        Self { is_addition: wish.is_addition(), is_tried_once: wish.is_tried_once(), ..Self::from(status) }
    }

    pub(super) fn is_of(&self, wish: Wish<'_>) -> bool {
        wish.is_addition() == self.is_addition && wish.is_told(&self.status)
    }

    /// Returns whether it was refused and is not tried again.
    pub(super) fn is_refused_for_good(&self) -> bool {
        self.is_tried_once && self.status.is_refused()
    }

    /// Returns whether what was refused is no longer of interest: the disk is in a group, as it was to be, or is not
    /// missing any more.
    pub(super) fn is_settled(&self, status: &NodeStorageStatus) -> bool {
        let name = self.status.disk.as_str();
        if self.is_addition {
            return status.disks.iter().any(|disk| disk.is_named(name) && disk.is_member());
        }
        status.physical_volume(name).is_none_or(|(_, pv)| !pv.missing)
    }

    /// Takes note of whether the wish stands. Returns false if it is another one by now that only looks the same.
    pub(super) const fn see(&mut self, stands: bool) -> bool {
        let is_same = !(stands && self.is_gone);
        self.is_gone = !stands;
        is_same
    }

    /// Remembers the name of the disk, which is not known any more when it has left.
    pub(super) fn name_disk(&mut self, reading: &Reading) {
        let found = reading.status.as_ref().and_then(|status| status.physical_volume(&self.status.disk));
        if let Some((group, pv)) = found {
            let path = if pv.path.is_empty() { "a disk without a device" } else { &pv.path };
            self.disk = format!("{path} (UUID {}) of volume group {}", pv.uuid, group.name);
        }
    }

    /// Returns when it is tried again, if it is.
    pub(super) const fn next_try(&self) -> Option<Instant> {
        if self.is_gone { None } else { self.next_try }
    }

    pub(super) fn is_due(&self) -> bool {
        self.next_try.is_none_or(|next| next <= Instant::now())
    }

    /// Sets the time of the try after the one that begins.
    pub(super) fn begin_try(&mut self) {
        self.next_try = Some(Instant::now() + self.backoff.fail());
    }

    /// Stops trying until something changes.
    pub(super) const fn rest(&mut self) {
        self.next_try = None;
        self.backoff.reset();
    }

    /// Takes note of what lvmd has answered.
    pub(super) fn set_answer(&mut self, error: Option<&LvmdError>) {
        match error {
            None => {
                self.set("accepted", self.disk.clone());
                self.backoff.reset();
                // What becomes of another wish than an addition is seen in a moment
                self.next_try = (!self.is_addition).then(|| Instant::now() + self.backoff.fail());
            }
            Some(error) if error.is_unimplemented() => self.refuse(UNIMPLEMENTED),
            Some(error) if error.is_transient() => self.wait(&error_chain(error)),
            Some(error) => self.refuse(&error.detail()),
        }
    }

    /// Takes note of why nothing was answered. What lvmd has, it has.
    pub(super) fn wait(&mut self, why: &str) {
        if !self.status.is_accepted() {
            self.set("waiting", why.to_owned());
        }
    }

    pub(super) fn refuse(&mut self, why: &str) {
        self.set("refused", why.to_owned());
    }

    fn set(&mut self, state: &str, message: String) {
        state.clone_into(&mut self.status.state);
        self.status.message = cut(message);
    }
}

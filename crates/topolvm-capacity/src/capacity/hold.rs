//! The reservation of a volume from the choice of its node until there is an object.

use super::Capacity;
use crate::volume_key::VolumeKey;

/// The reservation for a `LogicalVolume` that is about to be created. It ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Hold {
    capacity: Capacity,
    key: VolumeKey,
    is_created: bool,
}

impl Hold {
    pub(super) fn new(capacity: Capacity, key: VolumeKey) -> Self {
        Self { capacity, key, is_created: false }
    }

    /// Takes note that the object has been created: from then on it is the reservation.
    pub fn created(mut self) {
        self.is_created = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.capacity.apply(|state, now| {
            state.reservations.end_creation(&self.key, self.is_created, now);
            false
        });
    }
}

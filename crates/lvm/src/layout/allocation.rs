//! What LVM's allocator makes of the free areas of a volume group: the same steps in the same order, on numbers alone.
//!
//! LVM fills all images of a volume side by side, in rounds. In each round every image gets one free area, each from another
//! physical volume, and the shortest of these areas bounds the round. Because rounds are never taken back, the outcome is
//! often less than what the extents would allow, so it is followed step by step instead of computed by a formula.

mod disk;

use super::Policy;
use disk::{Candidate, Disk, Round};

/// What has to be allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Areas side by side that hold data: stripes times copies.
    pub data: u16,
    /// Areas side by side that hold parity, beside those.
    pub parity: u16,
    /// How many extents of the volume come out of one extent of each area.
    pub multiple: u64,
    /// Extents in front of each image that hold its metadata.
    pub metadata: u64,
    /// Extents that hold the checksums of each image, in one piece on a physical volume of the image; if it has any.
    pub checksums: Option<u64>,
    /// Size of the volume in extents, a multiple of `multiple`.
    pub extents: u64,
    /// The most liberal policy that may be used.
    pub policy: Policy,
    /// Whether two images may not share a physical volume.
    pub apart: bool,
}

/// Where the areas of a round may lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cling {
    /// Anywhere.
    No,
    /// On physical volumes that the volume uses already.
    Sorted,
    /// Each image on physical volumes that it uses already.
    Positional,
}

/// There is no room for the metadata in front of an image, on which LVM gives up.
struct NoRoom;

/// An allocation that is going on.
struct Allocation {
    request: Request,
    disks: Vec<Disk>,
    /// What is still missing, metadata included.
    missing: u64,
    metadata_is_allocated: bool,
    /// Extents that the volume has.
    taken: u64,
    /// The same after each round.
    gathered: Vec<u64>,
}

/// Whether LVM can make the volume out of these free areas, given by physical volume.
pub(super) fn succeeds<A: AsRef<[u64]>>(request: Request, free: &[A]) -> bool {
    let mut allocation = Allocation::new(request, free);
    allocation.run().is_ok() && allocation.missing == 0 && allocation.images_are_apart() && allocation.checksums_fit()
}

/// What LVM would have after each of its rounds, in extents of the volume.
pub(super) fn gathered<A: AsRef<[u64]>>(request: Request, free: &[A]) -> Vec<u64> {
    let mut allocation = Allocation::new(request, free);
    let free: u64 = allocation.disks.iter().map(Disk::free).sum();
    let most = free / u64::from(allocation.images()) * request.multiple;
    allocation.missing = allocation.missing.min(most);
    match allocation.run() {
        Ok(()) => allocation.gathered,
        Err(NoRoom) => Vec::new(),
    }
}

impl Allocation {
    fn new<A: AsRef<[u64]>>(request: Request, free: &[A]) -> Self {
        Self {
            request,
            disks: free.iter().enumerate().map(|(index, free)| Disk::new(index, free.as_ref())).collect(),
            missing: request.extents + request.metadata * request.multiple,
            metadata_is_allocated: request.metadata == 0,
            taken: 0,
            gathered: Vec::new(),
        }
    }

    fn images(&self) -> u16 {
        self.request.data + self.request.parity
    }

    /// Tries one policy after the other, as lvm(8) says under "ALLOCATION".
    fn run(&mut self) -> Result<(), NoRoom> {
        for policy in [Policy::Contiguous, Policy::Cling, Policy::Normal, Policy::Anywhere] {
            let wanted = self.missing / self.request.multiple * u64::from(self.images());
            if policy > self.request.policy || self.missing == 0 || wanted > self.disks.iter().map(Disk::free).sum() {
                break;
            }
            self.run_policy(policy)?;
        }
        Ok(())
    }

    fn run_policy(&mut self, policy: Policy) -> Result<(), NoRoom> {
        let mut cling = match policy {
            Policy::Contiguous | Policy::Anywhere => Cling::No,
            Policy::Cling => Cling::Positional,
            Policy::Normal => Cling::Sorted,
        };
        loop {
            let areas = self.find(policy, cling);
            if let Some(areas) = &areas {
                self.take(areas)?;
            }
            if policy == Policy::Contiguous || self.missing == 0 {
                return Ok(());
            }
            // The normal policy leaves the physical volumes of the volume only for one round at a time.
            match (policy, cling, areas.is_some()) {
                (Policy::Normal, Cling::Sorted, false) => cling = Cling::No,
                (Policy::Normal, Cling::No, true) => cling = Cling::Sorted,
                (_, _, true) => {}
                (_, _, false) => return Ok(()),
            }
        }
    }

    /// One area for each image, if there are enough.
    fn find(&mut self, policy: Policy, cling: Cling) -> Option<Vec<Candidate>> {
        for disk in &mut self.disks {
            disk.start_round();
        }
        let images = usize::from(self.images());
        if cling == Cling::Positional {
            return self.find_by_image().filter(|found| found.len() == images);
        }
        let round = Round {
            policy,
            cling,
            share: self.missing / self.request.multiple,
            least: if policy == Policy::Anywhere { 0 } else { self.request.metadata },
            may_split: self.request.policy != Policy::Contiguous,
        };
        let mut found = Vec::new();
        loop {
            let before = found.len();
            for disk in &mut self.disks {
                disk.look(&round, usize::from(self.request.data), &mut found);
                if policy == Policy::Anywhere && found.len() >= images {
                    break;
                }
            }
            if policy != Policy::Anywhere || found.len() == before || found.len() >= images {
                break;
            }
        }
        if found.len() < images {
            return None;
        }
        found.sort_by_key(|candidate| std::cmp::Reverse(candidate.length));
        found.truncate(images);
        Some(found)
    }

    /// For each image with data an area on a physical volume that it lies on. LVM forgets the parity here.
    fn find_by_image(&self) -> Option<Vec<Candidate>> {
        let mut slots: Vec<Option<Candidate>> = vec![None; usize::from(self.request.data)];
        for disk in &self.disks {
            let free = slots.iter_mut().enumerate().find(|(image, slot)| slot.is_none() && disk.images.contains(image));
            if let Some((_, slot)) = free {
                *slot = disk.first();
            }
        }
        slots.into_iter().collect()
    }

    /// Gives each image its area, the metadata first.
    fn take(&mut self, areas: &[Candidate]) -> Result<(), NoRoom> {
        let shortest = areas.iter().map(|area| area.length).min().unwrap_or(0);
        let length = shortest.min(self.missing / self.request.multiple);
        let metadata = if self.metadata_is_allocated { 0 } else { self.request.metadata };
        let data = length.checked_sub(metadata).ok_or(NoRoom)?;
        for (image, area) in areas.iter().enumerate() {
            let Some(disk) = self.disks.get_mut(area.disk) else { continue };
            if metadata > 0 {
                disk.consume(area, metadata);
                disk.metadata += 1;
            }
            if data > 0 {
                disk.consume(area, data);
                disk.images.insert(image);
            }
        }
        self.metadata_is_allocated = true;
        self.missing -= length * self.request.multiple;
        self.taken += data * self.request.multiple;
        self.gathered.push(self.taken);
        Ok(())
    }

    fn images_are_apart(&self) -> bool {
        !self.request.apart || self.disks.iter().all(|disk| disk.images.len() <= 1 && disk.metadata <= 1)
    }

    /// LVM allocates the checksums afterwards, image by image, and takes everything back when some come in several pieces. Of
    /// images that share a physical volume all may take theirs from it, so it counts as room for one if it has room for all.
    fn checksums_fit(&self) -> bool {
        let Some(checksums) = self.request.checksums else { return true };
        let holds_all = |disk: &Disk| usize::try_from(disk.pieces(checksums)).is_ok_and(|n| n >= disk.images.len());
        let has_room = |image| self.disks.iter().any(|disk| disk.images.contains(&image) && holds_all(disk));
        checksums > 0 && (0..usize::from(self.images())).all(has_room)
    }
}

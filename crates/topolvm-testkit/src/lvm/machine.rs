//! The port [`Machine`]: disks in memory that are plugged in and pulled out.

use std::io;

use block_device::{Claim, Contents, Disk, Machine, Number, OpenDisk};

use super::FakeLvm;

/// A disk of the fake machine.
#[derive(Clone, Debug)]
pub struct FakeDisk {
    /// Its description in sysfs.
    pub disk: Disk,
    /// Its contents, unless LVM has written there.
    pub contents: Contents,
    /// The type of the signature that blkid and LVM find on it.
    pub signature: Option<String>,
    /// True if another program has claimed it.
    pub is_claimed: bool,
    /// The volume group that it is in.
    pub vg: Option<String>,
    /// True if it is pulled out.
    pub is_missing: bool,
    /// Bytes that its volume group uses.
    pub(super) used: u64,
}

impl FakeLvm {
    /// Plugs in a blank disk, or one that was pulled out. Disks are numbered in the order of their letters.
    ///
    /// # Panics
    /// When the name is not `sd` and one letter.
    pub fn plug(&self, name: &str, bytes: u64) {
        let letter = name.strip_prefix("sd").and_then(|rest| rest.bytes().next()).expect("a name like sdb");
        let mut state = self.state();
        let disk = Disk {
            name: name.to_owned(),
            path: format!("/dev/{name}"),
            number: Number { major: 8, minor: 16 * u32::from(letter - b'a') },
            sequence: 0,
            size: bytes,
            read_only: false,
            rotational: Some(false),
            removable: false,
            model: None,
            serial: None,
            wwid: None,
            transport: Some("sata"),
            ids: vec![format!("ata-fake_{name}")],
            bus_paths: Vec::new(),
            uses: Vec::new(),
        };
        let blank = FakeDisk {
            disk,
            contents: Contents::Blank,
            signature: None,
            is_claimed: false,
            vg: None,
            is_missing: false,
            used: 0,
        };
        let plugged = state.disks.entry(name.to_owned()).or_insert(blank);
        plugged.is_missing = false;
        state.count_missing_disks();
    }

    /// Pulls out a disk.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn pull(&self, name: &str) {
        self.edit_disk(name, |disk| disk.is_missing = true);
        self.state().count_missing_disks();
    }

    /// Changes a disk in place.
    ///
    /// # Panics
    /// When there is no such disk.
    pub fn edit_disk(&self, name: &str, edit: impl FnOnce(&mut FakeDisk)) {
        edit(self.state().disks.get_mut(name).expect("no such disk in the fake machine"));
    }

    /// Returns the volume group of a disk.
    pub fn group_of_disk(&self, name: &str) -> Option<String> {
        self.state().disks.get(name)?.vg.clone()
    }

    /// Returns the tags of a volume group.
    pub fn group_tags(&self, vg: &str) -> Vec<String> {
        self.state().group(vg).tags.clone()
    }

    /// Puts a tag on a volume group, or takes all away.
    pub fn set_group_tags(&self, vg: &str, tags: &[&str]) {
        self.change_group(vg, |group| group.tags = tags.iter().map(|tag| (*tag).to_owned()).collect());
    }
}

impl Machine for FakeLvm {
    fn disks(&self) -> io::Result<Vec<Disk>> {
        let state = self.state();
        Ok(state.disks.values().filter(|disk| !disk.is_missing).map(|disk| disk.disk.clone()).collect())
    }

    fn open(&self, disk: &Disk) -> io::Result<Box<dyn OpenDisk>> {
        let state = self.state();
        let found = state.disks.get(&disk.name).filter(|found| !found.is_missing).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(found.clone()))
    }
}

impl OpenDisk for FakeDisk {
    fn touch(&self) -> io::Result<()> {
        Ok(())
    }

    fn contents(&self) -> io::Result<Contents> {
        Ok(self.contents)
    }

    fn claim(&self) -> io::Result<Claim> {
        if self.is_claimed { Err(io::ErrorKind::ResourceBusy.into()) } else { Ok(Claim::of_nothing()) }
    }
}

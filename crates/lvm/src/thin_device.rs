//! Thin devices unknown to LVM's metadata. LVM makes the kernel create a device and records it afterwards. If LVM is
//! killed in between, it leaves a device whose id it chooses again for the next volume. The creation of a snapshot then
//! fails. The creation of a volume succeeds: LVM uses the device for it, with the data that it contains.

use device_mapper::ThinPoolStatus;

use crate::report::{self, ThinVolume};
use crate::volume::mapper_name;
use crate::{GroupLock, Host, LvName, Lvm, LvmCommand, RepairError, VgName};

/// Suffix of the name of a pool's device: the layer that thin devices use.
const POOL: &str = "-tpool";
/// Suffix of the name of the device with a pool's metadata.
const METADATA: &str = "_tmeta";
/// State of a thin pool by LVM and the kernel, valid for as long as the lock is held.
struct LockedPool {
    lock: GroupLock,
    volumes: Vec<ThinVolume>,
    status: ThinPoolStatus,
}

/// One line of `thin_ls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ThinDevice {
    id: u32,
    /// Blocks that were ever written, or that it has in common with the volume of which it is a snapshot.
    mapped_blocks: u64,
    /// The transaction of the pool in which it was made.
    transaction: u64,
}

impl<R: Host> Lvm<R> {
    /// Removes a thin device from a pool after it has proved, under LVM's lock, that no volume has the device and that
    /// no data is lost with it: it was never written to, or the transaction that created it never ended. LVM gives a
    /// device to a volume only after that.
    pub async fn remove_unused_thin_device(&self, vg: &VgName, pool: &LvName, id: u32) -> Result<(), RepairError> {
        let LockedPool { lock, volumes, status } = self.lock_pool(vg, pool).await?;
        if let Some(owner) = volumes.iter().find(|volume| volume.is_device(pool, id)) {
            return Err(RepairError::Inconsistent(format!("volume {} has thin device {id}", owner.name)));
        }
        check_unused(self.thin_device(vg, pool, id).await?, &status)?;
        self.send_pool_message(vg, pool, &format!("delete {id}")).await?;
        drop(lock);
        Ok(())
    }

    /// Returns whether the thin device of a new volume in a pool is one that a killed LVM left: it was created in the
    /// last transaction, either before or when this volume began that transaction again, so that no other volume ever
    /// had it.
    pub async fn has_thin_device_of_last_transaction(
        &self,
        vg: &VgName,
        pool: &LvName,
        name: &LvName,
    ) -> Result<bool, RepairError> {
        let LockedPool { lock, volumes, status } = self.lock_pool(vg, pool).await?;
        let volume = volumes.iter().find(|volume| *volume.name == *name.as_str());
        let no_device = || RepairError::Inconsistent(format!("LVM reports no thin device for volume {name}"));
        let id = volume.and_then(|volume| volume.device).ok_or_else(no_device)?;
        let device = self.thin_device(vg, pool, id).await?;
        drop(lock);
        Ok(device.is_some_and(|device| device.transaction.checked_add(1) == status.transaction))
    }

    /// Acquires LVM's lock of the group and reads the state of a pool. Fails when LVM and the kernel disagree about it.
    async fn lock_pool(&self, vg: &VgName, pool: &LvName) -> Result<LockedPool, RepairError> {
        let lock = self.hold_group_lock(vg).await?;
        let volumes = self.parse(&LvmCommand::thin_ids(vg), report::thin_ids).await?;
        let status = self.thin_pool_status(vg, pool).await?;
        check_consistent(&volumes, &status, pool)?;
        Ok(LockedPool { lock, volumes, status })
    }

    async fn thin_pool_status(&self, vg: &VgName, pool: &LvName) -> Result<ThinPoolStatus, RepairError> {
        let output = self.program("dmsetup", &["status", &mapper_name(vg, pool.as_str(), POOL)]).await?;
        // START LENGTH TYPE and the status itself
        let status = output.split_once(" thin-pool ").map(|(_, status)| status);
        let no_status = || RepairError::Inconsistent(format!("invalid thin pool status: {output}"));
        ThinPoolStatus::parse(status.ok_or_else(no_status)?).map_err(|_| no_status())
    }

    /// Reads a device from a snapshot of the pool's metadata, as the metadata of a pool in use must be read.
    async fn thin_device(&self, vg: &VgName, pool: &LvName, id: u32) -> Result<Option<ThinDevice>, RepairError> {
        self.send_pool_message(vg, pool, "reserve_metadata_snap").await?;
        let metadata = format!("/dev/mapper/{}", mapper_name(vg, pool.as_str(), METADATA));
        let listed = ["--metadata-snap", "--no-headers", "--format", "DEV,MAPPED_BLOCKS,TRANSACTION", &metadata];
        let listed = self.program("thin_ls", &listed).await;
        self.send_pool_message(vg, pool, "release_metadata_snap").await?;
        Ok(thin_devices(&listed?)?.into_iter().find(|device| device.id == id))
    }

    async fn send_pool_message(&self, vg: &VgName, pool: &LvName, message: &str) -> Result<(), RepairError> {
        self.program("dmsetup", &["message", &mapper_name(vg, pool.as_str(), POOL), "0", message]).await.map(drop)
    }
}

/// Checks that LVM and the kernel agree about the last transaction, and that no other process reads the pool's
/// metadata.
fn check_consistent(volumes: &[ThinVolume], status: &ThinPoolStatus, pool: &LvName) -> Result<(), RepairError> {
    let inconsistent = |why: String| Err(RepairError::Inconsistent(why));
    let noted = volumes.iter().find(|volume| *volume.name == *pool.as_str()).and_then(|pool| pool.transaction);
    if status.transaction.is_none() || status.transaction != noted {
        let text = |id: Option<u64>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let (kernel, noted) = (text(status.transaction), text(noted));
        return inconsistent(format!("the pool is at transaction {kernel}, but the LVM metadata is at {noted}"));
    }
    if status.has_metadata_snapshot {
        return inconsistent(
            "the pool has a metadata snapshot of another program; release it with `dmsetup message VG-POOL-tpool 0 \
             release_metadata_snap`"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks that no data is lost with a device: it was never written to, or its transaction never ended.
fn check_unused(device: Option<ThinDevice>, status: &ThinPoolStatus) -> Result<(), RepairError> {
    match device {
        Some(device) if device.mapped_blocks == 0 || Some(device.transaction) == status.transaction => Ok(()),
        Some(ThinDevice { id, mapped_blocks, transaction }) => Err(RepairError::Inconsistent(format!(
            "thin device {id} was created in the completed transaction {transaction} and has {mapped_blocks} blocks: \
             it may be a volume of older metadata"
        ))),
        None => Err(RepairError::Inconsistent("thin_ls does not list the device".to_owned())),
    }
}

fn thin_devices(listed: &str) -> Result<Vec<ThinDevice>, RepairError> {
    let device = |line: &str| {
        let mut words = line.split_whitespace();
        let mut number = || words.next()?.parse::<u64>().ok();
        let (id, mapped_blocks, transaction) = (number()?, number()?, number()?);
        Some(ThinDevice { id: u32::try_from(id).ok()?, mapped_blocks, transaction })
    };
    let unreadable = |line: &str| RepairError::Inconsistent(format!("invalid thin_ls line: {line:?}"));
    listed.lines().map(|line| device(line).ok_or_else(|| unreadable(line))).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn status(words: &str) -> ThinPoolStatus {
        ThinPoolStatus::parse(words).unwrap()
    }

    fn volumes() -> Vec<ThinVolume> {
        let volume = |name: &str, pool: Option<&str>, device, transaction| ThinVolume {
            name: name.into(),
            pool: pool.map(Into::into),
            device,
            transaction,
        };
        vec![
            volume("pool", None, None, Some(7)),
            volume("a", Some("pool"), Some(1), Some(0)),
            volume("b", Some("other"), Some(2), Some(0)),
        ]
    }

    #[rstest]
    #[case::in_the_middle_of_a_change("6 1/2 1/2 - rw", "at transaction 6, but the LVM metadata is at 7")]
    #[case::failed("Fail", "at transaction none")]
    #[case::read_by_another("7 1/2 1/2 123 rw", "metadata snapshot")]
    fn a_pool_that_is_not_understood_is_left_alone(#[case] words: &str, #[case] expected: &str) {
        let kept = check_consistent(&volumes(), &status(words), &"pool".parse().unwrap()).unwrap_err().to_string();
        assert!(kept.contains(expected), "{kept}");
    }

    #[test]
    fn a_volume_has_a_device_of_its_own_pool() {
        let (pool, volumes) = ("pool".parse().unwrap(), volumes());
        let owners = |id| volumes.iter().filter(|volume| volume.is_device(&pool, id)).count();
        assert_eq!([owners(1), owners(2)], [1, 0]);
    }

    #[test]
    fn thin_device_check_accepts_only_devices_never_in_use() {
        let status = status("7 1/2 1/2 - rw");
        check_consistent(&volumes(), &status, &"pool".parse().unwrap()).unwrap();
        let devices = thin_devices("  1   25600  0\n  2  0  3\n  3  12  7\n  4  12  3\n").unwrap();
        let kept: Vec<_> = devices
            .iter()
            .filter(|device| check_unused(Some(**device), &status).is_err())
            .map(|device| device.id)
            .collect();
        assert_eq!(kept, [1, 4]);
        check_unused(None, &status).unwrap_err();
        thin_devices("DEV MAPPED").unwrap_err();
    }

    #[test]
    fn the_parts_of_a_pool_are_named_as_lvm_names_them() {
        let vg = "my-vg".parse().unwrap();
        assert_eq!(mapper_name(&vg, "my-pool", POOL), "my--vg-my--pool-tpool");
        assert_eq!(mapper_name(&vg, "my-pool", METADATA), "my--vg-my--pool_tmeta");
    }
}

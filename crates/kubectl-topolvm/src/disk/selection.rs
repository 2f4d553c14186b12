//! Finds the disk that a person means: by LVM's UUID, by its name in /dev/disk/by-id, or by its path.

use super::rows::{DiskRow, in_table};
use crate::error::DiskError;

/// Finds a disk of a volume group.
pub(super) fn find_member<'a>(node: &str, rows: &'a [DiskRow], disk: &str) -> Result<&'a DiskRow, DiskError> {
    find(
        node,
        rows,
        disk,
        |row| !row.uuid.is_empty(),
        |row| DiskError::InNoGroup { node: node.to_owned(), disk: row.label() },
    )
}

/// Finds a disk that can be added: one that is in no volume group, or that is evacuated.
pub(super) fn find_addable<'a>(node: &str, rows: &'a [DiskRow], disk: &str) -> Result<&'a DiskRow, DiskError> {
    let is_addable = |row: &DiskRow| row.uuid.is_empty() || row.is_evacuated();
    if rows.iter().all(|row| row.disk_group.is_empty() && !is_addable(row)) {
        return Err(DiskError::NoDiskGroups(node.to_owned()));
    }
    find(node, rows, disk, is_addable, |row| DiskError::InGroup {
        node: node.to_owned(),
        disk: row.label(),
        group: row.volume_group.clone(),
    })
}

/// Finds the only disk of this kind that is meant. One of the other kind is the error that `refuse` makes.
fn find<'a>(
    node: &str,
    rows: &'a [DiskRow],
    disk: &str,
    is_kind: impl Fn(&DiskRow) -> bool,
    refuse: impl Fn(&DiskRow) -> DiskError,
) -> Result<&'a DiskRow, DiskError> {
    let meant: Vec<_> = rows.iter().filter(|row| is_meant(row, disk)).collect();
    let of_kind: Vec<_> = meant.iter().copied().filter(|row| is_kind(row)).collect();
    match (of_kind.as_slice(), meant.first()) {
        ([found], _) => Ok(found),
        ([], Some(other)) => Err(refuse(other)),
        ([], None) => {
            let disks = in_table(rows, true);
            Err(DiskError::NoDisk { node: node.to_owned(), disk: disk.to_owned(), disks })
        }
        (several, _) => {
            let several: Vec<DiskRow> = several.iter().copied().cloned().collect();
            let disks = in_table(&several, true);
            Err(DiskError::Ambiguous { node: node.to_owned(), disk: disk.to_owned(), disks })
        }
    }
}

fn is_meant(row: &DiskRow, disk: &str) -> bool {
    !disk.is_empty() && [&row.uuid, &row.stable_name, &row.path].into_iter().any(|name| name == disk)
        || (!disk.is_empty() && row.short_name() == disk)
}

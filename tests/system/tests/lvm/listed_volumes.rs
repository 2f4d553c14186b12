//! Volumes and free space of the random tests' volume group, as LVM and as lvmd report them.

use std::collections::BTreeMap;

use crate::daemon::Client;
use crate::fixture::{MIB, run_ok};

/// Volumes and free bytes by device class.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) volumes: BTreeMap<String, u64>,
    thick: u64,
    thin: u64,
    /// True if LVM has a volume whose creation is unfinished.
    pub(crate) is_half_made: bool,
}

impl Listed {
    pub(crate) fn read_from_lvm() -> Self {
        let fields = [
            "--noheadings",
            "--units=b",
            "--nosuffix",
            "--separator=|",
            "-o",
            "vg_free,lv_name,lv_size,lv_tags,pool_lv",
        ];
        let list = run_ok("lvs", &[&fields[..], &["myvg1"]].concat());
        let mut listed = Self { volumes: BTreeMap::new(), thick: 0, thin: 640 * MIB, is_half_made: false };
        for line in list.lines() {
            let [free, name, size, tags, pool] = line.trim().split('|').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            listed.thick = free.parse().unwrap();
            if name.starts_with("pool") {
                continue;
            }
            let size: u64 = size.parse().unwrap();
            listed.is_half_made |= tags.contains("topolvm.io/making=");
            listed.volumes.insert(name.to_owned(), size);
            if pool == "pool" {
                listed.thin -= size;
            }
        }
        listed
    }

    pub(crate) async fn read_from_lvmd(client: &Client) -> Self {
        let volumes = [client.list_of("thick").await.unwrap(), client.list_of("thin").await.unwrap()];
        let sizes =
            volumes.into_iter().flatten().map(|volume| (volume.name, u64::try_from(volume.size_bytes).unwrap()));
        Self {
            volumes: sizes.collect(),
            thick: client.free_in("thick").await.unwrap(),
            thin: client.free_in("thin").await.unwrap(),
            is_half_made: false,
        }
    }
}

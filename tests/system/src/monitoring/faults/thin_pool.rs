//! A thin pool that runs full of data and of metadata, and ignores discards.

use anyhow::Result;

use super::setup::Setup;

pub(super) const ALERTS: [&str; 6] = [
    "TopolvmThinPoolDataHigh",
    "TopolvmThinPoolDataCritical",
    "TopolvmThinPoolMetadataHigh",
    "TopolvmThinPoolMetadataCritical",
    "TopolvmThinPoolFullSoon",
    "TopolvmThinPoolIgnoresDiscards",
];

/// Fills the metadata of the pool with the roots of empty thin devices that are not in LVM's metadata, and then its
/// data with a volume.
const FILL: &str = "
lvchange -qqy -an pool/small
lvchange -qqy --discards ignore pool/small
lvcreate -qqy -V 62m -T pool/small -n filler
id=1000
used() {
  read -r _ _ _ _ metadata _ < <(dmsetup status pool-small-tpool)
  echo $((${metadata%/*} * 100 / ${metadata#*/}))
}
while (( $(used) < 96 )); do
  for (( end = id + 8; id < end; id++ )); do dmsetup message pool-small-tpool 0 \"create_thin $id\"; done
done
dd if=/dev/zero of=/dev/pool/filler bs=1M count=62 oflag=direct 2>/dev/null";

/// Commands of the pages about the alerts.
const REPAIR: &str = "
lvextend -qqy -L +192m pool/small
lvextend -qqy --poolmetadatasize +16m pool/small
lvremove -qqfy pool/filler
lvchange -qqy -an pool/small
lvchange -qqy --discards passdown pool/small
lvchange -qqy -ay pool/small";

pub(super) fn fill_pool(setup: &Setup<'_>) -> Result<()> {
    setup.script(FILL)?;
    let findings = [
        ("thin pool of device class thin: 9", "extend the pool (lvextend"),
        ("% of metadata used", "--poolmetadatasize"),
        ("1 thin pools of the volume group pool ignore discards", "lvchange --discards passdown"),
    ];
    let fired = setup.wait_for_alerts(&ALERTS).and_then(|()| setup.wait_for_storage_findings(&findings));
    setup.script(REPAIR)?;
    fired?;
    setup.wait_for_end(&ALERTS)
}

//! The claim `database` of the pages about growth and snapshots, and the commands that find volumes without a claim.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::commands::{self, Commands};
use system_tests::manifests::{VolumeMode, storage_class};
use testbed::topolvm::THIN_CLASS;
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::Fixture;

/// Name of the StorageClass on the page about snapshots.
const CLASS: &str = "topolvm-thin";
const LV: &str = "logicalvolumes.topolvm.io";

pub(crate) fn tests() -> Vec<(String, Body)> {
    vec![("database_pages_expand_restore_and_find_unclaimed_volumes".to_owned(), follow_pages)]
}

fn follow_pages(fixture: &Fixture) -> Result<()> {
    fixture.apply(&storage_class(TopoLvm, CLASS, Some(THIN_CLASS), true))?;
    fixture.apply_claim("database", CLASS, "10Gi")?;
    fixture.start_pod("database", VolumeMode::Filesystem)?;
    fixture.write_word("database", "monday")?;
    Commands::of("expansion.md", "Growing a volume")?.run(&fixture.cluster)?;
    let mebibytes = fixture.filesystem_mebibytes("database")?;
    ensure!(mebibytes > 19 << 10, "the filesystem has {mebibytes} MiB");

    fixture.cluster.apply(&commands::manifests("snapshots.md", "Take a snapshot")?)?;
    Commands::of("snapshots.md", "Take a snapshot")?.run(&fixture.cluster)?;
    fixture.write_word("database", "tuesday")?;
    fixture.cluster.apply(&commands::manifests("snapshots.md", "Restore a snapshot, or clone a volume")?)?;
    fixture.start_pod("database-of-monday", VolumeMode::Filesystem)?;
    let word = fixture.read_word("database-of-monday")?;
    ensure!(word == "monday", "the restored volume says {word:?}");
    find_leftovers(fixture).context("volumes without a claim")?;

    fixture.kubectl(&["delete", "volumesnapshot/monday", "volumesnapshotclass/topolvm", "--timeout=180s"])?;
    fixture.delete_pod_and_claim("database")?;
    fixture.delete_pod_and_claim("database-of-monday")?;
    fixture.kubectl(&["delete", "storageclass", CLASS])?;
    fixture.wait_no_volumes()
}

/// Finds the unclaimed volume and none of the others: of a claim, of a copy, of a snapshot.
fn find_leftovers(fixture: &Fixture) -> Result<()> {
    let directory = tempfile::tempdir().context("create a directory for lists")?;
    let find = Commands::of("limits.md", "A claim that is deleted while its volume is made")?;
    let found = find.run_in(&fixture.cluster, directory.path())?;
    ensure!(found.is_empty(), "volumes are not wanted: {found}");
    fixture.apply(&json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "left"},
        "spec": {"name": "left", "nodeName": fixture.node.name(), "size": "64Mi"},
    }))?;
    fixture.wait_value_present(LV, "left", ".status.volumeID")?;
    let found = find.run_in(&fixture.cluster, directory.path())?;
    let uid = fixture.value(LV, "left", ".metadata.uid")?;
    ensure!(found == format!("{uid} left\n"), "{found:?} is found");
    fixture.kubectl(&["delete", LV, "left", "--timeout=180s"]).map(drop)
}

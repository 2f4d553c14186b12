//! Measures the resident memory of lvmd with no volume, with 100, and with 1000, which LVM reads from a metadata backup
//! because that is faster than creating them one by one.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::daemon::{Client, LvmCommand, Lvmd, VG};
use super::shell::run_script;
use super::speed;
use crate::memory::ResidentMemory;

const MIB: i64 = 1 << 20;
/// Number of volumes in the metadata backup.
const VOLUMES: u16 = 1000;
const AT_ONCE: usize = 10;
const TEXT: &str = "/run/bench/group";

/// Measures two processes of lvmd, each after it has done every operation once.
pub(super) async fn measure() -> Result<[ResidentMemory; 3]> {
    let lvmd = Lvmd::start(LvmCommand::Lvm)?;
    let client = Client::connect().await?;
    create_resize_and_remove(&client).await?;
    ensure!(client.list().await?.is_empty(), "a volume is left");
    let none = lvmd.read_resident_memory()?;

    speed::create_all(&client, AT_ONCE).await?;
    create_resize_and_remove(&client).await?;
    let hundred = lvmd.read_resident_memory()?;
    speed::remove_all(&client, AT_ONCE).await?;
    lvmd.stop()?;

    restore_volumes(VOLUMES)?;
    let lvmd = Lvmd::start(LvmCommand::Lvm)?;
    let client = Client::connect().await?;
    create_resize_and_remove(&client).await?;
    ensure!(client.list().await?.len() == usize::from(VOLUMES), "lvmd does not list all volumes");
    let thousand = lvmd.read_resident_memory()?;
    lvmd.stop()?;
    Ok([none, hundred, thousand])
}

/// Creates, resizes and removes five volumes in addition to the existing ones, and lists all.
async fn create_resize_and_remove(client: &Client) -> Result<()> {
    for number in 0..5 {
        let name = format!("extra{number}");
        client.create("", &name, 4 * MIB).await?;
        client.resize("", &name, 8 * MIB).await?;
        client.list().await?;
        client.remove("", &name).await?;
    }
    Ok(())
}

/// Restores the empty volume group with so many active volumes of one extent each, tagged as lvmd and topolvm-node do.
fn restore_volumes(number: u16) -> Result<()> {
    run_script(&format!("vgcfgbackup -qq -f {TEXT} {VG}"))?;
    let text = fs::read_to_string(TEXT).context("read what LVM wrote")?;
    // The group's section ends with the last line that is a brace in the first column; the physical volumes precede it
    let group = text.rfind("\n}").with_context(|| format!("no volume group in {text}"))?;
    let (before, after) = text.split_at(group + 1);
    let mut volumes = String::from("logical_volumes {\n");
    for extent in 0..number {
        write!(
            volumes,
            "v{extent:036} {{ id = \"{id}\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\nflags = []\n\
             tags = [\"topolvm.io/managed-by=lvmd\", \
             \"topolvm.io/logicalvolume=pvc-0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c{extent:04}\", \
             \"topolvm.io/device-class=thick\"]\n\
             creation_time = 1700000000\ncreation_host = \"guest\"\nsegment_count = 1\n\
             segment1 {{ start_extent = 0\nextent_count = 1\ntype = \"striped\"\nstripe_count = 1\n\
             stripes = [\"pv0\", {extent}]\n}}\n}}\n",
            id = lv_id(extent),
        )?;
    }
    volumes.push_str("}\n");
    fs::write(TEXT, [before, &volumes, after].concat()).context("write what LVM shall read")?;
    run_script(&format!("vgcfgrestore -qqy -f {TEXT} {VG} && vgchange -qqay {VG}"))
}

/// Returns the UUID of a volume in LVM's form.
fn lv_id(number: u16) -> String {
    format!("BenchX-0000-0000-0000-0000-0000-{number:06}")
}

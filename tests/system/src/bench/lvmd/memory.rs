//! What lvmd has resident with no volume, with a hundred, and with more than it would be quick to make one by one:
//! those LVM reads from a text that it could have written.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::daemon::{Calls, Client, Lvmd, VG};
use super::in_guest::must;
use super::speed;
use crate::bench::memory::Resident;

const MIB: i64 = 1 << 20;
/// So many.
const MANY: u16 = 1000;
const AT_ONCE: usize = 10;
const TEXT: &str = "/run/bench/group";

/// Two processes of lvmd, each of which has done everything that they do before it is looked at.
pub(super) async fn measure() -> Result<[Resident; 3]> {
    let lvmd = Lvmd::start(Calls::Directly)?;
    let client = Client::connect().await?;
    change(&client).await?;
    ensure!(client.list().await?.is_empty(), "a volume is left");
    let none = lvmd.resident()?;

    speed::create(&client, AT_ONCE).await?;
    change(&client).await?;
    let hundred = lvmd.resident()?;
    speed::remove(&client, AT_ONCE).await?;
    lvmd.stop()?;

    make(MANY)?;
    let lvmd = Lvmd::start(Calls::Directly)?;
    let client = Client::connect().await?;
    change(&client).await?;
    ensure!(client.list().await?.len() == usize::from(MANY), "lvmd does not list all volumes");
    let thousand = lvmd.resident()?;
    lvmd.stop()?;
    Ok([none, hundred, thousand])
}

/// Makes, grows and removes a few volumes beside those that are there, and asks about all.
async fn change(client: &Client) -> Result<()> {
    for number in 0..5 {
        let name = format!("beside{number}");
        client.create("", &name, 4 * MIB).await?;
        client.resize("", &name, 8 * MIB).await?;
        client.list().await?;
        client.remove("", &name).await?;
    }
    Ok(())
}

/// Gives the empty volume group so many active volumes of one extent each, tagged as lvmd and topolvm-node do.
fn make(number: u16) -> Result<()> {
    must(&format!("vgcfgbackup -qq -f {TEXT} {VG}"))?;
    let text = fs::read_to_string(TEXT).context("read what LVM wrote")?;
    // The group's section ends with the last line that is a brace and stands in the first column; before it the
    // physical volumes
    let group = text.rfind("\n}").with_context(|| format!("no volume group in {text}"))?;
    let (before, after) = text.split_at(group + 1);
    let mut volumes = String::from("logical_volumes {\n");
    for extent in 0..number {
        write!(
            volumes,
            "v{extent:036} {{ id = \"{id}\"\nstatus = [\"READ\", \"WRITE\", \"VISIBLE\"]\nflags = []\n\
             tags = [\"topolvm.io/managed-by=lvmd\", \"topolvm.io/logicalvolume=pvc-0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c{extent:04}\", \
             \"topolvm.io/device-class=thick\"]\n\
             creation_time = 1700000000\ncreation_host = \"guest\"\nsegment_count = 1\n\
             segment1 {{ start_extent = 0\nextent_count = 1\ntype = \"striped\"\nstripe_count = 1\nstripes = [\"pv0\", {extent}]\n}}\n}}\n",
            id = lv_id(extent),
        )?;
    }
    volumes.push_str("}\n");
    fs::write(TEXT, [before, &volumes, after].concat()).context("write what LVM shall read")?;
    must(&format!("vgcfgrestore -qqy -f {TEXT} {VG} && vgchange -qqay {VG}"))
}

/// LVM's form of a UUID.
fn lv_id(number: u16) -> String {
    format!("BenchX-0000-0000-0000-0000-0000-{number:06}")
}

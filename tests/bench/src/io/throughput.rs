//! Compares a volume with an LV that `lvcreate` alone has made in the same volume group or thin pool, and with a disk.

use anyhow::{Context as _, Result};
use serde_json::json;
use testbed::node::Node;
use testbed::topolvm::Topolvm;

use crate::figure::median;

/// The disk in addition to those of the volume groups.
const RAW: &str = "/dev/ubde";
/// Rounds in which each device is measured once, of which the median counts.
const ROUNDS: usize = 5;
/// Operations of a round, of 4 KiB each, past the page cache.
const OPERATIONS: usize = 8192;

/// A device class, and where its volumes are.
#[derive(Clone, Copy)]
pub(super) struct DeviceClass {
    /// Name; empty for the default one.
    pub(super) name: &'static str,
    pub(super) group: &'static str,
    /// Thin pool; `None` for thick volumes.
    pub(super) pool: Option<&'static str>,
}

/// Operations per second of a volume, divided by those of other devices.
pub(super) struct Shares {
    pub(super) of_lv: f64,
    pub(super) of_raw: f64,
}

/// Creates a volume in a device class and an LV by hand, and compares their operations per second and those of a disk:
/// writes and then reads of 4 KiB, one after the other, on blocks that were written before.
pub(super) fn compare(topolvm: &Topolvm, node: &Node, class: DeviceClass) -> Result<Shares> {
    let volume = create_volume(topolvm, node, class)?;
    let lv = format!("/dev/{}/bare", class.group);
    let create = match class.pool {
        Some(pool) => format!("lvcreate -qqy -V512m -T {}/{pool} -n bare", class.group),
        None => format!("lvcreate -qqy -L512m -n bare {}", class.group),
    };
    node.script(&create)?;
    for device in [&volume, &lv, RAW] {
        node.script(&format!("dd if=/dev/zero of={device} bs=1M count={} oflag=direct status=none", OPERATIONS / 256))?;
    }
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let of_volume = seconds(node, &volume)?;
        rounds.push((seconds(node, &lv)? / of_volume, seconds(node, RAW)? / of_volume));
    }
    let (of_lv, of_raw) = rounds.into_iter().unzip();
    let median = |shares| median(shares).context("no round");
    Ok(Shares { of_lv: median(of_lv)?, of_raw: median(of_raw)? })
}

/// Creates a volume as its object, and returns the path of its device.
fn create_volume(topolvm: &Topolvm, node: &Node, class: DeviceClass) -> Result<String> {
    let name = format!("bench-{}", class.group);
    topolvm.cluster.apply(
        &json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name},
            "spec": {"name": name, "nodeName": node.name(), "size": "512Mi", "deviceClass": class.name},
        })
        .to_string(),
    )?;
    let object = format!("logicalvolumes.topolvm.io/{name}");
    topolvm.cluster.kubectl_ok(["wait", "--for=condition=Ready", &object, "--timeout=180s"])?;
    let id = topolvm.cluster.kubectl_ok(["get", &object, "-o", "jsonpath={.status.volumeID}"])?;
    Ok(format!("/dev/{}/{id}", class.group))
}

/// Writes and reads a device past the page cache, and returns the seconds that it takes.
fn seconds(node: &Node, device: &str) -> Result<f64> {
    let script = format!(
        "uptime() {{ read -r now _ </proc/uptime; echo $now; }}\n\
         from=$(uptime)\n\
         dd if=/dev/zero of={device} bs=4k count={OPERATIONS} oflag=direct conv=notrunc status=none\n\
         dd if={device} of=/dev/null bs=4k count={OPERATIONS} iflag=direct status=none\n\
         awk -v from=$from -v to=$(uptime) 'BEGIN {{ print to - from }}'"
    );
    node.script(&script)?.trim().parse().context("no seconds")
}

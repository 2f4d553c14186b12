//! Thin pools that are extended as they fill up, on real LVM.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::daemon::Lvmd;
use crate::fixture::{DISKS, Groups, LocalSettings, MIB, run_ok, wait};
use crate::group_pools::{fields, size};
use crate::scsi_disks::until;
use crate::thin::request;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_extends_a_thin_pool_before_writes_fill_it", grows_before_it_is_full),
    ("lvmd_extends_a_thin_pool_to_its_maximum_and_no_further", keeps_to_the_maximum),
    ("lvmd_extends_the_metadata_of_a_thin_pool", grows_metadata),
];

/// Creates a pool in `myvg1` on both disks, with chunks of a MiB, so that few writes fill it.
fn pool(mib: u64) -> Groups {
    let groups = Groups::new(&[("myvg1", &DISKS)]);
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", &format!("-L{mib}m"), "-c1m", "-Zn", "--poolmetadatasize=4m"]);
    groups
}

fn class(growth: &str) -> String {
    format!(
        "device-classes: [{{name: thin, volume-group: myvg1, default: true, type: thin, \
         thin-pool: {{name: pool, overprovision-ratio: 20, {growth}}}}}]"
    )
}

/// Writes to one chunk of a MiB after the other, from the first to the last of these.
struct Writer {
    device: File,
}

impl Writer {
    fn new(path: &str) -> Self {
        Self { device: File::options().write(true).open(path).unwrap() }
    }

    fn write(&self, chunks: std::ops::Range<u64>) {
        for chunk in chunks {
            self.device.write_all_at(&[7; 4096], chunk * MIB).unwrap();
        }
        self.device.sync_data().unwrap();
    }
}

fn percent(field: &str) -> f64 {
    fields("myvg1/pool", field)[0].parse().unwrap()
}

fn grows_before_it_is_full() {
    let _groups = pool(200);
    // LVM's automatic extension is configured, and dmeventd does not monitor the pool
    let settings = LocalSettings::new();
    settings.write("activation/thin_pool_autoextend_threshold=90\nactivation/monitoring=0");
    let lvmd = Lvmd::start(&class("grow-at-percent: 60, grow-by-percent: 50"));
    wait(async {
        let made = lvmd.connect().await.create_with(request("thin", "a", 1600 * MIB)).await.unwrap();
        let writer = Writer::new(&made.path);
        let mut fullest = 0.0_f64;
        for chunk in (0..600).step_by(5) {
            writer.write(chunk..chunk + 5);
            fullest = fullest.max(percent("data_percent"));
            // lvmd polls once a second, and later on a busy machine
            until("the growth", || (percent("data_percent") < 60.0).then_some(()));
        }
        assert!(fullest < 95.0, "{fullest}");
        assert!(size("myvg1/pool") >= 1000.0, "{}", size("myvg1/pool"));
        // At full speed: writes without free space wait for the extension
        writer.write(600..1500);
        until("the growth", || (percent("data_percent") < 100.0).then_some(()));
    });
}

fn keeps_to_the_maximum() {
    let _groups = pool(900);
    let mut lvmd = Lvmd::start(&class("grow-at-percent: 50, grow-by-percent: 30, maximum-size-gb: 1"));
    wait(async {
        let made = lvmd.connect().await.create_with(request("thin", "a", 1600 * MIB)).await.unwrap();
        Writer::new(&made.path).write(0..950);
    });
    lvmd.until_logged("has reached maximum-size-gb");
    assert!((size("myvg1/pool") - 1024.0).abs() < 0.1, "{}", size("myvg1/pool"));
    assert!(percent("data_percent") > 90.0);
}

fn grows_metadata() {
    let _groups = Groups::new(&[("myvg1", &DISKS)]);
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L1g", "-c64k", "-Zn", "--poolmetadatasize=4m"]);
    let before = percent("metadata_percent");
    let at = before.floor() + 2.0;
    let lvmd = Lvmd::start(&class(&format!("grow-at-percent: {at}, maximum-size-gb: 1")));
    wait(async {
        let made = lvmd.connect().await.create_with(request("thin", "a", 1000 * MIB)).await.unwrap();
        let device = File::options().write(true).open(&made.path).unwrap();
        // A chunk of 64 KiB each, out of order, so that the tree grows
        for index in 0..8000_u64 {
            let chunk = index * 7919 % 16_000;
            device.write_all_at(&[7; 4096], chunk * (64 << 10)).unwrap();
        }
        device.sync_data().unwrap();
        let metadata = || fields("myvg1/pool", "lv_metadata_size")[0].parse::<f64>().unwrap();
        until("larger metadata", || (metadata() >= 8.0).then_some(()));
        assert!((size("myvg1/pool") - 1024.0).abs() < 0.1);
        let spare = fields("-a", "lv_name,lv_size");
        let index = spare.iter().position(|name| name.contains("pmspare")).unwrap();
        assert!(spare[index + 1].parse::<f64>().unwrap() >= 8.0, "{spare:?}");
        until("a fill below the threshold", || (percent("metadata_percent") < at).then_some(()));
    });
}

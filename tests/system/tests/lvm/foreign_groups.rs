//! Volume groups that LVM finds and that are not the node's: inside a tenant's volume, of another machine, exported.

use std::fs;

use system_tests::isolated_lvm::{DEVICE, RUN_WITH_ONE_DEVICE};
use tonic::Code;

use crate::daemon::{Lvmd, SOCKET, code};
use crate::fixture::{DISKS, Groups, LocalSettings, MIB, run, run_ok, wait};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("tenant_group_of_a_name_in_use_changes_nothing", name_in_use),
    ("tenant_group_with_a_devices_file_changes_nothing", name_in_use_with_devices_file),
    ("tenant_group_is_no_optional_class", optional_class),
    ("tenant_copy_of_a_physical_volume_uuid_is_not_used", copied_uuid),
    ("tenant_group_with_volumes_of_an_lvmd_is_left_alone", guest_of_lvmd),
    ("foreign_group_ends_no_other_class", foreign_group),
    ("group_of_another_machine_is_left_alone", other_machine),
];

const CLASSES: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}, \
                       {name: hdd, volume-group: myvg2, spare-gb: 0}]";
const UID: &str = "11111111-1111-1111-1111-111111111111";
const MACHINE_ID: &str = "/etc/machine-id";

/// The volume of a tenant, which contains LVM metadata, and the devices that the host stacks on it.
struct Tenant {
    loop_device: String,
    is_mapped: bool,
}

impl Tenant {
    /// Has a tenant run these LVM commands, and attaches a loop device to the volume
    /// as kubelet does, or to a linear device on it.
    fn new(commands: &[&[&str]], is_mapped: bool) -> Self {
        let device = format!("/dev/myvg1/{UID}");
        for command in commands {
            run_ok("unshare", &[&["-m", "sh", "-ec", RUN_WITH_ONE_DEVICE, "sh", &device], *command].concat());
        }
        let below = if is_mapped {
            let sectors = run_ok("blockdev", &["--getsz", &device]);
            let table = format!("0 {} linear {device} 0", sectors.trim());
            run_ok("dmsetup", &["create", "stacked", "--table", &table]);
            let name = run_ok("dmsetup", &["info", "-c", "--noheadings", "-o", "blkdevname", "stacked"]);
            format!("/dev/{}", name.trim())
        } else {
            device
        };
        let loop_device = run_ok("losetup", &["-f", "--show", &below]).trim().to_owned();
        Self { loop_device, is_mapped }
    }

    fn makes_group(name: &str) -> Self {
        Self::new(&[&["vgcreate", "-qq", name, DEVICE]], false)
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        drop(run("losetup", &["-d", &self.loop_device]));
        if self.is_mapped {
            drop(run("dmsetup", &["remove", "--retry", "stacked"]));
        }
    }
}

fn two_groups() -> Groups {
    Groups::new(&[("myvg1", &DISKS[..1]), ("myvg2", &DISKS[1..])])
}

/// Creates, grows and removes volumes in both classes.
fn work(lvmd: &Lvmd, round: &str) {
    wait(async {
        let client = lvmd.connect().await;
        let name = format!("work-{round}");
        client.create(&name, 100 * MIB).await.unwrap();
        client.resize(&name, 200 * MIB).await.unwrap();
        client.remove("ssd", &name).await.unwrap();
        assert!(client.free_in("hdd").await.unwrap() > 0);
    });
}

fn create_tenants_volume(lvmd: &Lvmd) {
    wait(async { lvmd.connect().await.create(UID, 400 * MIB).await.map(drop) }).unwrap();
}

fn name_in_use() {
    for is_mapped in [false, true] {
        let _groups = two_groups();
        let mut lvmd = Lvmd::start(CLASSES);
        create_tenants_volume(&lvmd);
        let tenant = Tenant::new(&[&["vgcreate", "-qq", "myvg1", DEVICE]], is_mapped);
        assert_eq!(run_ok("vgs", &["--noheadings", "-o", "vg_name"]).matches("myvg1").count(), 2);
        work(&lvmd, "running");
        lvmd.kill();
        let lvmd = Lvmd::start(CLASSES);
        work(&lvmd, "restarted");
        drop(tenant);
        wait(async { lvmd.connect().await.remove("ssd", UID).await }).unwrap();
    }
}

fn name_in_use_with_devices_file() {
    let settings = LocalSettings::new();
    let _groups = two_groups();
    let mut lvmd = Lvmd::start(CLASSES);
    create_tenants_volume(&lvmd);
    let tenant = Tenant::makes_group("myvg1");
    settings.write("devices { use_devicesfile=1 }");
    // As a careless `vgimportdevices --all` writes it
    let entry = |path: &str| {
        let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", path]).replace('-', "");
        format!("IDTYPE=devname IDNAME={path} DEVNAME={path} PVID={}\n", uuid.trim())
    };
    let entries: String = [DISKS[0], DISKS[1], tenant.loop_device.as_str()].map(entry).concat();
    fs::create_dir_all("/etc/lvm/devices").unwrap();
    fs::write("/etc/lvm/devices/system.devices", format!("VERSION=1.1.1\n{entries}")).unwrap();
    work(&lvmd, "running");
    lvmd.kill();
    let lvmd = Lvmd::start(CLASSES);
    work(&lvmd, "restarted");
    drop(lvmd);
    fs::remove_file("/etc/lvm/devices/system.devices").unwrap();
}

fn optional_class() {
    let classes = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}, \
                   {name: fast, volume-group: fastvg, spare-gb: 0, optional: true}]";
    let _groups = Groups::one();
    let mut lvmd = Lvmd::start(classes);
    create_tenants_volume(&lvmd);
    let _tenant = Tenant::makes_group("fastvg");
    let is_refused = |lvmd: &Lvmd| {
        wait(async {
            let client = lvmd.connect().await;
            assert_eq!(code(client.free_in("fast").await), Code::FailedPrecondition);
            assert_eq!(code(client.create_in("fast", "victim", 100 * MIB).await), Code::FailedPrecondition);
        });
    };
    is_refused(&lvmd);
    lvmd.kill();
    let lvmd = Lvmd::start(classes);
    is_refused(&lvmd);
    assert_eq!(run_ok("vgs", &["--noheadings", "-o", "lv_count", "fastvg"]).trim(), "0");
}

fn copied_uuid() {
    let settings = LocalSettings::new();
    let _groups = two_groups();
    let mut lvmd = Lvmd::start(CLASSES);
    create_tenants_volume(&lvmd);
    settings.write("devices { hints=\"none\" }");
    let uuid = run_ok("pvs", &["--noheadings", "-o", "pv_uuid", DISKS[1]]).trim().to_owned();
    let _tenant = Tenant::new(
        &[&["pvcreate", "-qq", "--uuid", &uuid, "--norestorefile", DEVICE], &["vgcreate", "-qq", "evil", DEVICE]],
        false,
    );
    let create_in_hdd = |lvmd: &Lvmd, name: &str| {
        wait(async { lvmd.connect().await.create_in("hdd", name, 100 * MIB).await }).unwrap();
    };
    create_in_hdd(&lvmd, "running");
    lvmd.kill();
    let lvmd = Lvmd::start(CLASSES);
    create_in_hdd(&lvmd, "restarted");
    let tree = run_ok("dmsetup", &["deps", "-o", "devname", "myvg2-restarted"]);
    assert!(tree.contains("ubdb"), "{tree}");
}

fn guest_of_lvmd() {
    let _groups = Groups::one();
    let only_ssd = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";
    let mut lvmd = Lvmd::start(only_ssd);
    create_tenants_volume(&lvmd);
    lvmd.kill();
    let making = format!("topolvm.io/making={SOCKET}#4711.0");
    let wiping = format!("topolvm.io/wiping=zero:{SOCKET}");
    let create = |name: &'static str, tag: &'static str| -> Vec<&'static str> {
        let options = ["lvcreate", "-qq", "-y", "-an", "-Zn", "-Wn", "-n", name, "-L", "100m"];
        [&options[..], &["--addtag", "topolvm.io/managed-by=lvmd", "--addtag", tag, "guestvg"]].concat()
    };
    let (making, wiping) = (&*making.leak(), &*wiping.leak());
    let (unfinished, removed) = (create("unfinished", making), create("topolvm.wiping.x", wiping));
    let _tenant = Tenant::new(&[&["vgcreate", "-qq", "guestvg", DEVICE], &unfinished, &removed], false);
    let state = || run_ok("vgs", &["--noheadings", "-o", "vg_seqno,lv_count", "guestvg"]);
    let before = state();
    let lvmd = Lvmd::start(only_ssd);
    // Longer than lvmd takes to clean up its own group
    wait(async {
        let client = lvmd.connect().await;
        client.create("after", 8 * MIB).await.unwrap();
        client.remove("ssd", "after").await.unwrap();
        assert_eq!(code(client.remove("ssd", "22222222-2222-2222-2222-222222222222").await), Code::NotFound);
    });
    assert_eq!(state(), before);
}

fn foreign_group() {
    let settings = LocalSettings::of_all();
    let _groups = Groups::new(&[("myvg2", &DISKS[1..])]);
    let system_id = |id: &str| format!("global {{ system_id_source=\"lvmlocal\" }}\nlocal {{ system_id=\"{id}\" }}");
    settings.write(&system_id("node-old"));
    let _foreign = Groups::on("myvg1", &DISKS[..1]);
    let mut lvmd = Lvmd::start(CLASSES);
    create_tenants_volume(&lvmd);
    settings.write(&system_id("node-new"));
    let is_refused = |lvmd: &Lvmd| {
        wait(async {
            let client = lvmd.connect().await;
            let status = client.create("second", 100 * MIB).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("vgchange --systemid"), "{status}");
            client.until_free(|free| free == 0).await;
            assert!(client.free_in("hdd").await.unwrap() > 0);
            client.create_in("hdd", "other", 100 * MIB).await.unwrap();
            client.remove("hdd", "other").await.unwrap();
        });
    };
    is_refused(&lvmd);
    lvmd.kill();
    let lvmd = Lvmd::start(CLASSES);
    is_refused(&lvmd);
    settings.write(&system_id("node-old"));
    let volumes = run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg1"]);
    assert_eq!(volumes.trim(), UID);
}

fn other_machine() {
    let _groups = two_groups();
    let original = fs::read_to_string(MACHINE_ID).unwrap();
    let mut lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]");
    create_tenants_volume(&lvmd);
    let tags = || run_ok("vgs", &["--noheadings", "-o", "vg_tags", "myvg1"]).trim().to_owned();
    crate::scsi_disks::until("the tag of the machine", || tags().contains("topolvm.io/machine=").then_some(()));
    lvmd.kill();
    fs::write(MACHINE_ID, "ffffffffffffffffffffffffffffffff\n").unwrap();
    let mut lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let status = client.create("second", 100 * MIB).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("vgchange --deltag"), "{status}");
        assert_eq!(code(client.remove("ssd", UID).await), Code::FailedPrecondition);
        assert!(client.free_in("hdd").await.unwrap() > 0);
    });
    lvmd.kill();
    fs::write(MACHINE_ID, original).unwrap();
    let lvmd = Lvmd::start("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]");
    wait(async { lvmd.connect().await.remove("ssd", UID).await }).unwrap();
}

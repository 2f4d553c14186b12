//! Holders of a real device or mount, as a message names them.

use std::path::{Path, PathBuf};

use linux_mount::{DeviceUse, Filesystem, MkfsOptions, Mounter as _, SystemMounter};

use super::{LoopDevice, container, device_for, options, process, run, unmount};

/// The texts of what holds a device.
async fn holders(machine: &SystemMounter, device: &LoopDevice) -> Vec<String> {
    let number = machine.block_device(&device.path).await.unwrap().number;
    let found = machine.find_device_holders(number, &device.path).await.unwrap();
    found.iter().map(ToString::to_string).collect()
}

/// A device with an ext4 that is mounted at its target.
async fn mounted_ext4(machine: &SystemMounter) -> Option<LoopDevice> {
    let device = device_for(Filesystem::Ext4)?;
    machine.format(&device.path, Filesystem::Ext4, &MkfsOptions::default()).await.unwrap();
    machine.mount(&device.path, &device.target(), Filesystem::Ext4, &options(Filesystem::Ext4, false)).await.unwrap();
    Some(device)
}

fn end(mut process: std::process::Child) {
    drop(process.stdin.take());
    process.wait().unwrap();
}

#[tokio::test]
async fn mounts_that_hold_a_device_are_named_in_each_namespace() {
    let machine = SystemMounter::new();
    let Some(device) = mounted_ext4(&machine).await else { return };
    let target = device.target().canonicalize().unwrap();
    let directory = target.join("directory");
    std::fs::create_dir(&directory).unwrap();
    let bound = device.dir.path().canonicalize().unwrap().join("bound");
    std::fs::create_dir(&bound).unwrap();
    machine.bind(&directory, &bound).await.unwrap();
    let elsewhere = container(&format!("umount {}", target.display()));
    unmount(&machine, &target).await;
    // The bind of a single directory
    assert_eq!(holders(&machine, &device).await, [format!("mounted at {}", bound.display())]);
    unmount(&machine, &bound).await;
    // The copy of it that a container has
    let [found] = <[String; 1]>::try_from(holders(&machine, &device).await).unwrap();
    let expected = format!("mounted at {} for process {} (cat)", bound.display(), elsewhere.id());
    assert_eq!(found, expected);
    end(elsewhere);
    assert_eq!(holders(&machine, &device).await, [""; 0]);
}

#[tokio::test]
async fn stacked_devices_loops_and_holding_processes_are_named() {
    let machine = SystemMounter::new();
    let Some(device) = device_for(Filesystem::Ext4) else { return };
    let path = device.path.display().to_string();
    assert_eq!(holders(&machine, &device).await, [""; 0]);

    let name = run("losetup", &["--find", "--show", &path]).unwrap().trim().to_owned();
    let expected = DeviceUse::Loop(name.clone()).to_string();
    let found = holders(&machine, &device).await;
    run("losetup", &["--detach", &name]).unwrap();
    assert!(expected.contains(&format!("losetup --detach {name}")));
    assert_eq!(found, [expected]);

    let reader = container(&format!("exec 3<{path}"));
    let found = holders(&machine, &device).await;
    let pid = reader.id();
    end(reader);
    assert_eq!(found, [format!("open in process {pid} (cat)")]);

    let mapped = format!("topolvm-held-{pid}");
    let table = format!("0 2048 linear {path} 0");
    if let Err(why) = run("dmsetup", &["create", "--noudevsync", &mapped, "--table", &table]) {
        println!("skipped: no device-mapper: {why}");
        return;
    }
    let found = holders(&machine, &device).await;
    run("dmsetup", &["remove", "--noudevsync", &mapped]).unwrap();
    assert_eq!(found, [format!("used by /dev/mapper/{mapped} (remove it with dmsetup remove {mapped})")]);
}

#[tokio::test]
async fn frozen_filesystem_without_a_mount_is_named_with_the_commands() {
    let machine = SystemMounter::new();
    let Some(device) = mounted_ext4(&machine).await else { return };
    let target = device.target();
    run("fsfreeze", &["--freeze", &target.display().to_string()]).unwrap();
    unmount(&machine, &target).await;
    let found = holders(&machine, &device).await;
    let mounted = machine.mount(&device.path, &target, Filesystem::Ext4, &options(Filesystem::Ext4, false)).await;
    mounted.unwrap();
    assert!(machine.thaw(&target).await.unwrap());
    unmount(&machine, &target).await;
    let [found] = <[String; 1]>::try_from(found).unwrap();
    assert!(found.contains("fsfreeze --unfreeze") && found.contains(&device.path.display().to_string()), "{found}");
}

#[tokio::test]
async fn busy_unmount_names_processes_mounts_and_loops() {
    let machine = SystemMounter::new();
    let Some(device) = mounted_ext4(&machine).await else { return };
    let target = device.target().canonicalize().unwrap();
    let message = async || machine.unmount(&target).await.unwrap_err().to_string();
    let below = |name: &str| -> PathBuf { target.join(name) };
    std::fs::create_dir(below("directory")).unwrap();
    std::fs::write(below("file"), vec![0; 1 << 20]).unwrap();

    let worker = process(&["sh", "-c"], &format!("cd {}", below("directory").display()));
    let found = message().await;
    assert!(found.contains(&format!("process {} (cat) uses {}", worker.id(), below("directory").display())), "{found}");
    end(worker);

    machine.bind(Path::new("/proc"), &below("directory")).await.unwrap();
    let found = message().await;
    assert!(found.contains(&format!("umount {}", below("directory").display())), "{found}");
    unmount(&machine, &below("directory")).await;

    let name = run("losetup", &["--find", "--show", &below("file").display().to_string()]).unwrap();
    let found = message().await;
    run("losetup", &["--detach", name.trim()]).unwrap();
    assert!(found.contains(&format!("losetup --detach {}", name.trim())), "{found}");
    unmount(&machine, &target).await;
}

//! The sandbox of the systemd unit: lvmd has no rights that the unit removes, and LVM works.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::node::{
    CLASSES, Node, create, grow, is_whole, list, main_process_file, property, remove, run, run_ok, snapshot,
};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvm_works_in_the_sandbox_with_nsenter_and_without", lvm_works),
    ("what_lvmd_starts_can_do_nothing_that_lvm_does_not_need", can_do_nothing_else),
];

fn lvm_works() {
    for prefix in ["", "lvm-command-prefix: [/sbin/lvm]\n"] {
        let _node = Node::new(&format!("{prefix}{CLASSES}"));
        for class in ["thick", "thin"] {
            create(class, class).unwrap();
            run_ok("mkfs.ext4", &["-q", &format!("/dev/myvg1/{class}")]);
            grow(class, class).unwrap();
        }
        snapshot("copy", "thin").unwrap();
        assert_eq!(list("thin").unwrap(), ["copy", "thin"]);
        assert!(is_whole("copy"));
        for (class, name) in [("thin", "copy"), ("thin", "thin"), ("thick", "thick")] {
            remove(class, name).unwrap();
        }
        let left = run_ok("lvs", &["--noheadings", "-o", "lv_name", "myvg1"]);
        assert_eq!(left.trim(), "pool");
        assert!(Path::new("/etc/lvm/backup/myvg1").exists(), "LVM keeps its copies");
    }
}

/// Commands that root can run on the node, by name, and true for those that work in lvmd's sandbox too. Each leaves
/// nothing behind.
const ATTEMPTS: &[(&str, &str, bool)] = &[
    ("write to /run", "touch /run/attempt && rm /run/attempt", true),
    ("write to /etc/lvm", "touch /etc/lvm/attempt && rm /etc/lvm/attempt", true),
    ("read a disk", "head -c1 /dev/ubda", true),
    ("write to /home", "touch /home/attempt && rm /home/attempt", false),
    ("write to /root", "touch /root/attempt && rm /root/attempt", false),
    ("write to /usr", "touch /usr/attempt && rm /usr/attempt", false),
    ("write to /etc", "touch /etc/topolvm/attempt && rm /etc/topolvm/attempt", false),
    ("write to /var", "touch /var/lib/attempt && rm /var/lib/attempt", false),
    ("mount", "mount -t tmpfs none /mnt && umount /mnt", false),
    ("make a user namespace", "unshare --user true", false),
    ("unload a kernel module", "rmmod dm_snapshot && modprobe dm_snapshot", false),
    ("read the kernel's log", "dmesg", false),
    ("set the clock", "date --set=\"$(date)\"", false),
    ("name the host", "echo guest >/proc/sys/kernel/hostname", false),
    ("set the kernel's tunables", "echo 0 >/proc/sys/vm/overcommit_memory", false),
    ("make a control group", "mkdir /sys/fs/cgroup/attempt && rmdir /sys/fs/cgroup/attempt", false),
    ("run in real time", "chrt --fifo 1 true", false),
    ("make a setuid program", "cp /bin/true /run/attempt && chmod u+s /run/attempt && rm /run/attempt", false),
];

fn can_do_nothing_else() {
    const LVM: &str = "/usr/local/sbin/trying-lvm";
    let mut script = "#!/bin/sh\nif [ ! -e /run/attempts ]; then\n".to_owned();
    for (name, attempt, _) in ATTEMPTS {
        writeln!(script, "({attempt}) >/dev/null 2>&1 && echo '{name}' >>/run/attempts.part").unwrap();
    }
    script += "cat /proc/self/status >/run/attempts.status; echo secret >/tmp/attempt\n";
    script += "mv /run/attempts.part /run/attempts; fi\nexec lvm \"$@\"\n";
    fs::write(LVM, script).unwrap();
    fs::set_permissions(LVM, fs::Permissions::from_mode(0o755)).unwrap();

    let _node = Node::new(&format!("lvm-command-prefix: [{LVM}]\n{CLASSES}"));
    for (name, attempt, _) in ATTEMPTS {
        let tried = run("sh", &["-c", attempt]);
        assert!(tried.status.success(), "root cannot {name}: {}", String::from_utf8_lossy(&tried.stderr));
    }
    create("thin", "v").unwrap();
    let done = fs::read_to_string("/run/attempts").unwrap();
    let wanted: Vec<&str> = ATTEMPTS.iter().filter(|(_, _, may)| *may).map(|(name, ..)| *name).collect();
    assert_eq!(done.lines().collect::<Vec<_>>(), wanted);
    assert!(!Path::new("/tmp/attempt").exists(), "its /tmp is its own");

    let status = fs::read_to_string("/run/attempts.status").unwrap();
    let has = |line: &str| status.lines().any(|other| other.split_whitespace().eq(line.split_whitespace()));
    assert!(has("NoNewPrivs: 1") && has("Seccomp: 2"), "{status}");
    let bounds = run_ok("systemctl", &["show", "--property=CapabilityBoundingSet", "--value", "lvmd"]);
    assert_eq!(bounds.split_whitespace().count(), 8, "{bounds}");
    let allowed = |status: &str| {
        let bits = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
        u64::from_str_radix(bits.trim(), 16).unwrap().count_ones()
    };
    let own = fs::read_to_string(main_process_file("status")).unwrap();
    assert_eq!([allowed(&status), allowed(&own)], [8, 8]);
    let settings =
        ["ProtectSystem", "ProtectHome", "PrivateTmp", "ProtectProc", "MemoryDenyWriteExecute"].map(property);
    assert_eq!(settings, ["strict", "yes", "yes", "invisible", "yes"]);
}

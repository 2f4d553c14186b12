//! Thin device classes of lvmd.

use std::time::Duration;

use futures::future::join_all;
use tonic::Code;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{CreateLvRequest, Empty};

use crate::daemon::{Client, Lvmd, SOCKET, code, signed};
use crate::fixture::{EXTENT, Groups, MIB, run, run_ok, wait};
use crate::snapshot::snapshot;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("lvmd_overprovisions_a_thin_pool_up_to_the_ratio", overprovisions_as_configured),
    ("lvmd_keeps_the_overprovision_ratio_with_parallel_clients", gives_parallel_clients_no_more),
    ("lvmd_keeps_thin_and_thick_classes_of_one_group_apart", keeps_classes_apart),
    ("lvmd_removes_thin_origins_and_keeps_external_ones", removes_thin_origins_and_keeps_external_ones),
    ("lvmd_reports_thin_pool_usage_to_watchers", reports_pool_usage),
    ("lvmd_reports_a_thin_pool_without_data_space_to_watchers", reports_a_pool_without_space),
    ("lvmd_creates_nothing_in_a_full_thin_pool", creates_nothing_in_a_full_pool),
    ("lvmd_keeps_to_the_threshold_of_lvm_conf_for_thin_pools", keeps_to_the_threshold),
    ("lvmd_refuses_to_start_without_its_thin_pool", refuses_to_start_without_its_pool),
];

/// Configuration with a pool of 128 MiB that is overprovisioned to 640 MiB, one of 64 MiB without overprovisioning, and
/// the rest of the group.
pub(crate) const CLASSES: &str = "
device-classes:
  - {name: thin, volume-group: myvg1, default: true,
     spare-gb: 0, type: thin, thin-pool: {name: pool, overprovision-ratio: 5.0}}
  - {name: exact, volume-group: myvg1, spare-gb: 0, type: thin, thin-pool: {name: pool2, overprovision-ratio: 1}}
  - {name: thick, volume-group: myvg1, spare-gb: 0}
";

pub(crate) fn pools() -> Groups {
    let groups = Groups::one();
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool", "-L128m"]);
    run_ok("lvcreate", &["-qy", "-T", "myvg1/pool2", "-L64m"]);
    groups
}

pub(crate) fn request(class: &str, name: &str, bytes: u64) -> CreateLvRequest {
    CreateLvRequest {
        name: name.to_owned(),
        device_class: class.to_owned(),
        size_bytes: signed(bytes),
        ..CreateLvRequest::default()
    }
}

fn overprovisions_as_configured() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        assert_eq!(client.free().await, 640 * MIB);
        let created = client.create("a", 400 * MIB + 4096).await.unwrap();
        assert_eq!((created.size_bytes, &created.attr[..1]), (signed(400 * MIB + EXTENT), "V"), "{created:?}");
        assert_eq!(run_ok("lvs", &["--noheadings", "-o", "pool_lv", "myvg1/a"]).trim(), "pool");
        assert_eq!(client.create("a", 400 * MIB + 4096).await.unwrap(), created, "again is success");

        assert_eq!(code(client.create("b", 240 * MIB).await), Code::ResourceExhausted);
        assert_eq!(code(client.resize("a", 640 * MIB + 1).await), Code::ResourceExhausted);
        assert_eq!(client.resize("a", 640 * MIB).await.unwrap(), signed(640 * MIB));
        assert_eq!(client.free().await, 0);
        assert_eq!(code(client.create("b", 4096).await), Code::ResourceExhausted);

        client.remove("thin", "a").await.unwrap();
        assert_eq!(client.free().await, 640 * MIB);
        assert_eq!(code(client.remove("thin", "a").await), Code::NotFound);
    });
}

fn gives_parallel_clients_no_more() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let names: Vec<_> = (0..50).map(|number| format!("v{number}")).collect();
        let results = join_all(names.iter().map(|name| client.create(name, 40 * MIB))).await;
        let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(made.len(), 16, "640 MiB in pieces of 40");
        assert!(refused.into_iter().all(|result| code(result) == Code::ResourceExhausted));
        assert_eq!((client.list().await.len(), client.free().await), (16, 0));
    });
}

fn keeps_classes_apart() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        for class in ["thin", "exact", "thick"] {
            client.create_with(request(class, class, 16 * MIB)).await.unwrap();
        }
        for class in ["thin", "exact", "thick"] {
            for name in ["thin", "exact", "thick"].into_iter().filter(|name| *name != class) {
                assert_eq!(code(client.remove(class, name).await), Code::FailedPrecondition, "{class} {name}");
                let creation = client.create_with(request(class, name, 16 * MIB)).await;
                assert_eq!(code(creation), Code::AlreadyExists, "{class} {name}");
            }
            assert_eq!(code(client.remove(class, "pool").await), Code::FailedPrecondition);
        }
        let names: Vec<_> = client.list().await.into_iter().map(|volume| volume.name).collect();
        assert_eq!(names, ["thin"]);
        for class in ["thin", "exact", "thick"] {
            client.remove(class, class).await.unwrap();
        }
    });
}

fn removes_thin_origins_and_keeps_external_ones() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        client.create("a", 16 * MIB).await.unwrap();
        run_ok("lvcreate", &["-qy", "-s", "-n", "of-thin", "myvg1/a"]);
        client.remove("thin", "a").await.unwrap();
        assert!(run("lvs", &["myvg1/of-thin"]).status.success());

        client.create_with(request("thick", "b", 16 * MIB)).await.unwrap();
        run_ok("lvchange", &["-qan", "myvg1/b"]);
        run_ok("lvchange", &["-q", "-pr", "myvg1/b"]);
        run_ok("lvcreate", &["-qy", "-s", "-n", "of-thick", "--thinpool", "myvg1/pool", "myvg1/b"]);
        assert_eq!(code(client.remove("thick", "b").await), Code::FailedPrecondition);
        assert!(run("lvs", &["myvg1/of-thick"]).status.success());
        client.remove("thin", "of-thick").await.unwrap();
        client.remove("thick", "b").await.unwrap();
    });
}

fn reports_pool_usage() {
    let _groups = pools();
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let created = client.create("a", 64 * MIB).await.unwrap();
        run_ok("dd", &["if=/dev/urandom", &format!("of={}", created.path), "bs=1M", "count=32", "oflag=direct"]);
        let mut watch = VgServiceClient::new(client.0.clone()).watch(Empty {}).await.unwrap().into_inner();
        // Writing changes no metadata of LVM's, and is noticed all the same.
        let mut message = watch.message().await.unwrap().unwrap();
        while message.items.first().unwrap().thin_pool.as_ref().unwrap().data_percent < 24.0 {
            let next = tokio::time::timeout(Duration::from_secs(10), watch.message());
            message = next.await.unwrap().unwrap().unwrap();
        }
        assert_eq!(message.free_bytes, 576 * MIB);
        let [thin, exact, thick] = &message.items[..] else { panic!("{message:?}") };
        assert_eq!((thin.free_bytes, thin.size_bytes), (thick.free_bytes, thick.size_bytes));
        assert_eq!(thick.thin_pool, None);
        let pool = thin.thin_pool.as_ref().unwrap();
        assert_eq!((pool.overprovision_bytes, pool.size_bytes), (576 * MIB, 128 * MIB));
        assert!((pool.data_percent - 25.0).abs() < 1.0, "{pool:?}");
        assert!(pool.metadata_percent > 0.0, "{pool:?}");
        assert_eq!(exact.thin_pool.as_ref().unwrap().overprovision_bytes, 64 * MIB);
    });
}

fn reports_a_pool_without_space() {
    let _groups = pools();
    // Fail at once, instead of after a minute without an extension
    run_ok("lvchange", &["-qy", "--errorwhenfull", "y", "myvg1/pool"]);
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let created = client.create("a", 160 * MIB).await.unwrap();
        let mut watch = VgServiceClient::new(client.0.clone()).watch(Empty {}).await.unwrap().into_inner();
        let written =
            run("dd", &["if=/dev/zero", &format!("of={}", created.path), "bs=1M", "count=160", "oflag=direct"]);
        assert!(!written.status.success(), "{written:?}");
        let reported = async {
            loop {
                let message = watch.message().await.unwrap().unwrap();
                let attr = &message.items.first().unwrap().thin_pool.as_ref().unwrap().attr;
                // lvs(8), volume health of thin pools: out of (D)ata space
                if attr.starts_with('t') && attr.chars().nth(8) == Some('D') {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), reported).await.unwrap();
    });
}

fn refuses_to_start_without_its_pool() {
    let _groups = Groups::one();
    let messages = Lvmd::refusal(CLASSES);
    let sentence = "lvmd: device class \"thin\": there is no thin pool myvg1/pool; \
                    create it with `lvcreate -T myvg1/pool -L SIZE`";
    assert!(messages.iter().any(|line| line.starts_with(sentence)), "{messages:?}");
}

/// Waits until the available virtual bytes of the default class, which is the first, satisfy a condition, and checks
/// that the free bytes of the same message are equal.
async fn until_available(client: &Client, is_it: impl Fn(u64) -> bool) {
    let mut watch = client.watch().await;
    let reported = async {
        loop {
            let message = watch.message().await.unwrap().unwrap();
            let available = message.items.first().unwrap().thin_pool.as_ref().unwrap().overprovision_bytes;
            assert_eq!(message.free_bytes, available);
            if is_it(available) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reported).await.unwrap();
}

fn creates_nothing_in_a_full_pool() {
    let _groups = pools();
    run_ok("lvchange", &["-qy", "--errorwhenfull", "y", "myvg1/pool"]);
    let lvmd = Lvmd::start(CLASSES);
    wait(async {
        let client = lvmd.connect().await;
        let created = client.create("a", 160 * MIB).await.unwrap();
        run("dd", &["if=/dev/zero", &format!("of={}", created.path), "bs=1M", "count=160", "oflag=direct"]);
        until_available(&client, |available| available == 0).await;
        // LVM refuses as well.
        assert!(!run("lvcreate", &["-qy", "-V16m", "-T", "myvg1/pool", "-n", "x"]).status.success());
        for refused in [client.create("b", 16 * MIB).await, client.snapshot(snapshot("s", "a", "rw", 0)).await] {
            let status = refused.unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("`lvextend -L +SIZE myvg1/pool`"), "{status}");
        }
        // By hand or by dmeventd.
        run_ok("lvextend", &["-qy", "-L+128m", "myvg1/pool"]);
        until_available(&client, |available| available == 5 * 256 * MIB - 160 * MIB).await;
        client.create("b", 16 * MIB).await.unwrap();
    });
}

fn keeps_to_the_threshold() {
    let _groups = pools();
    // All of the guest's own configuration, with one setting more.
    let dir = tempfile::tempdir().unwrap();
    let system_dir = dir.path().join("lvm");
    let path = system_dir.to_str().unwrap();
    run_ok("cp", &["-r", "/etc/lvm", path]);
    let conf = system_dir.join("lvm.conf");
    let section = "\nactivation {\n";
    let text = std::fs::read_to_string(&conf).unwrap();
    assert!(text.contains(section), "{text}");
    std::fs::write(&conf, text.replace(section, &format!("{section}thin_pool_autoextend_threshold = 50\n"))).unwrap();
    let lvmd = Lvmd::start_by(&["env", &format!("LVM_SYSTEM_DIR={path}")], SOCKET, CLASSES, |_| {});
    wait(async {
        let client = lvmd.connect().await;
        let created = client.create("a", 120 * MIB).await.unwrap();
        let write = |mib: u64, skip: u64| {
            let (count, seek) = (format!("count={mib}"), format!("seek={skip}"));
            run_ok("dd", &["if=/dev/zero", &format!("of={}", created.path), "bs=1M", &count, &seek, "oflag=direct"]);
        };
        write(48, 0);
        client.create("b", 16 * MIB).await.unwrap();
        write(32, 48);
        until_available(&client, |available| available == 0).await;
        assert_eq!(code(client.create("c", 16 * MIB).await), Code::ResourceExhausted);
        run_ok("lvextend", &["-qy", "-L+128m", "myvg1/pool"]);
        until_available(&client, |available| available == 5 * 256 * MIB - 136 * MIB).await;
        client.create("c", 16 * MIB).await.unwrap();
    });
}

//! Kills lvmd while it creates several volumes together: finished volumes are complete, and nothing else stays.

use std::fs;
use std::time::Duration;

use futures::future::join_all;
use topolvm_proto::lvmd::Empty;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;

use crate::crash::{Killer, exists, tags};
use crate::daemon::signed;
use crate::fixture::{MIB, wait};
use crate::thin::{pools, request};

pub(crate) const TESTS: &[(&str, fn())] =
    &[("lvmd_killed_in_a_burst_keeps_only_finished_volumes", keeps_only_finished_volumes)];

/// The first is created separately, the others together.
const NAMES: [&str; 4] = ["first", "a", "b", "late"];
/// Moments at which lvmd is killed, and true for those that leave unfinished volumes.
const KILLS: &[(&str, bool)] = &[
    ("before lvcreate-late", true),
    ("after lvcreate-late", true),
    ("before lvchange-several", true),
    ("after lvchange-several", false),
];

fn keeps_only_finished_volumes() {
    let _groups = pools();
    let killer = Killer::new();
    for &(when, leaves_unfinished) in KILLS {
        wait(kill_in_burst(&killer, when, leaves_unfinished));
    }
}

async fn kill_in_burst(killer: &Killer, when: &str, leaves_unfinished: bool) {
    let lvmd = killer.start();
    fs::write(killer.plan(), when).unwrap();
    let client = lvmd.connect().await;
    let created = join_all(NAMES.map(|name| client.create_with(request("thick", name, 16 * MIB)))).await;
    assert!(!killer.plan().exists() && created.iter().any(Result::is_err), "{when}: {created:?}");
    drop(lvmd);

    let is_unfinished = |name: &&&str| tags(name).contains("topolvm.io/making=");
    let unfinished: Vec<_> = NAMES.iter().filter(is_unfinished).collect();
    assert_eq!(!unfinished.is_empty(), leaves_unfinished, "{when}: {unfinished:?}");
    for (name, _) in NAMES.iter().zip(&created).filter(|(_, created)| created.is_ok()) {
        assert!(exists(name) && !unfinished.contains(&name), "{when}: {name} was acknowledged");
    }

    let lvmd = killer.start();
    let client = lvmd.connect().await;
    let mut watch = VgServiceClient::new(client.0.clone()).watch(Empty {}).await.unwrap().into_inner();
    let gone = async {
        while unfinished.iter().any(|name| exists(name)) {
            watch.message().await.unwrap().unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    for made in join_all(NAMES.map(|name| client.create_with(request("thick", name, 16 * MIB)))).await {
        let made = made.unwrap();
        let seen = tags(&made.name);
        assert!(seen.contains("topolvm.io/managed-by=lvmd") && !seen.contains("making"), "{when}: {seen}");
        assert_eq!(made.size_bytes, signed(16 * MIB), "{when}");
        client.remove("thick", &made.name).await.unwrap();
    }
}

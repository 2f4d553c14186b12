//! Mode and owner of a fresh volume, and of the files that pods write.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, pod};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 2] = [
        ("non_root_pod_writes_files_that_belong_to_its_fs_group", write_as_users),
        ("root_directory_mode_set_by_a_pod_is_kept_for_the_next", change_mode),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Runs pods of two users: for one of them kubelet gives the volume to a group, the other has only the mode of the root
/// directory.
fn write_as_users(fixture: &Fixture) -> Result<()> {
    let users = [
        ("alone", json!({"runAsUser": 1000, "runAsGroup": 1000}), "2777 0", "1000 0"),
        ("group", json!({"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}), "2777 2000", "1000 2000"),
    ];
    for (name, user, ..) in &users {
        fixture.apply_claim(name, "waiting", "64Mi")?;
        fixture.apply(&pod_with_user(name, user))?;
    }
    for (name, _, directory, file) in users {
        fixture.wait_ready(name)?;
        let found = fixture.exec_in_pod(name, "stat -c '%a %g' /data")?;
        ensure!(found.trim() == directory, "{name}: mode and group of the root directory are {found}");
        fixture.write_word(name, "mine")?;
        let found = fixture.exec_in_pod(name, "stat -c '%u %g' /data/file")?;
        ensure!(found.trim() == file, "{name}: user and group of the file are {found}");
        fixture.delete_pod_and_claim(name)?;
    }
    fixture.check_volumes(0)
}

/// Changes the mode of the root directory, which must stay for the next pod.
fn change_mode(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("closed", "waiting", "64Mi")?;
    fixture.start_pod("closed", VolumeMode::Filesystem)?;
    let found =
        fixture.exec_in_pod("closed", "stat -c '%a %u:%g' /data && chmod 0755 /data && chmod g-s /data && sync")?;
    ensure!(found.trim() == "2777 0:0", "a new root directory has mode and owner {found}");
    for _ in 0..2 {
        fixture.delete_pod("closed")?;
        fixture.start_pod("closed", VolumeMode::Filesystem)?;
        let found = fixture.exec_in_pod("closed", "stat -c '%a %u:%g' /data")?;
        ensure!(found.trim() == "755 0:0", "the next pod finds mode and owner {found}");
    }
    fixture.delete_pod_and_claim("closed")?;
    fixture.check_volumes(0)
}

fn pod_with_user(name: &str, user: &Value) -> Value {
    let mut pod = pod(name, name, VolumeMode::Filesystem);
    pod["spec"]["securityContext"] = user.clone();
    pod
}

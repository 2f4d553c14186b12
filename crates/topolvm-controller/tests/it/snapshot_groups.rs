//! CreateVolumeGroupSnapshot, GetVolumeGroupSnapshot and DeleteVolumeGroupSnapshot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tonic::{Code, Status};
use topolvm_proto::csi::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    ListSnapshotsRequest, VolumeGroupSnapshot,
};

use crate::agent::Agent;
use crate::harness::{GIB, Harness, LVS, in_ten_seconds, on_nodes, refusal, settings, volume};

/// A controller with an agent, and the ids of two volumes on node n1.
async fn with_volumes() -> (Harness, String, String) {
    let harness = Harness::with_agent().await;
    let (one, two) = (harness.made("pvc-1").await, harness.made("pvc-2").await);
    (harness, one, two)
}

async fn create(harness: &Harness, name: &str, sources: &[&str]) -> Result<VolumeGroupSnapshot, Status> {
    let request = CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(|&source| source.to_owned()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let answer = harness.groups.clone().create_volume_group_snapshot(in_ten_seconds(request)).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

async fn get(harness: &Harness, id: &str, listed: &[String]) -> Result<VolumeGroupSnapshot, Status> {
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: listed.to_vec(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let answer = harness.groups.clone().get_volume_group_snapshot(in_ten_seconds(request)).await?;
    Ok(answer.into_inner().group_snapshot.unwrap())
}

async fn delete(harness: &Harness, id: &str, listed: &[String]) -> Result<(), Status> {
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: listed.to_vec(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    harness.groups.clone().delete_volume_group_snapshot(in_ten_seconds(request)).await.map(drop)
}

fn ids(group: &VolumeGroupSnapshot) -> Vec<String> {
    group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect()
}

/// Waits until the cluster has only these objects.
async fn until_objects(harness: &Harness, expected: &[&str]) {
    let mut changes = harness.api.subscribe(LVS);
    loop {
        let objects = harness.api.list_json(LVS);
        let mut names: Vec<_> = objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        if names == expected {
            return;
        }
        changes.next().await;
    }
}

#[tokio::test(start_paused = true)]
async fn group_has_a_snapshot_of_each_volume() {
    let (harness, one, two) = with_volumes().await;
    let group = create(&harness, "Group-1", &[&one, &two]).await.unwrap();
    assert_eq!((group.group_snapshot_id.as_str(), group.ready_to_use), ("group-1", true));
    assert_eq!(group.creation_time, group.snapshots[0].creation_time);
    let mut sources = [one, two];
    sources.sort();
    for (number, (snapshot, source)) in group.snapshots.iter().zip(&sources).enumerate() {
        let object = harness.object(&format!("group-1-{number}"));
        let annotations = json!({
            "topolvm.io/source-volume-id": source,
            "topolvm.io/snapshot-group": "group-1",
            "topolvm.io/snapshot-group-size": "2",
        });
        assert_eq!(object["metadata"]["annotations"], annotations);
        assert_eq!(object["spec"]["accessType"], "ro");
        assert_eq!(snapshot.snapshot_id, object["metadata"]["uid"]);
        assert_eq!((&snapshot.source_volume_id, snapshot.group_snapshot_id.as_str()), (source, "group-1"));
    }
    assert_eq!(group.snapshots.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn group_is_taken_once_and_found_in_any_order_of_its_volumes() {
    let (harness, one, two) = with_volumes().await;
    let group = create(&harness, "group-1", &[&one, &two]).await.unwrap();
    assert_eq!(create(&harness, "group-1", &[&two, &one]).await.unwrap(), group);
    assert_eq!(get(&harness, "group-1", &[]).await.unwrap(), group);
    harness.delete(&one).await.unwrap();
    assert_eq!(create(&harness, "group-1", &[&one, &two]).await.unwrap(), group, "a source is gone");
}

#[tokio::test(start_paused = true)]
async fn group_of_other_volumes_with_the_same_name_is_refused() {
    let (harness, one, two) = with_volumes().await;
    let three = harness.made("pvc-3").await;
    let group = create(&harness, "group-1", &[&one, &two]).await.unwrap();
    for sources in [vec![&one], vec![&one, &three], vec![&one, &two, &three]] {
        let sources: Vec<_> = sources.into_iter().map(String::as_str).collect();
        assert_eq!(refusal(create(&harness, "group-1", &sources).await).0, Code::AlreadyExists, "{sources:?}");
    }
    assert_eq!(get(&harness, "group-1", &[]).await.unwrap(), group);
    until_objects(&harness, &["group-1-0", "group-1-1", "pvc-1", "pvc-2", "pvc-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn group_of_volumes_on_two_nodes_is_refused() {
    let (harness, one, _) = with_volumes().await;
    let far = harness.create(on_nodes(volume("pvc-far"), &["n2"])).await.unwrap().volume_id;
    let (code, message) = refusal(create(&harness, "group-1", &[&one, &far]).await);
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.contains(&format!("{one} on node n1; {far} on node n2")), "{message}");
    until_objects(&harness, &["pvc-1", "pvc-2", "pvc-far"]).await;
}

#[tokio::test(start_paused = true)]
async fn group_of_a_volume_that_does_not_exist_is_refused() {
    let (harness, one, _) = with_volumes().await;
    assert_eq!(refusal(create(&harness, "group-1", &[&one, "gone"]).await).0, Code::NotFound);
    until_objects(&harness, &["pvc-1", "pvc-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn group_that_an_agent_has_not_taken_together_is_refused() {
    let harness = Harness::new().await;
    harness.start(&Agent::without_groups(100 * GIB));
    let (one, two) = (harness.made("pvc-1").await, harness.made("pvc-2").await);
    let (code, message) = refusal(create(&harness, "group-1", &[&one, &two]).await);
    assert_eq!((code, message.contains("upgrade topolvm-node")), (Code::FailedPrecondition, true), "{message}");
    until_objects(&harness, &["pvc-1", "pvc-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn group_of_which_a_snapshot_fails_leaves_no_other() {
    let harness = Harness::new().await;
    harness.start(&Agent::with_free(3 * GIB));
    let (one, two) = (harness.made("pvc-1").await, harness.made("pvc-2").await);
    assert_eq!(refusal(create(&harness, "group-1", &[&one, &two]).await).0, Code::ResourceExhausted);
    until_objects(&harness, &["pvc-1", "pvc-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn group_is_deleted_with_all_snapshots_and_only_as_a_whole() {
    let (harness, one, two) = with_volumes().await;
    let group = create(&harness, "group-1", &[&one, &two]).await.unwrap();
    let (code, message) = refusal(harness.delete_snapshot(&group.snapshots[0].snapshot_id).await);
    assert_eq!((code, message.contains("group of snapshots group-1")), (Code::InvalidArgument, true), "{message}");
    let marked = Arc::new(AtomicBool::new(false));
    let found = Arc::clone(&marked);
    harness.api.before_next("delete", LVS, move |api| {
        let is_marked =
            |object: &Value| object["metadata"]["annotations"]["topolvm.io/snapshot-group-deleted"] == "true";
        found.store(api.list_json(LVS).iter().any(is_marked), Ordering::Relaxed);
    });
    delete(&harness, "group-1", &ids(&group)).await.unwrap();
    assert!(marked.load(Ordering::Relaxed), "the agents would keep the snapshots for their contents");
    assert_eq!(harness.object("group-1-0"), Value::Null);
    assert_eq!(harness.object("group-1-1"), Value::Null);
    delete(&harness, "group-1", &ids(&group)).await.unwrap();
    assert_eq!(refusal(get(&harness, "group-1", &[]).await).0, Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn group_with_another_list_of_snapshots_is_refused() {
    let (harness, one, two) = with_volumes().await;
    let group = create(&harness, "group-1", &[&one, &two]).await.unwrap();
    let other = harness.snapshot("snapshot-1", &one).await.unwrap().snapshot_id;
    let [first, second] = ids(&group).try_into().unwrap();
    for listed in [vec![first.clone()], vec![first.clone(), second.clone(), other]] {
        assert_eq!(refusal(get(&harness, "group-1", &listed).await).0, Code::InvalidArgument, "{listed:?}");
        assert_eq!(refusal(delete(&harness, "group-1", &listed).await).0, Code::InvalidArgument, "{listed:?}");
    }
    assert_eq!(get(&harness, "group-1", &[second, first]).await.unwrap(), group);
}

#[tokio::test(start_paused = true)]
async fn group_that_lacks_a_snapshot_is_not_found_and_can_be_deleted() {
    let (harness, one, two) = with_volumes().await;
    let group = create(&harness, "group-1", &[&one, &two]).await.unwrap();
    harness.api.delete(LVS, "", "group-1-0");
    until_objects(&harness, &["group-1-1", "pvc-1", "pvc-2"]).await;
    assert_eq!(refusal(get(&harness, "group-1", &[]).await).0, Code::NotFound);
    delete(&harness, "group-1", &ids(&group)).await.unwrap();
    assert_eq!(harness.object("group-1-1"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn group_of_a_snapshot_is_in_lists() {
    let (harness, one, two) = with_volumes().await;
    create(&harness, "group-1", &[&one, &two]).await.unwrap();
    harness.snapshot("snapshot-1", &one).await.unwrap();
    let answer = harness.csi.clone().list_snapshots(ListSnapshotsRequest::default()).await.unwrap().into_inner();
    let groups = answer.entries.into_iter().map(|entry| entry.snapshot.unwrap().group_snapshot_id);
    assert_eq!(groups.collect::<Vec<_>>(), ["group-1", "group-1", ""]);
}

#[tokio::test(start_paused = true)]
async fn group_is_refused_while_snapshots_are_disabled() {
    let harness = Harness::configured(topolvm_controller::DriverSettings { snapshots: false, ..settings() }).await;
    harness.start(&Agent::with_free(100 * GIB));
    let one = harness.made("pvc-1").await;
    let (code, message) = refusal(create(&harness, "group-1", &[&one]).await);
    assert_eq!((code, message.contains("--enable-snapshots")), (Code::InvalidArgument, true), "{message}");
}

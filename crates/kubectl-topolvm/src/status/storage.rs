//! The part of `status` about thin pools, disks and what is wrong with them, from the NodeStorage objects.

use cli_runtime::connection::Cluster;
use cli_runtime::request::{self, RequestError, RequestResult};
use cli_runtime::size::human;
use cli_runtime::table::table;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use topolvm_api::{EvacuationStatus, NodeStorage, PhysicalVolumeStatus, ThinPoolStatus, parse_bytes};

/// A thin pool of a node.
struct PoolRow<'a> {
    node: &'a str,
    pool: &'a ThinPoolStatus,
}

/// A disk of a node.
struct DiskRow<'a> {
    node: &'a str,
    group: &'a str,
    disk: &'a PhysicalVolumeStatus,
}

/// Lists the objects: none where the API server does not know them, because the manifests are older.
pub(super) async fn list(cluster: &Cluster) -> RequestResult<Vec<NodeStorage>> {
    let Cluster { client, flavor } = cluster;
    match request::list(&Api::<NodeStorage>::all_with(client.clone(), flavor), flavor, "").await {
        Err(RequestError::Absent { .. }) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Returns tables of thin pools and, if it is to be `wide`, of disks, and a line for each problem; an empty text if
/// there is none of these.
pub(super) fn describe(storage: &RequestResult<Vec<NodeStorage>>, wide: bool) -> String {
    let storage = match storage {
        Ok(storage) => storage,
        Err(error) => return format!("\nthin pools and disks are not shown: {error}\n"),
    };
    let pools: Vec<_> = storage.iter().flat_map(pools_of).collect();
    let disks: Vec<_> = storage.iter().filter(|_| wide).flat_map(disks_of).collect();
    let problems: String = storage.iter().flat_map(problems_of).collect();
    let mut text = String::new();
    if !pools.is_empty() {
        text.extend(["\n", &pool_table(&pools)]);
    }
    if !disks.is_empty() {
        text.extend(["\n", &disk_table(&disks)]);
    }
    if !problems.is_empty() {
        text.extend(["\n", &problems]);
    }
    text
}

fn pools_of(storage: &NodeStorage) -> impl Iterator<Item = PoolRow<'_>> {
    let pools = storage.status.iter().flat_map(|status| &status.thin_pools);
    pools.map(|pool| PoolRow { node: storage.name(), pool })
}

fn disks_of(storage: &NodeStorage) -> impl Iterator<Item = DiskRow<'_>> {
    let groups = storage.status.iter().flat_map(|status| &status.volume_groups);
    groups.flat_map(|group| {
        group.physical_volumes.iter().map(|disk| DiskRow { node: storage.name(), group: &group.name, disk })
    })
}

/// Returns a line for each problem, for each disk that is evacuated, and for a node whose lvmd does not answer.
fn problems_of(storage: &NodeStorage) -> impl Iterator<Item = String> {
    let unknown = storage.ready().filter(|ready| ready.status == "Unknown").map(|ready| ready.message.clone());
    let problems = storage.status.iter().flat_map(|status| status.problems.iter().cloned());
    let evacuations = disks_of(storage).filter_map(|row| {
        let evacuation = row.disk.evacuation.as_ref()?;
        let disk = if row.disk.path.is_empty() { &row.disk.uuid } else { &row.disk.path };
        // Why one is blocked is a problem of lvmd, which is among these
        Some(format!("{disk} of volume group {} is {}", row.group, format_evacuation(evacuation)))
    });
    let lines = unknown.into_iter().chain(problems).chain(evacuations);
    lines.map(|line| format!("{}: {line}\n", storage.name()))
}

fn pool_table(rows: &[PoolRow<'_>]) -> String {
    let percent = |part: Option<u32>| part.map(|part| format!("{part}%")).unwrap_or_default();
    table(
        rows,
        false,
        &[
            ("NODE", false, &|row| row.node.to_owned()),
            ("THIN POOL", false, &|row| format!("{}/{}", row.pool.volume_group, row.pool.name)),
            ("SIZE", false, &|row| format_size(row.pool.size.as_ref())),
            ("DATA", false, &|row| percent(row.pool.data_percent)),
            ("METADATA", false, &|row| percent(row.pool.metadata_percent)),
        ],
    )
}

fn disk_table(rows: &[DiskRow<'_>]) -> String {
    table(
        rows,
        false,
        &[
            ("NODE", false, &|row| row.node.to_owned()),
            ("VOLUME GROUP", false, &|row| row.group.to_owned()),
            ("DISK", false, &|row| row.disk.path.clone()),
            ("SIZE", false, &|row| format_size(row.disk.size.as_ref())),
            ("FREE", false, &|row| format_size(row.disk.free.as_ref())),
            ("STATE", false, &|row| format_state(row.disk)),
        ],
    )
}

fn format_size(size: Option<&Quantity>) -> String {
    size.and_then(|size| parse_bytes(size).ok()).map(human).unwrap_or_default()
}

fn format_state(disk: &PhysicalVolumeStatus) -> String {
    match (disk.missing, &disk.evacuation, disk.allocatable) {
        (true, ..) => "missing".to_owned(),
        (false, Some(evacuation), _) => format_evacuation(evacuation),
        (false, None, true) => "in use".to_owned(),
        (false, None, false) => "not allocatable".to_owned(),
    }
}

/// Formats an evacuation as `moving, 12Gi left`.
fn format_evacuation(evacuation: &EvacuationStatus) -> String {
    let left = evacuation.remaining.as_ref().and_then(|left| parse_bytes(left).ok()).filter(|left| *left > 0);
    let left = left.map(|left| format!(", {} left", human(left))).unwrap_or_default();
    format!("{}{left}", evacuation.state)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn storage() -> NodeStorage {
        serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {
                "volumeGroups": [{"name": "vg", "physicalVolumes": [
                    {"path": "/dev/sdb", "uuid": "a", "size": "10Gi", "free": "1Gi", "allocatable": true},
                    {"uuid": "b", "size": "10Gi", "free": "1Gi", "missing": true, "allocatable": false},
                    {"path": "/dev/sdd", "uuid": "c", "size": "10Gi", "free": "1Gi", "allocatable": false},
                ]}],
                "thinPools": [{"volumeGroup": "vg", "name": "pool", "size": "4Gi", "dataPercent": 61}],
                "problems": ["a disk is missing"],
            },
        }))
        .unwrap()
    }

    #[test]
    fn status_shows_pools_and_problems_and_disks_only_when_wide() {
        let narrow = "
NODE   THIN POOL   SIZE   DATA   METADATA
n1     vg/pool     4Gi    61%    -

n1: a disk is missing
";
        assert_eq!(describe(&Ok(vec![storage()]), false), narrow);
        let wide = describe(&Ok(vec![storage()]), true);
        let disks = "
NODE   VOLUME GROUP   DISK       SIZE   FREE   STATE
n1     vg             /dev/sdb   10Gi   1Gi    in use
n1     vg             -          10Gi   1Gi    missing
n1     vg             /dev/sdd   10Gi   1Gi    not allocatable
";
        assert!(wide.contains(disks), "{wide}");
    }

    #[test]
    fn evacuated_disks_are_listed() {
        let evacuated = serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {
                "volumeGroups": [{"name": "vg", "physicalVolumes": [
                    {"path": "/dev/sdb", "uuid": "a", "evacuation": {"state": "moving", "remaining": "3Gi"}},
                    {"path": "/dev/sdc", "uuid": "b", "evacuation": {"state": "blocked", "message": "no room"}},
                    {"path": "/dev/sdd", "uuid": "c", "evacuation": {"state": "empty", "remaining": "0"}},
                ]}],
            },
        }));
        let storage = Ok(vec![evacuated.unwrap()]);
        let expected = "
n1: /dev/sdb of volume group vg is moving, 3Gi left
n1: /dev/sdc of volume group vg is blocked
n1: /dev/sdd of volume group vg is empty
";
        assert_eq!(describe(&storage, false), expected);
        let wide = describe(&storage, true);
        assert!(wide.contains("n1     vg             /dev/sdb   -      -      moving, 3Gi left\n"), "{wide}");
    }

    #[test]
    fn status_shows_nothing_if_healthy_and_names_a_missing_right() {
        let healthy: NodeStorage = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        assert_eq!(describe(&Ok(vec![healthy]), false), "");
        let refused = RequestError::Forbidden { verb: "list", resource: "nodestorages.topolvm.io".to_owned() };
        let text = describe(&Err(refused), false);
        assert!(text.contains("not shown: you may not list nodestorages.topolvm.io"), "{text}");
    }

    #[test]
    fn lvmd_that_does_not_answer_is_reported() {
        let away: NodeStorage = serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {"conditions": [{
                "type": "Ready", "status": "Unknown", "reason": "LvmdUnavailable", "message": "no answer",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap();
        assert_eq!(describe(&Ok(vec![away]), false), "\nn1: no answer\n");
    }

    #[tokio::test]
    async fn an_api_server_that_does_not_know_them_has_none() {
        let server = topolvm_testkit::ApiServer::new();
        let cluster = Cluster { client: server.client(), flavor: topolvm_api::ApiFlavor::TopoLvm };
        server.apply_json(json!({
            "apiVersion": "topolvm.io/v1", "kind": "NodeStorage", "metadata": {"name": "n1"},
        }));
        assert_eq!(list(&cluster).await.unwrap().len(), 1);
        server.withdraw("nodestorages");
        assert_eq!(list(&cluster).await.unwrap(), []);
    }
}

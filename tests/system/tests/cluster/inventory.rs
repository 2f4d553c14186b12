//! The lists of volume groups and volumes of the agent and of the controller: their authorization, and their agreement
//! with LVM.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::{THIN_VG, manifests};

use crate::Body;
use crate::fixture::{Fixture, VG};

/// Names of fields in the lists and in LVM's reports.
type Fields = &'static [(&'static str, &'static str)];

const OF_GROUPS: Fields = &[
    ("vgName", "vg_name"),
    ("pvCount", "pv_count"),
    ("lvCount", "lv_count"),
    ("snapCount", "snap_count"),
    ("vgSize", "vg_size"),
    ("vgFree", "vg_free"),
];
const OF_DISKS: Fields = &[
    ("pvName", "pv_name"),
    ("vgName", "vg_name"),
    ("pvFmt", "pv_fmt"),
    ("pvAttr", "pv_attr"),
    ("pvSize", "pv_size"),
    ("pvFree", "pv_free"),
];
const OF_VOLUMES: Fields = &[
    ("lvName", "lv_name"),
    ("vgName", "vg_name"),
    ("lvPath", "lv_path"),
    ("lvSize", "lv_size"),
    ("lvKernelMajor", "lv_kernel_major"),
    ("lvKernelMinor", "lv_kernel_minor"),
    ("origin", "origin"),
    ("originSize", "origin_size"),
    ("poolLv", "pool_lv"),
    ("thinCount", "thin_count"),
    ("lvTags", "lv_tags"),
    ("dataPercent", "data_percent"),
    ("lvAttr", "lv_attr"),
    ("lvActive", "lv_active"),
];

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "inventory_lists_match_lvm_and_require_a_right";
    let body: Body = check_lists;
    vec![(name.to_owned(), body)]
}

fn check_lists(fixture: &Fixture) -> Result<()> {
    fixture.roll_out(&["inventory"])?;
    let checked = check_access(fixture);
    fixture.roll_out(&[])?;
    for file in ["rbac.yaml", "service.yaml"] {
        let path = manifests().join("components/inventory").join(file);
        fixture.kubectl(&["delete", "-f", &path.to_string_lossy()])?;
    }
    checked
}

fn check_access(fixture: &Fixture) -> Result<()> {
    for (claim, class) in [("listed", "immediate"), ("listed-thin", "thin-now")] {
        fixture.apply_claim(claim, class, "64Mi")?;
        fixture.wait_bound(claim)?;
    }
    fixture.node.script(&format!("lvcreate -y -L 8M -n foreign {VG}"))?;
    let account = |name: &str| fixture.kubectl(&["create", "serviceaccount", name]);
    let token = |name: &str, flags: &[&str]| -> Result<String> {
        Ok(fixture.kubectl(&[&["create", "token", name], flags].concat())?.trim().to_owned())
    };
    account("list-reader")?;
    account("list-stranger")?;
    fixture.apply(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "list-reader"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "topolvm-system:inventory-reader",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "list-reader", "namespace": "default"}],
    }))?;
    let reader = token("list-reader", &[])?;
    let (agent, controller) = (pod_address(fixture, "node")?, pod_address(fixture, "controller")?);

    let (groups, volumes) = fixture.cluster.ready("apiserver", || {
        let list = |path: &str| get_list(fixture, &agent, path, &reader);
        let (groups, volumes) = (list("/devicegroup")?, list("/volume")?);
        check_groups(fixture, &groups)?;
        check_volumes(fixture, &volumes)?;
        Ok((groups, volumes))
    })?;
    fixture.cluster.ready("apiserver", || {
        for (path, list) in [("/devicegroup", &groups), ("/volume", &volumes)] {
            let all = get_list(fixture, &controller, path, &reader)?;
            ensure!(all == json!({fixture.node.name(): list}), "the controller says of {path} {all:#}, not {list:#}");
        }
        Ok(())
    })?;

    let stranger = token("list-stranger", &[])?;
    // A token like that of the controller for agents
    let bound = token("list-reader", &["--audience=inventory.topolvm.io"])?;
    for address in [&agent, &controller] {
        let expect = |path: &str, token: &str, expected: u16| -> Result<()> {
            let (status, said) = get(fixture, address, path, token)?;
            ensure!(status == expected, "{address}{path} answers {status} and not {expected}: {said}");
            ensure!(status == 200 || said.starts_with("{\"error\":"), "{address}{path} says {said}");
            Ok(())
        };
        for path in ["/devicegroup", "/volume"] {
            expect(path, "", 401)?;
            expect(path, "made.up.token", 401)?;
            expect(path, &stranger, 403)?;
            expect(path, &bound, if *address == agent { 200 } else { 401 })?;
        }
        expect("/metrics", &reader, 404)?;
    }

    fixture.node.script(&format!("lvremove -y {VG}/foreign"))?;
    fixture.delete_claim("listed")?;
    fixture.delete_claim("listed-thin")?;
    fixture.kubectl(&["delete", "serviceaccount/list-reader", "serviceaccount/list-stranger"])?;
    fixture.kubectl(&["delete", "clusterrolebinding", "list-reader"])?;
    fixture.check_volumes(0)
}

/// Returns the address at which a pod of this component serves its lists.
fn pod_address(fixture: &Fixture, component: &str) -> Result<String> {
    let selector = format!("--selector=app.kubernetes.io/component={component}");
    let running = "--field-selector=status.phase=Running";
    let newest = ["--sort-by=.metadata.creationTimestamp", "-o", "jsonpath={.items[-1:].status.podIP}"];
    let ip = fixture.kubectl(&[&["get", "pods", "-n", NAMESPACE, &selector, running][..], &newest].concat())?;
    ensure!(!ip.is_empty(), "no pod of {component} runs");
    Ok(format!("https://{ip}:8443"))
}

/// Sends a request from the node. Returns the HTTP status, 0 without a response, and the body.
fn get(fixture: &Fixture, address: &str, path: &str, token: &str) -> Result<(u16, String)> {
    let authorization = if token.is_empty() { String::new() } else { format!("-H 'Authorization: Bearer {token}'") };
    let curl = format!("curl -sk -m 20 -w '\\n%{{http_code}}' {authorization} {address}{path} || true");
    let text = fixture.node.script(&curl)?;
    let (said, status) = text.trim_end().rsplit_once('\n').context("curl says nothing")?;
    Ok((status.parse().context("no HTTP status")?, said.to_owned()))
}

fn get_list(fixture: &Fixture, address: &str, path: &str, token: &str) -> Result<Value> {
    let (status, said) = get(fixture, address, path, token)?;
    ensure!(status == 200, "{address}{path} answers {status}: {said}");
    serde_json::from_str(&said).with_context(|| format!("{address}{path} says {said}"))
}

fn check_groups(fixture: &Fixture, groups: &Value) -> Result<()> {
    let groups = groups.as_array().context("no array")?;
    let names: Vec<_> = groups.iter().filter_map(|group| group["vgName"].as_str()).collect();
    ensure!(names.contains(&VG) && names.contains(&THIN_VG), "the volume groups are {names:?}");
    let (vgs, disks) = (report(fixture, "vgs", "vg", OF_GROUPS)?, report(fixture, "pvs", "pv", OF_DISKS)?);
    for group in groups {
        let name = group["vgName"].as_str().context("no name")?;
        compare(group, &vgs, OF_GROUPS)?;
        let pvs = group["pvs"].as_array().context("no disks")?;
        let count = disks.iter().filter(|disk| disk["vg_name"] == name).count();
        ensure!(pvs.len() == count && pvs.iter().any(|pv| pv["pvName"] == group["pvName"]), "disks of {group:#}");
        pvs.iter().try_for_each(|pv| compare(pv, &disks, OF_DISKS))?;
    }
    Ok(())
}

fn check_volumes(fixture: &Fixture, volumes: &Value) -> Result<()> {
    let volumes_of_lvm = report(fixture, "lvs", "lv", OF_VOLUMES)?;
    ensure!(volumes_of_lvm.iter().any(|lv| lv["lv_name"] == "foreign"), "LVM does not report the foreign volume");
    let ids = fixture.kubectl(&["get", "logicalvolumes.topolvm.io", "-o", "jsonpath={.items[*].status.volumeID}"])?;
    let mut ids: Vec<_> = ids.split_whitespace().collect();
    ids.sort_unstable();
    let volumes = volumes.as_array().context("no array")?;
    let names: Vec<_> = volumes.iter().filter_map(|volume| volume["lvName"].as_str()).collect();
    ensure!(names == ids && ids.len() == 2, "listed are {names:?}, and the LogicalVolumes have {ids:?}");
    volumes.iter().try_for_each(|volume| compare(volume, &volumes_of_lvm, OF_VOLUMES))
}

/// Returns the rows of a report of LVM.
fn report(fixture: &Fixture, command: &str, rows: &str, fields: Fields) -> Result<Vec<Map<String, Value>>> {
    let fields: Vec<_> = fields.iter().map(|(_, field)| *field).collect();
    let report = format!("{command} --reportformat json --units b --nosuffix -o {}", fields.join(","));
    let report: Value = serde_json::from_str(&fixture.node.script(&report)?).context("LVM's report is no JSON")?;
    Ok(serde_json::from_value(report["report"][0][rows].clone())?)
}

/// Compares an entry of a list with the row of LVM's report that has the same first field. LVM writes numbers as texts,
/// and none as an empty one.
fn compare(entry: &Value, report: &[Map<String, Value>], fields: Fields) -> Result<()> {
    let (name, named) = fields.first().context("no fields")?;
    let row = report.iter().find(|row| row[*named] == entry[*name]);
    let row = row.with_context(|| format!("LVM has nothing of this name: {entry:#}"))?;
    for (field, of_lvm) in fields {
        let value = &entry[*field];
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let expected = row[*of_lvm].as_str().context("LVM writes everything as text")?;
        let is_same = shown == expected || (value == 0 && expected.is_empty());
        ensure!(is_same, "{field} is {shown:?}, and LVM says {expected:?} of {entry:#}");
    }
    Ok(())
}

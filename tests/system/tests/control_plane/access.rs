//! Requests that the service accounts may send, and above all those that are refused.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::topolvm::{self, CONTROLLER, NODE, account_token};

use crate::Body;
use crate::fixture::{Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("a_node_agents_token_changes_nothing_of_another_node", use_stolen_token),
    ("agent_changes_only_its_own_resources_in_node_status", use_status),
    ("a_token_that_names_no_node_changes_nothing", use_unbound_token),
    ("topolvm_agents_keep_working_after_our_roles_replace_theirs", apply_over_topolvm),
    ("the_service_accounts_can_do_nothing_else", check_refused_verbs),
    ("controller_role_covers_sidecars_and_topolvms_controller", check_granted_verbs),
    ("controller_token_runs_nothing_on_nodes", use_controllers_token),
    ("people_and_kubectl_find_volumes_by_their_short_name", use_short_name),
];

/// Patches that an agent sends for its own objects, and a thief of its token for those of others.
const CAPACITY: &str = r#"{"metadata":{"annotations":
    {"capacity.topolvm.io/00default":"1","topolvm.io/lvcreate-option-class-capacity":"{}"}}}"#;
const TOPOLOGY: &str =
    r#"{"metadata":{"labels":{"topology.topolvm.io/node":"mine","topology.topolvm.cybozu.com/node":"mine"}}}"#;
const NO_OPTION_CLASSES: &str = r#"{"metadata":{"annotations":{"topolvm.io/lvcreate-option-class-capacity":null}}}"#;
const FINALIZER: &str =
    r#"{"metadata":{"finalizers":["topolvm.io/logicalvolume"],"labels":{"app.kubernetes.io/created-by":"x"}}}"#;
const SIZE: &str = r#"{"status":{"currentSize":"1Gi"}}"#;
/// Patches that are refused even to an object's own agent.
const LABEL: &str = r#"{"metadata":{"labels":{"steers":"pods"}}}"#;
const OTHER_TOPOLOGY: &str = r#"{"metadata":{"labels":{"topology.topolvm.io/node":"yours"}}}"#;
const NO_TOPOLOGY: &str = r#"{"metadata":{"labels":{"topology.topolvm.io/node":null}}}"#;
const ANNOTATION: &str =
    r#"{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true"}}}"#;
const TAINTS: &str = r#"{"spec":{"unschedulable":true}}"#;
const MOVE: &str = r#"{"spec":{"nodeName":"mine"}}"#;
const OWNER: &str = r#"{"metadata":{"ownerReferences":[
    {"apiVersion":"v1","kind":"Node","name":"gone","uid":"00000000-0000-0000-0000-000000000000"}]}}"#;
const OTHER_FINALIZER: &str =
    r#"{"metadata":{"finalizers":["topolvm.io/node","topolvm.io/logicalvolume","example.com/x"]}}"#;
const NO_FINALIZERS: &str = r#"{"metadata":{"finalizers":[]}}"#;
const GROW: &str = r#"{"spec":{"size":"1Ti"}}"#;

fn use_stolen_token(fixture: &Fixture) -> Result<()> {
    for (node, volume) in [("mine", "my-volume"), ("yours", "your-volume")] {
        fixture.create_node(node)?;
        fixture.create_volume(volume, node)?;
    }
    let token = account_token(&fixture.cluster, NODE, Some("mine"))?;
    let patch = |path: &str, patch: &str| fixture.request_as(&token, "PATCH", path, patch);
    let (my_node, your_node) = ("/api/v1/nodes/mine", "/api/v1/nodes/yours");
    let volume = |name: &str| format!("/apis/topolvm.io/v1/logicalvolumes/{name}");
    let (my_volume, your_volume) = (volume("my-volume"), volume("your-volume"));
    let (my_status, your_status) = (volume("my-volume/status"), volume("your-volume/status"));
    let uid = |name: &str| fixture.kubectl(&["get", LV, name, "-o", "jsonpath={.metadata.uid}"]);
    let (my_id, your_id) = (volume_id_patch(&uid("my-volume")?), volume_id_patch(&uid("your-volume")?));
    // The API server takes a moment to load a new policy
    fixture.cluster.ready("apiserver", || ensure_refused(&patch(your_node, LABEL)?, "", "a label"))?;
    let own = [(my_node, CAPACITY), (my_node, NO_OPTION_CLASSES), (my_node, TOPOLOGY), (&my_volume, FINALIZER)];
    for (path, content) in own.into_iter().chain([(my_status.as_str(), SIZE), (&my_status, &my_id)]) {
        let (status, said) = patch(path, content)?;
        ensure!(status == 200, "{path} {content} is refused: {said}");
    }
    let others = "node mine may not change objects of node yours";
    for (path, content, why) in [
        (your_node, CAPACITY, others),
        (your_node, TOPOLOGY, others),
        (&your_volume, FINALIZER, others),
        (&your_status, SIZE, others),
        (&your_volume, GROW, others),
        (&my_volume, GROW, "may not change the spec"),
        // Nor set the id of another volume, which would then be deleted and expanded instead
        (&my_status, &your_id, "may only set the volume id to the UID"),
        (&my_status, &volume_id_patch("x"), "may only set the volume id to the UID"),
        (my_node, TAINTS, "may not change the spec"),
        (my_node, LABEL, "may only change the topology label of its Node"),
        (my_node, OTHER_TOPOLOGY, "may only change the topology label of its Node"),
        (my_node, NO_TOPOLOGY, "may only change the topology label of its Node"),
        (my_node, ANNOTATION, "may only change its own annotations"),
        (my_node, OWNER, "may not change owner references"),
        (&my_volume, OWNER, "may not change owner references"),
        (my_node, OTHER_FINALIZER, "may only change its own finalizers"),
        (&my_volume, OTHER_FINALIZER, "may only change its own finalizers"),
        ("/api/v1/nodes/mine/status", r#"{"status":{"phase":"Running"}}"#, "cannot patch"),
    ] {
        ensure_refused(&patch(path, content)?, why, &format!("{path} {content}"))?;
    }
    // Nor change the node of a volume, in either direction: the CRD refuses this to all users
    for (path, content) in [(&your_volume, MOVE), (&my_volume, r#"{"spec":{"nodeName":"yours"}}"#)] {
        let (status, said) = patch(path, content)?;
        ensure!(
            status == 422 && said.contains("cannot be changed"),
            "{path} {content} is answered with {status}: {said}"
        );
    }
    check_finalizers_of_others(fixture, &token)?;
    check_older_id(fixture, &token)?;
    for path in [&my_volume, your_node] {
        ensure_refused(&fixture.request_as(&token, "DELETE", path, "")?, "cannot delete", path)?;
    }
    for node in ["mine", "yours"] {
        fixture.kubectl(&["delete", "node", node, "--timeout=180s"])?;
    }
    Ok(())
}

/// Checks that an agent removes its own finalizers, and none of another controller.
fn check_finalizers_of_others(fixture: &Fixture, token: &str) -> Result<()> {
    let (node, both) = ("/api/v1/nodes/mine", r#"{"metadata":{"finalizers":["topolvm.io/node","example.com/x"]}}"#);
    fixture.kubectl(&["patch", "node", "mine", "--type=merge", "-p", both])?;
    let patch = |patch: &str| fixture.request_as(token, "PATCH", node, patch);
    ensure_refused(&patch(NO_FINALIZERS)?, "may only change its own finalizers", "removing another's finalizer")?;
    let others = r#"{"metadata":{"finalizers":["example.com/x"]}}"#;
    let (status, said) = patch(others)?;
    ensure!(status == 200, "its own finalizer is not removed: {said}");
    // With this finalizer the controller cleans up after the Node
    let own = r#"{"metadata":{"finalizers":["topolvm.io/node"]}}"#;
    fixture.kubectl(&["patch", "node", "mine", "--type=merge", "-p", own]).map(drop)
}

/// Uses the token of topolvm-controller, with the role of the mode `extender`, to change workloads on nodes.
fn use_controllers_token(fixture: &Fixture) -> Result<()> {
    let rbac = topolvm::manifests().join("components/webhooks/rbac.yaml");
    let rbac = rbac.to_str().context("a path that is no UTF-8")?;
    fixture.kubectl(&["apply", "-f", rbac])?;
    let token = account_token(&fixture.cluster, CONTROLLER, None)?;
    let send = |method: &str, path: &str, content: &str| fixture.request_as(&token, method, path, content);
    fixture.apply(&pod("default", "writer"))?;
    let writer = "/api/v1/namespaces/default/pods/writer";
    let nothing_else = "may only change the annotation";
    // The API server takes a moment to load a new policy
    fixture.cluster.ready("apiserver", || ensure_refused(&send("PATCH", writer, LABEL)?, nothing_else, "a label"))?;
    let growth = r#"{"metadata":{"annotations":{"topolvm.io/last-resizefs-requested-at":"now"}}}"#;
    let (status, said) = send("PATCH", writer, growth)?;
    ensure!(status == 200, "kubelet cannot be asked to grow a filesystem: {said}");
    let mut other = pod("default", "writer");
    other["spec"]["containers"][0]["image"] = json!("evil.invalid/evil");
    ensure_refused(&send("PATCH", writer, &other.to_string())?, nothing_else, "another image")?;

    let pods = "/api/v1/namespaces/topolvm-system/pods";
    let none_but = "may only create the pod topolvm-extender-probe";
    ensure_refused(&send("POST", pods, &pod("topolvm-system", "evil").to_string())?, none_but, "a pod")?;
    let mut probe = pod("topolvm-system", "topolvm-extender-probe");
    let all = format!("{pods}?dryRun=All");
    let (status, said) = send("POST", &all, &probe.to_string())?;
    ensure!(status == 201, "the probe pod is refused: {said}");
    probe["spec"]["hostPID"] = json!(true);
    ensure_refused(&send("POST", pods, &probe.to_string())?, none_but, "a probe pod in the host's namespace")?;

    let volumes = "/api/v1/persistentvolumes?dryRun=All";
    let of_host = json!({"hostPath": {"path": "/"}});
    let refused = send("POST", volumes, &persistent_volume(&of_host).to_string())?;
    ensure_refused(&refused, "PersistentVolumes of its own driver", "a PersistentVolume of a directory of a host")?;
    let own = json!({"csi": {"driver": "topolvm.io", "volumeHandle": "a"}});
    let (status, said) = send("POST", volumes, &persistent_volume(&own).to_string())?;
    ensure!(status == 201, "a PersistentVolume of ours is refused: {said}");
    fixture.kubectl(&["delete", "pod", "writer", "--grace-period=0", "--force"])?;
    fixture.kubectl(&["delete", "-f", rbac]).map(drop)
}

/// Returns a pod that PodSecurity admits at the level `restricted`.
fn pod(namespace: &str, name: &str) -> Value {
    let locked = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "a", "image": "none.invalid/none", "securityContext": locked}],
        },
    })
}

/// Returns a PersistentVolume with this source.
fn persistent_volume(source: &Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
    });
    if let (Some(spec), Some(source)) = (volume["spec"].as_object_mut(), source.as_object()) {
        spec.extend(source.clone());
    }
    volume
}

/// Checks rights that are rarely used, for their accounts.
fn check_granted_verbs(fixture: &Fixture) -> Result<()> {
    let token = account_token(&fixture.cluster, CONTROLLER, None)?;
    for (verb, group, resource) in [
        // csi-provisioner and csi-resizer, for a claim that names a class, which some servers do not have
        ("get", "storage.k8s.io", "volumeattributesclasses"),
        // TopoLVM's controller, while a cluster is switched back
        ("update", "topolvm.io", "logicalvolumes"),
        ("update", "", "pods"),
        ("update", "", "persistentvolumeclaims"),
    ] {
        let attributes = json!({"verb": verb, "group": group, "resource": resource});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes}});
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let (status, answer) = fixture.request_as(&token, "POST", path, &review.to_string())?;
        ensure!(status == 201, "the review is answered with {status}: {answer}");
        let answer: Value = serde_json::from_str(&answer).context("read the review")?;
        ensure!(answer["status"]["allowed"] == true, "topolvm-controller cannot {verb} {resource}: {answer}");
    }
    Ok(())
}

/// Gives the agents the role of the component with which they write the status of their Nodes.
fn use_status(fixture: &Fixture) -> Result<()> {
    for node in ["shown", "other"] {
        fixture.create_node(node)?;
    }
    let status = |node: &str| format!("/api/v1/nodes/{node}/status");
    let cpu = |cpu: &str| json!({"status": {"capacity": {"cpu": cpu}, "allocatable": {"cpu": cpu}}}).to_string();
    fixture.kubectl(&["patch", "node", "shown", "--subresource=status", "--type=merge", "-p", &cpu("2")])?;
    let rbac = topolvm::manifests().join("components/extended-resources/rbac.yaml");
    let rbac = rbac.to_str().context("a path that is no UTF-8")?;
    fixture.kubectl(&["apply", "-f", rbac])?;
    let token = account_token(&fixture.cluster, NODE, Some("shown"))?;
    let patch = |node: &str, patch: &str| fixture.request_as(&token, "PATCH", &status(node), patch);
    let resources = |bytes: &Value| {
        let resources = json!({"size.topolvm.io/ssd": bytes, "free.topolvm.cybozu.com/ssd": bytes});
        json!({"status": {"capacity": resources, "allocatable": resources}}).to_string()
    };
    fixture.cluster.ready("apiserver", || {
        let (answer, said) = patch("shown", &resources(&json!("1")))?;
        ensure!(answer == 200, "the agent's own resources are refused: {said}");
        Ok(())
    })?;
    let shown = fixture.value("nodes", "shown", ".status.allocatable.size\\.topolvm\\.io/ssd")?;
    ensure!(shown == "1", "the Node shows {shown:?}");
    let own = "may only change its own resources in the status of its Node";
    let condition = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}).to_string();
    for (node, content, why) in [
        ("shown", cpu("64").as_str(), own),
        ("shown", r#"{"status":{"capacity":{"cpu":null}}}"#, own),
        ("shown", r#"{"status":{"allocatable":{"example.com/gpu":"8"}}}"#, own),
        ("shown", r#"{"status":{"capacity":{"topolvm.io/capacity":"1"}}}"#, own),
        ("shown", &condition, own),
        ("shown", r#"{"status":null}"#, own),
        ("other", &resources(&json!("1")), "may not change objects of node other"),
    ] {
        ensure_refused(&patch(node, content)?, why, &format!("{node} {content}"))?;
    }
    let (answer, said) = patch("shown", &resources(&Value::Null))?;
    ensure!(answer == 200, "its resources are not removed: {said}");
    fixture.kubectl(&["delete", "-f", rbac])?;
    for node in ["shown", "other"] {
        fixture.kubectl(&["delete", "node", node, "--timeout=180s"])?;
    }
    Ok(())
}

/// Checks that an agent may patch all fields except the id of a volume that an older program created with an id other
/// than its UID.
fn check_older_id(fixture: &Fixture, token: &str) -> Result<()> {
    let (name, status) = ("old-volume", "/apis/topolvm.io/v1/logicalvolumes/old-volume/status");
    fixture.create_volume(name, "mine")?;
    fixture.kubectl(&["patch", LV, name, "--subresource=status", "--type=merge", "-p", &volume_id_patch("old")])?;
    let (another, none, again) = (volume_id_patch("older"), volume_id_patch(""), volume_id_patch("old"));
    for (content, expected) in [(SIZE, 200), (&another, 403), (&none, 200), (&again, 403)] {
        let (answer, said) = fixture.request_as(token, "PATCH", status, content)?;
        ensure!(answer == expected, "{status} {content} is answered with {answer}: {said}");
    }
    Ok(())
}

/// Returns the patch that sets the id of a volume.
fn volume_id_patch(id: &str) -> String {
    json!({"status": {"volumeID": id}}).to_string()
}

fn use_unbound_token(fixture: &Fixture) -> Result<()> {
    fixture.create_node("some")?;
    let token = account_token(&fixture.cluster, NODE, None)?;
    let answer = fixture.request_as(&token, "PATCH", "/api/v1/nodes/some", CAPACITY)?;
    ensure_refused(&answer, "does not say which node", "a token without a node")?;
    fixture.kubectl(&["delete", "node", "some", "--timeout=180s"]).map(drop)
}

/// Applies our objects over those of TopoLVM's chart that are about its agents and have our names, while agents run.
/// The account has the name that the chart gives it in a release called topolvm, and the one in another release.
fn apply_over_topolvm(fixture: &Fixture) -> Result<()> {
    let another = "another-topolvm-node";
    for object in chart_objects(another) {
        fixture.apply(&object)?;
    }
    let objects = topolvm::manifests().join("overlays/objects");
    let objects = objects.to_str().context("a path that is no UTF-8")?;
    fixture.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", objects])?;

    fixture.create_node("switched")?;
    for account in [NODE, another] {
        fixture.create_volume(&format!("of-{account}"), "switched")?;
    }
    // An unneeded permission is removed, so the API server no longer uses the other role
    let token = account_token(&fixture.cluster, another, Some("switched"))?;
    let volume = format!("/apis/topolvm.io/v1/logicalvolumes/of-{NODE}?dryRun=All");
    let delete = || ensure_refused(&fixture.request_as(&token, "DELETE", &volume, "")?, "cannot delete", "a deletion");
    fixture.cluster.ready("apiserver", delete)?;
    for account in [NODE, another] {
        let name = format!("of-{account}");
        let token = account_token(&fixture.cluster, account, Some("switched"))?;
        send_agent_requests(fixture, &token, &name).with_context(|| format!("with the token of {account}"))?;
    }

    fixture.kubectl(&["delete", "clusterrolebinding", "topolvm-system:node"])?;
    fixture.kubectl(&["delete", "serviceaccount", another, "--namespace=topolvm-system"])?;
    fixture.kubectl(&["delete", "node", "switched", "--timeout=180s"]).map(drop)
}

/// Returns the role, account and binding of TopoLVM's agents.
fn chart_objects(account: &str) -> [Value; 3] {
    let (api, role) = ("rbac.authorization.k8s.io/v1", "topolvm-system:node");
    let volumes = ["logicalvolumes", "logicalvolumes/status"];
    let every = ["get", "list", "watch", "create", "update", "delete", "patch"];
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "update", "patch"]},
        {"apiGroups": ["topolvm.io"], "resources": volumes, "verbs": every},
        {"apiGroups": ["storage.k8s.io"], "resources": ["csidrivers"], "verbs": ["get", "list", "watch"]},
    ]);
    let subject = json!({"kind": "ServiceAccount", "name": account, "namespace": "topolvm-system"});
    [
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": role}, "rules": rules}),
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": account, "namespace": "topolvm-system"},
        }),
        json!({
            "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": {"name": role}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        }),
    ]
}

/// Sends all requests of TopoLVM's agent, with the verbs that it uses.
fn send_agent_requests(fixture: &Fixture, token: &str, name: &str) -> Result<()> {
    let all = "/apis/topolvm.io/v1/logicalvolumes";
    let (volume, status, node) = (format!("{all}/{name}"), format!("{all}/{name}/status"), "/api/v1/nodes/switched");
    let asks = |method: &str, path: &str, content: &str| {
        let (answer, said) = fixture.request_as(token, method, path, content)?;
        ensure!(answer == 200, "{method} {path} {content} is answered with {answer}: {said}");
        Ok(said)
    };
    // Its informers, from which it reads its Node
    for path in [all, "/api/v1/nodes"] {
        asks("GET", path, "")?;
        asks("GET", &format!("{path}?watch=true&timeoutSeconds=1"), "")?;
    }
    // Probe
    asks("GET", "/apis/storage.k8s.io/v1/csidrivers/topolvm.io", "")?;
    // A new volume, whose status is written as a whole
    asks("PATCH", &volume, FINALIZER)?;
    let mut object: Value = serde_json::from_str(&asks("GET", &volume, "")?)?;
    object["status"] = json!({"volumeID": object["metadata"]["uid"], "currentSize": "1Gi"});
    asks("PUT", &status, &object.to_string())?;
    let written = fixture.value(LV, name, ".status.currentSize")?;
    ensure!(written == "1Gi", "the status is not that of the agent: {written:?}");
    // The free space, and a removed volume
    asks("PATCH", node, r#"{"metadata":{"finalizers":["topolvm.io/node"]}}"#)?;
    asks("PATCH", node, CAPACITY)?;
    asks("PATCH", &volume, r#"{"metadata":{"finalizers":[]}}"#)?;
    Ok(())
}

fn check_refused_verbs(fixture: &Fixture) -> Result<()> {
    let account = |name: &str| format!("--as=system:serviceaccount:topolvm-system:{name}");
    let (node, controller) = (account("topolvm-node"), account("topolvm-controller"));
    for (who, verb, what) in [
        (&node, "create", LV),
        (&node, "delete", LV),
        (&node, "create", "diskoperations.topolvm.io"),
        (&node, "patch", "nodestorages.topolvm.io"),
        (&node, "delete", "nodes"),
        (&node, "update", "nodes"),
        (&node, "get", "nodes"),
        // It lists them, for the limits of their I/O, and changes none
        (&node, "patch", "pods"),
        (&node, "delete", "pods"),
        (&node, "list", "persistentvolumeclaims"),
        (&node, "get", "secrets"),
        (&controller, "get", "secrets"),
        (&controller, "create", "diskoperations.topolvm.io"),
        (&controller, "create", "pods"),
        (&controller, "delete", "pods"),
        (&controller, "create", "persistentvolumeclaims"),
        (&controller, "delete", "nodes"),
        // It creates, patches and deletes volumes for the sidecars, but no program replaces one
        (&controller, "update", "persistentvolumes"),
        (&controller, "delete", "storageclasses"),
        (&controller, "update", "nodes"),
        (&controller, "update", "leases"),
    ] {
        let output = fixture.cluster.kubectl(["auth", "can-i", verb, what, who.as_str(), "--all-namespaces"])?;
        let answer = String::from_utf8_lossy(&output.stdout);
        ensure!(answer.trim() == "no", "{who} can {verb} {what}: {answer}");
    }
    Ok(())
}

fn use_short_name(fixture: &Fixture) -> Result<()> {
    fixture.create_volume("short", "nowhere")?;
    // kubectl caches the resources of the API for hours, including a group that another test has installed and removed
    fixture.cluster.ready("apiserver", || {
        let resources = fixture.kubectl(&["api-resources", "--cached=false", "-o", "name"])?;
        ensure!(!resources.contains("topolvm.cybozu.com"), "the API server still serves the other test's group");
        Ok(())
    })?;
    let long = fixture.kubectl(&["get", LV, "short", "-o", "name"])?;
    let short = fixture.kubectl(&["get", "lv", "short", "-o", "name"])?;
    ensure!(short == long && long.contains("short"), "kubectl get lv says {short:?} and not {long:?}");
    fixture.kubectl(&["patch", "lv", "short", "--type=merge", "-p", r#"{"metadata":{"finalizers":[]}}"#])?;
    fixture.kubectl(&["delete", "lv", "short", "--timeout=180s"]).map(drop)
}

/// Checks that a request was refused for this reason.
fn ensure_refused((status, said): &(u16, String), why: &str, what: &str) -> Result<()> {
    ensure!(*status == 403, "{what} is answered with {status}: {said}");
    ensure!(said.contains(why), "{what} is refused for another reason: {said}");
    Ok(())
}

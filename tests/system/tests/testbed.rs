//! The test bed itself: a real control plane, nodes that run pods, and no process or file left behind.
#![expect(clippy::disallowed_methods, reason = "the test of a test bed inspects processes")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::cluster::{Cluster, ClusterSpec};
use testbed::image::{BUSYBOX, Compression, Image, write_archive};
use testbed::node::{Node, NodeSpec};
use testbed::process::Process;
use testbed::sidecars::{self, Sidecar};
use testbed::size::GIB;
use testbed::suite;

fn main() -> ExitCode {
    let status = suite::on_host(vec![
        suite::test("two_clusters_with_the_same_addresses_run_side_by_side", side_by_side),
        suite::test("cluster_up_reports_a_failed_scheduler_and_leaves_nothing", failing_start),
        suite::test("cluster_down_leaves_no_process_mount_netns_or_memory_file", nothing_left),
        suite::test("a_program_that_is_killed_takes_its_cluster_with_it", Orphan::check),
        suite::test("a_pod_is_scheduled_and_its_logs_and_exit_statuses_come_back", || with_nodes(pod_runs)),
        suite::test("pods_of_two_nodes_reach_each_other_and_a_cluster_ip", || with_nodes(pods_talk)),
        suite::test("a_pod_uses_its_service_account", || with_nodes(service_account)),
        suite::test("a_privileged_pod_makes_logical_volumes_of_its_node", || with_nodes(privileged_pod)),
        suite::test("an_image_made_of_local_programs_runs", || with_nodes(own_image)),
        suite::test("snapshot_controller_answers_on_a_snapshot_of_nothing", || with_nodes(snapshot_controller)),
        suite::test("a_kept_program_comes_back_until_it_is_stopped", || with_nodes(kept_program)),
        suite::test("a_killed_kubelet_comes_back_and_its_pods_go_on", || with_nodes(kubelet_killed)),
        suite::test("node_keeps_volumes_pods_and_programs_after_a_power_loss", || with_nodes(power_lost)),
    ]);
    match Setup::down() {
        Ok(()) => status,
        Err(error) => {
            // The exit status reports it too.
            drop(writeln!(std::io::stderr(), "the shared cluster did not end: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A cluster with two nodes, started by the first test that needs it.
struct Setup {
    cluster: Cluster,
    nodes: Vec<Node>,
    _directory: TempDir,
}

/// Timeout of all waits; these tests do not measure durations.
const LONG: Duration = Duration::from_mins(3);

static SHARED: Mutex<Option<Setup>> = Mutex::new(None);

impl Setup {
    fn up() -> Result<Self> {
        let directory = directory()?;
        let cluster = Cluster::up(&directory.path().join("c"), &ClusterSpec::default())?;
        let nodes = cluster.add_nodes(&[NodeSpec::number(1), NodeSpec::number(2)])?;
        Ok(Self { cluster, nodes, _directory: directory })
    }

    fn down() -> Result<()> {
        match SHARED.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(setup) => setup.cluster.down(None),
            None => Ok(()),
        }
    }

    fn node(&self, number: usize) -> Result<&Node> {
        self.nodes.get(number - 1).context("no such node")
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.cluster.kubectl_ok(words)
    }

    fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.apply(&object.to_string()).map(drop)
    }

    /// Starts a pod and waits until it is Ready.
    fn pod(&self, pod: &Value) -> Result<()> {
        self.apply(pod)?;
        let name = pod.pointer("/metadata/name").and_then(Value::as_str).context("a pod without a name")?;
        let waited = self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"]);
        waited.map(drop).or_else(|error| bail!("{error:#}\n{}", self.kubectl(&["describe", "pod", name])?))
    }

    fn in_pod(&self, name: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", name, "--", "sh", "-c", script])
    }

    fn delete(&self, names: &[&str]) -> Result<()> {
        self.kubectl(&[&["delete", "--timeout=180s"], names].concat()).map(drop)
    }
}

fn with_nodes(body: fn(&Setup) -> Result<()>) -> Result<()> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    match &mut *shared {
        Some(setup) => body(setup),
        none => body(none.insert(Setup::up()?)),
    }
}

fn directory() -> Result<TempDir> {
    tempfile::Builder::new().prefix("topolvm-testbed-").tempdir_in("/var/tmp").context("make a directory")
}

/// Returns a pod with a shell; `more` goes into its specification.
fn pod(name: &str, script: &str, more: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
            }],
        },
    });
    merge(&mut pod, &json!({ "spec": more }));
    pod
}

/// Merges JSON as in RFC 7396, but lists element by element.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => {
            into.iter_mut().zip(from).for_each(|(into, from)| merge(into, from));
        }
        (into, from) => *into = from.clone(),
    }
}

fn side_by_side() -> Result<()> {
    let (first, second) = (directory()?, directory()?);
    let up = |directory: &TempDir| Cluster::up(&directory.path().join("c"), &ClusterSpec::default());
    let (first, second) = scope(|scope| {
        let other = scope.spawn(|| up(&second));
        let first = up(&first);
        (first, other.join())
    });
    let (first, second) = (first?, second.ok().context("a thread panicked")??);
    first.kubectl_ok(["create", "namespace", "only-here"])?;
    ensure!(namespaces(&first)?.contains(&"only-here".to_owned()), "the namespace was not made");
    ensure!(!namespaces(&second)?.contains(&"only-here".to_owned()), "one cluster sees the objects of the other");
    first.down(None)?;
    ensure!(namespaces(&second)?.contains(&"default".to_owned()), "one cluster ended with the other");
    second.down(None)
}

/// Lists the namespaces through the host kubeconfig, from this machine's own network namespace, as a test would.
fn namespaces(cluster: &Cluster) -> Result<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let namespaces: Api<Namespace> = Api::all(cluster.client().await?);
        Ok(namespaces.list(&ListParams::default()).await?.into_iter().filter_map(|n| n.metadata.name).collect())
    })
}

fn failing_start() -> Result<()> {
    let directory = directory()?;
    let cluster = directory.path().join("c");
    let spec = ClusterSpec { scheduler_config: Some("profiles: 7".to_owned()), ..ClusterSpec::default() };
    let Err(error) = Cluster::up(&cluster, &spec) else { bail!("a scheduler with a wrong configuration started") };
    let error = format!("{error:#}");
    ensure!(error.contains("scheduler died") && error.contains("profiles"), "{error}");
    ensure!(!cluster.exists(), "the directory is still there");
    ensure!(users_of(&cluster)?.is_empty(), "processes are still there");
    Ok(())
}

fn nothing_left() -> Result<()> {
    let directory = directory()?;
    let cluster = Cluster::up(&directory.path().join("c"), &ClusterSpec::default())?;
    let spec = NodeSpec { vg_disks: vec![GIB], ..NodeSpec::number(3) };
    cluster.add_node(&spec)?.script("lvcreate -qqy -L 100M -n v myvg1")?;
    let path = cluster.directory().to_owned();
    let logs = directory.path().join("logs");
    let users = users_of(&path)?;
    // Control plane, proxy, forwarder, reaper, and the guest with its processes.
    ensure!(users.len() > 10, "only {} processes seem to belong to a cluster", users.len());
    cluster.down(Some(&logs))?;

    let still_there: Vec<_> = users.iter().filter(|process| process.is_alive()).collect();
    ensure!(still_there.is_empty(), "still running: {still_there:?}");
    ensure!(users_of(&path)?.is_empty(), "there are new processes");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&*path.to_string_lossy()), "still mounted: {mounts}");
    ensure!(!path.exists(), "the directory is still there");
    for entry in fs::read_dir("/dev/shm")? {
        let name = entry?.file_name();
        // As User-Mode Linux calls it until it has opened it.
        ensure!(!name.to_string_lossy().starts_with("vm_file-"), "a guest's memory is still there: {}", name.display());
    }
    for log in ["apiserver.log", "etcd.log", "node3/kubelet.log", "node3/console.log"] {
        ensure!(logs.join(log).is_file(), "no {log} was kept");
    }
    Ok(())
}

/// Lists the processes that have the directory in their command line, or that are in the cluster's network namespace.
fn users_of(cluster: &Path) -> Result<Vec<Process>> {
    use std::os::unix::fs::MetadataExt as _;
    let needle = cluster.to_string_lossy().into_owned();
    let netns = fs::metadata(cluster.join("netns")).map(|file| file.ino()).ok();
    let mut users = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let proc = Path::new("/proc").join(pid.to_string());
        // A process may end at any moment.
        let command = fs::read(proc.join("cmdline")).unwrap_or_default();
        let inside = netns.is_some() && fs::metadata(proc.join("ns/net")).map(|file| file.ino()).ok() == netns;
        if inside || String::from_utf8_lossy(&command).contains(&needle) {
            users.extend(Process::of(pid).filter(|process| process.pid != std::process::id()));
        }
    }
    Ok(users)
}

/// This program, started again to be killed.
struct Orphan;

impl Orphan {
    const DIRECTORY: &'static str = "BED_ORPHAN";

    fn check() -> Result<()> {
        if let Some(directory) = std::env::var_os(Self::DIRECTORY) {
            let cluster = Cluster::up(Path::new(&directory), &ClusterSpec::default())?;
            let own = cluster.directory().parent().context("it is in no directory")?;
            fs::write(own.with_extension("up"), "")?;
            sleep(Duration::from_mins(5));
            bail!("was not killed");
        }
        let directory = directory()?;
        let own = directory.path().join("own");
        let cluster = own.join("c");
        let mut owner = Command::new(std::env::current_exe()?)
            .args(["--exact", "a_program_that_is_killed_takes_its_cluster_with_it"])
            .env(Self::DIRECTORY, &cluster)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let up = wait_until("the cluster is up", || Ok(own.with_extension("up").exists()));
        let users = users_of(&cluster)?;
        owner.kill()?;
        owner.wait()?;
        up?;
        ensure!(users.len() > 5, "only {} processes seem to belong to a cluster", users.len());
        wait_until("the cluster is gone", || Ok(!own.exists()))?;
        wait_until("its processes are gone", || Ok(!users.iter().any(Process::is_alive)))
    }
}

fn pod_runs(setup: &Setup) -> Result<()> {
    setup.pod(&pod("p", "echo hello; exec sleep 1000", &json!({})))?;
    ensure!(setup.kubectl(&["logs", "p"])? == "hello\n", "other logs");
    let mut kubectl = setup.cluster.kubectl_command();
    kubectl.args(["exec", "-i", "p", "--", "sh", "-c", "tr a-z A-Z; echo no >&2; exit 3"]);
    let mut kubectl = kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    kubectl.stdin.take().context("no input")?.write_all(b"in")?;
    let output = kubectl.wait_with_output()?;
    ensure!((output.status.code(), output.stdout.as_slice()) == (Some(3), b"IN"), "{output:?}");
    ensure!(output.stderr.starts_with(b"no\n"), "{output:?}");
    setup.delete(&["pod/p"])
}

fn pods_talk(setup: &Setup) -> Result<()> {
    let serve = "mkdir /www; hostname >/www/index.html; exec httpd -f -p 8080 -h /www";
    let ready = json!({ "httpGet": { "port": 8080, "path": "/" }, "periodSeconds": 1 });
    let web = pod("web", serve, &json!({ "nodeName": "node1", "containers": [{ "readinessProbe": ready }] }));
    setup.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }))?;
    setup.pod(&web)?;
    setup.pod(&pod("client", "exec sleep 1000", &json!({ "nodeName": "node2" })))?;
    let address = setup.kubectl(&["get", "pod", "web", "-o", "jsonpath={.status.podIP}"])?;
    let service = setup.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"])?;
    ensure!(setup.in_pod("client", &format!("wget -qO- http://{address}:8080/"))? == "web\n", "pod to pod");
    setup.kubectl(&[
        "wait",
        "--for=jsonpath={.endpoints[0].conditions.ready}=true",
        "endpointslice",
        "--selector=kubernetes.io/service-name=web",
        "--timeout=180s",
    ])?;
    ensure!(setup.in_pod("client", &format!("wget -qO- http://{service}/"))? == "web\n", "pod to ClusterIP");
    ensure!(setup.node(2)?.exec_ok(&["curl", "-sf", &format!("http://{service}/")])? == "web\n", "node to ClusterIP");
    let inside = setup.cluster.command("curl").args(["-sf", &format!("http://{service}/")]).output()?;
    ensure!(inside.stdout == b"web\n", "namespace to ClusterIP: {inside:?}");
    setup.delete(&["pod/web", "pod/client", "service/web"])
}

fn service_account(setup: &Setup) -> Result<()> {
    // The node's root shows this machine's files, so a hostPath brings any static program into a pod.
    let kubectl = setup.cluster.tool("kubectl").canonicalize()?;
    let pod = pod(
        "account",
        "exec sleep 1000",
        &json!({
            "containers": [{ "volumeMounts": [{ "name": "kubectl", "mountPath": "/bin/kubectl" }] }],
            "volumes": [{ "name": "kubectl", "hostPath": { "path": kubectl, "type": "File" } }],
        }),
    );
    setup.kubectl(&["create", "role", "reader", "--verb=get", "--resource=configmaps"])?;
    setup.kubectl(&["create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:default"])?;
    setup.pod(&pod)?;
    let user = setup.in_pod("account", "kubectl auth whoami -o 'jsonpath={.status.userInfo.username}'")?;
    ensure!(user == "system:serviceaccount:default:default", "{user}");
    setup.in_pod("account", "kubectl get configmap kube-root-ca.crt")?;
    ensure!(setup.in_pod("account", "kubectl get nodes").is_err(), "the account may do what it was not allowed");
    setup.delete(&["pod/account", "rolebinding/reader", "role/reader"])
}

fn privileged_pod(setup: &Setup) -> Result<()> {
    let kubelet = "/var/lib/kubelet";
    let mount = json!([
        { "name": "dev", "mountPath": "/dev" },
        { "name": "kubelet", "mountPath": kubelet, "mountPropagation": "Bidirectional" },
    ]);
    let pod = pod(
        "lvm",
        "exec sleep 1000",
        &json!({
            "nodeName": "node1",
            "hostPID": true,
            "containers": [{ "securityContext": { "privileged": true }, "volumeMounts": mount }],
            "volumes": [
                { "name": "dev", "hostPath": { "path": "/dev" } },
                { "name": "kubelet", "hostPath": { "path": kubelet } },
            ],
        }),
    );
    setup.pod(&pod)?;
    let on_node = "nsenter -m -u -i -n -p -t 1 --";
    setup.in_pod(
        "lvm",
        &format!("{on_node} lvcreate -qqy -L 100M -n inpod myvg1 && {on_node} mkfs.ext4 -q /dev/myvg1/inpod"),
    )?;
    setup.in_pod(
        "lvm",
        "mkdir -p /var/lib/kubelet/t && mount -t ext4 /dev/mapper/myvg1-inpod /var/lib/kubelet/t \
         && echo x >/var/lib/kubelet/t/f",
    )?;
    let node = setup.node(1)?;
    ensure!(node.script("cat /var/lib/kubelet/t/f")? == "x\n", "the mount does not reach the node");
    ensure!(node.script("grep -c ' /var/lib/kubelet/t ' /proc/mounts")? == "1\n", "mounted more than once");
    node.script("umount /var/lib/kubelet/t; rmdir /var/lib/kubelet/t; lvremove -qqy myvg1/inpod")?;
    setup.delete(&["pod/lvm"])
}

fn own_image(setup: &Setup) -> Result<()> {
    let directory = directory()?;
    let archive = directory.path().join("image.tar");
    let script = directory.path().join("greet");
    fs::write(&script, "#!/bin/sh\necho greetings\nexec sleep 1000\n")?;
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let image = Image::with_programs("testbed.local/greet:1", &["/bin/greet"], &[(&script, "/bin/greet")])?;
    write_archive(&archive, &[image], Compression::None)?;
    setup.cluster.load_images(&archive)?;
    let container = json!({ "image": "testbed.local/greet:1", "command": null });
    setup.pod(&pod("greet", "", &json!({ "containers": [container] })))?;
    ensure!(setup.kubectl(&["logs", "greet"])? == "greetings\n", "other logs");
    setup.delete(&["pod/greet"])
}

fn snapshot_controller(setup: &Setup) -> Result<()> {
    sidecars::apply_snapshot_crds(&setup.cluster)?;
    // It talks to no driver.
    Sidecar::SnapshotController.start(&setup.cluster, Path::new("/nowhere"))?;
    setup.apply(&json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": { "name": "s", "namespace": "default" },
        "spec": { "source": { "persistentVolumeClaimName": "no-such-claim" } },
    }))?;
    // Any value will do.
    setup.kubectl(&["wait", "--for=jsonpath={.status.error.message}", "volumesnapshot/s", "--timeout=180s"])?;
    let error = setup.kubectl(&["get", "volumesnapshot", "s", "-o", "jsonpath={.status.error.message}"])?;
    ensure!(error.contains("no-such-claim"), "{error}");
    setup.delete(&["volumesnapshot/s"])?;
    Sidecar::SnapshotController.stop(&setup.cluster)
}

fn kept_program(setup: &Setup) -> Result<()> {
    let node = setup.node(1)?;
    let env = BTreeMap::from([("WORD".to_owned(), "spoken".to_owned())]);
    node.spawn_kept("talker", ["sh", "-c", "echo $WORD; sleep 1000 & wait"], &env)?;
    ensure!(node.spawn_kept("talker", ["true"], &env).is_err(), "two programs of one name");
    ensure!(node.spawn_kept("none", ["/no/such/program"], &env).is_err(), "a program that does not exist was started");
    node.kill_kept("talker")?;
    wait_until("it comes back", || Ok(fs::read_to_string(node.log("talker"))?.matches("spoken").count() == 2))?;
    node.stop_kept("talker")?;
    let left = node.exec(&["pgrep", "-f", "sleep 1000 & wait|^sleep 1000$"])?;
    ensure!(left.status == 1, "its children are still there: {}", String::from_utf8_lossy(&left.stdout));
    Ok(())
}

fn kubelet_killed(setup: &Setup) -> Result<()> {
    setup.pod(&pod("calm", "exec sleep 1000", &json!({ "nodeName": "node1" })))?;
    let node = setup.node(1)?;
    let old = node.exec_ok(&["pgrep", "-xo", "kubelet"])?;
    node.kill_kept("kubelet")?;
    wait_until("kubelet comes back", || {
        let now = node.exec(&["pgrep", "-xo", "kubelet"])?;
        Ok(now.status == 0 && now.stdout != old.as_bytes())
    })?;
    // Answered by the new kubelet.
    wait_until("kubelet answers", || Ok(setup.in_pod("calm", "true").is_ok()))?;
    let restarts =
        setup.kubectl(&["get", "pod", "calm", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"])?;
    ensure!(restarts == "0", "the pod was restarted {restarts} times");
    setup.delete(&["pod/calm"])
}

fn power_lost(setup: &Setup) -> Result<()> {
    let node = setup.node(2)?;
    setup.pod(&pod("tough", "exec sleep 1000", &json!({ "nodeName": "node2" })))?;
    node.spawn_kept(
        "agent",
        ["sh", "-c", "echo started by $USER; exec sleep 1000"],
        &BTreeMap::from([("USER".into(), "it's me".into())]),
    )?;
    node.script("lvcreate -qqy -L 100M -n kept myvg1 && mkfs.ext4 -q /dev/myvg1/kept && sync")?;
    node.restart(true)?;
    ensure!(node.script("blkid -o value -s TYPE /dev/myvg1/kept")? == "ext4\n", "the volume is not what it was");
    wait_until("the pod runs again", || Ok(setup.in_pod("tough", "true").is_ok()))?;
    let log = fs::read_to_string(node.log("agent"))?;
    ensure!(log.matches("started by it's me").count() == 2, "the kept program says: {log}");
    node.stop_kept("agent")?;
    node.script("lvremove -qqy myvg1/kept")?;
    setup.delete(&["pod/tough"])?;
    node.restart(false)?;
    ensure!(node.script("lvs --noheadings myvg1")?.is_empty(), "a removed volume came back");
    Ok(())
}

fn wait_until(what: &str, mut happened: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + LONG;
    while !happened()? {
        ensure!(Instant::now() < end, "waited {LONG:?} in vain until {what}");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

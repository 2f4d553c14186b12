//! The clusters that the tests share, and operations on their objects.

use std::io::{BufRead as _, BufReader};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::kustomization::{Kustomization, lvmd_config, patch};
use system_tests::manifests::{VolumeMode, claim, pod, snapshot_class, storage_class};
use system_tests::product_images;
use system_tests::shared::{ClusterPool, TestCluster};
use testbed::failure::WithState as _;
use testbed::node::Node;
use testbed::sidecars::NAMESPACE;
use testbed::topolvm::{self, EMBEDDED, LVMD, THIN_CLASS, TopolvmSpec};
use topolvm_api::ApiFlavor;

/// Volume group of the node.
pub(crate) const VG: &str = "myvg1";

/// Setting of lvmd as a process of the test bed. In a pod lvmd uses its default.
const WITHOUT_NSENTER: &str = "lvm-command-prefix: [/sbin/lvm]\n";

/// Both API groups that the product supports.
pub(crate) const FLAVORS: [ApiFlavor; 2] = [ApiFlavor::TopoLvm, ApiFlavor::Legacy];

/// Clusters with the product as pods. Tests mostly wait, so two clusters finish in little more than half the time of
/// one.
static IN_PODS: ClusterPool<Fixture> = ClusterPool::new(2);
/// Clusters with the programs as processes of the test bed.
static AS_PROCESSES: ClusterPool<Fixture> = ClusterPool::new(2);

/// A cluster with the product, one node, and the classes `waiting` (binds with a pod), `thin` (the same in a thin
/// pool), `immediate`, `thin-now` (in the pool, at once), `unknown` (of a device class that no node has) and `refused`
/// (for nodes with a label that the driver does not have).
pub(crate) struct Fixture {
    shared: TestCluster,
    pub(crate) node: Node,
    pub(crate) spec: TopolvmSpec,
}

impl Deref for Fixture {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        &self.shared
    }
}

/// Runs a test with the product as users run it: the pods of the image and the manifests, with the roles that ship.
pub(crate) fn with_pods(body: impl FnOnce(&Fixture) -> Result<()>) -> Result<()> {
    run_test(&IN_PODS, || Fixture::up(in_pods), body)
}

/// Runs a test that kills the programs, replaces them or gives them other flags: they are processes of the test bed.
/// Idle clusters with pods are stopped: no later test needs one, and each takes a tenth of a CPU.
pub(crate) fn with_processes(body: impl FnOnce(&Fixture) -> Result<()>) -> Result<()> {
    IN_PODS.stop_idle(|fixture| fixture.shared.down())?;
    run_test(&AS_PROCESSES, || Fixture::up(|spec, _| Ok(spec)), body)
}

/// Runs a test that leaves its cluster unusable for others, in a separate cluster: the programs are processes of the
/// test bed, and the agents have these flags in addition. `change` chooses who creates volumes.
pub(crate) fn with_own(
    change: fn(TopolvmSpec) -> TopolvmSpec,
    node_arguments: &[&str],
    body: impl FnOnce(&Fixture) -> Result<()>,
) -> Result<()> {
    let fixture = Fixture::up(|spec, _| {
        let mut spec = change(spec);
        spec.node_arguments.extend(node_arguments.iter().map(|&argument| argument.to_owned()));
        Ok(spec)
    })?;
    let done = body(&fixture).with_state(|| fixture.state());
    fixture.shared.down()?;
    done
}

/// Runs a test with a cluster. After a failed test its leftovers are removed, so that the next one has a clean cluster.
fn run_test(
    pool: &ClusterPool<Fixture>,
    up: impl FnOnce() -> Result<Fixture>,
    body: impl FnOnce(&Fixture) -> Result<()>,
) -> Result<()> {
    pool.run_with(up, |fixture| {
        body(fixture).with_state(|| {
            let state = fixture.state();
            let clean = fixture.clean_up();
            format!("clean-up afterwards: {clean:?}\nstate at the failure:\n{state}")
        })
    })
}

/// Stops the clusters that were started.
pub(crate) fn down() -> Result<()> {
    [&IN_PODS, &AS_PROCESSES].into_iter().try_for_each(|pool| pool.stop_idle(|fixture| fixture.shared.down()))
}

/// Returns the specification for the pods of the overlay `lvmd`, with the same device classes.
fn in_pods(mut spec: TopolvmSpec, directory: &Path) -> Result<TopolvmSpec> {
    spec.manifests = write_manifests(&spec, &[], directory)?;
    spec.cluster.images = product_images::for_manifests(&spec.programs, &spec.manifests)?;
    spec.in_pods = true;
    Ok(spec)
}

/// Writes the kustomization of the pods with these components into a directory, and returns that.
fn write_manifests(spec: &TopolvmSpec, components: &[&str], directory: &Path) -> Result<PathBuf> {
    // The usual delays are minutes, too long for tests; the pods have those of processes
    let add = |flag: &str| json!({"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": flag});
    let delays = EMBEDDED.iter().filter(|flag| flag.contains("-retry-interval-")).map(|flag| add(flag));
    let patches = vec![
        lvmd_config(&spec.lvmd_config.replace(WITHOUT_NSENTER, "")),
        patch("Deployment", Some("topolvm-controller"), &delays.collect()),
    ];
    Kustomization { base: "overlays/lvmd", components, patches, ..Kustomization::default() }.write(directory)
}

impl Fixture {
    fn up(place: impl FnOnce(TopolvmSpec, &Path) -> Result<TopolvmSpec>) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("topolvm-manifests-").tempdir_in("/var/tmp")?;
        let spec = TopolvmSpec::nodes(1)?.with_thin_class().with_raid_classes().with_snapshots();
        let spec = place(spec, scratch.path())?;
        let shared = TestCluster::up("cluster", &spec)?;
        // So that leftovers of one flavor can be counted while the other runs
        let legacy = topolvm::manifests().join("components/legacy/crd.yaml");
        shared.kubectl(&["apply", "--server-side", "-f", &legacy.to_string_lossy()])?;
        let fixture = Self { node: shared.node()?.clone(), shared, spec };
        fixture.apply_classes(ApiFlavor::TopoLvm)?;
        Ok(fixture)
    }

    /// Rolls out the pods with these components.
    pub(crate) fn roll_out(&self, components: &[&str]) -> Result<()> {
        let scratch = tempfile::Builder::new().prefix("topolvm-manifests-").tempdir_in("/var/tmp")?;
        topolvm::roll_out(&self.cluster, &write_manifests(&self.spec, components, scratch.path())?)
    }

    /// Applies the StorageClasses and a VolumeSnapshotClass; those of the older group have the prefix `legacy-`.
    pub(crate) fn apply_classes(&self, flavor: ApiFlavor) -> Result<()> {
        let prefix = if flavor == ApiFlavor::Legacy { "legacy-" } else { "" };
        for (name, device_class, immediate) in [
            ("waiting", None, false),
            ("immediate", None, true),
            ("thin", Some(THIN_CLASS), false),
            ("thin-now", Some(THIN_CLASS), true),
            ("unknown", Some("no-such-class"), true),
        ] {
            self.apply(&storage_class(flavor, &format!("{prefix}{name}"), device_class, immediate))?;
        }
        // csi-provisioner never creates a volume of it
        let mut refused = storage_class(flavor, &format!("{prefix}refused"), None, false);
        refused["allowedTopologies"] =
            json!([{"matchLabelExpressions": [{"key": "example.com/rack", "values": ["a"]}]}]);
        self.apply(&refused)?;
        self.apply(&snapshot_class(flavor, &format!("{prefix}snapshots")))
    }

    /// Applies a claim for a filesystem.
    pub(crate) fn apply_claim(&self, name: &str, class: &str, size: &str) -> Result<()> {
        self.apply(&claim(name, class, size, VolumeMode::Filesystem))
    }

    /// Runs a shell command in a pod.
    pub(crate) fn exec_in_pod(&self, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    /// Waits until the claim is Bound.
    pub(crate) fn wait_bound(&self, claim: &str) -> Result<()> {
        let claim = format!("persistentvolumeclaim/{claim}");
        self.kubectl(&["wait", "--for=jsonpath={.status.phase}=Bound", &claim, "--timeout=180s"]).map(drop)
    }

    /// Waits until the pod is Ready.
    pub(crate) fn wait_ready(&self, pod: &str) -> Result<()> {
        self.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=180s"]).map(drop)
    }

    /// Starts a pod on the claim of its name.
    pub(crate) fn start_pod(&self, name: &str, mode: VolumeMode) -> Result<()> {
        self.apply(&pod(name, name, mode))?;
        self.wait_ready(name)
    }

    /// Deletes the pod and waits until it is removed.
    pub(crate) fn delete_pod(&self, pod: &str) -> Result<()> {
        self.kubectl(&["delete", "pod", pod, "--timeout=180s"]).map(drop)
    }

    /// Deletes the pod and the claim of this name, and waits until the volume is removed.
    pub(crate) fn delete_pod_and_claim(&self, name: &str) -> Result<()> {
        self.delete_pod(name)?;
        self.delete_claim(name)
    }

    /// Writes a word into a pod's volume.
    pub(crate) fn write_word(&self, pod: &str, word: &str) -> Result<()> {
        self.exec_in_pod(pod, &format!("echo {word} >/data/file && sync")).map(drop)
    }

    /// Reads the word in a pod's volume.
    pub(crate) fn read_word(&self, pod: &str) -> Result<String> {
        Ok(self.exec_in_pod(pod, "cat /data/file")?.trim().to_owned())
    }

    /// Returns the size of the filesystem in a pod's volume, in MiB.
    pub(crate) fn filesystem_mebibytes(&self, pod: &str) -> Result<u32> {
        let size = self.exec_in_pod(pod, "df -mP /data | awk 'END {print $2}'")?;
        size.trim().parse().with_context(|| format!("df printed {size:?}"))
    }

    /// Waits until the agent has recorded that the API server has the volume of a claim.
    pub(crate) fn wait_remembered(&self, claim: &str) -> Result<()> {
        let resource = logical_volume_resource(ApiFlavor::TopoLvm);
        let created = self.value(&resource, &self.volume_name(claim)?, ".metadata.creationTimestamp")?;
        self.cluster.ready("apiserver", || {
            let path = r".metadata.annotations.topolvm\.io/volumes-until";
            let until = self.value("node", self.node.name(), path)?;
            ensure!(until >= created, "{claim} of {created} is remembered until {until:?} only");
            Ok(())
        })
    }

    /// Waits until the snapshot can be restored.
    pub(crate) fn wait_snapshot(&self, name: &str) -> Result<()> {
        let snapshot = format!("volumesnapshot/{name}");
        self.kubectl(&["wait", "--for=jsonpath={.status.readyToUse}=true", &snapshot, "--timeout=180s"]).map(drop)
    }

    /// Returns the name of the PersistentVolume, and of the LogicalVolume, of a claim.
    pub(crate) fn volume_name(&self, claim: &str) -> Result<String> {
        self.kubectl(&["get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"])
    }

    /// Reads an object.
    pub(crate) fn get_object(&self, kind: &str, name: &str) -> Result<Value> {
        serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"])?).context("kubectl prints no JSON")
    }

    /// Waits until the value at a JSONPath of an object is not empty.
    pub(crate) fn wait_value_present(&self, kind: &str, name: &str, path: &str) -> Result<()> {
        self.cluster.ready("apiserver", || {
            ensure!(!self.value(kind, name, path)?.is_empty(), "{kind} {name} has no {path}");
            Ok(())
        })
    }

    /// Runs `body` with the programs of another specification, and restores the usual ones also after an error.
    /// `meanwhile` runs while no programs run.
    pub(crate) fn run_with_spec(
        &self,
        spec: &TopolvmSpec,
        meanwhile: impl FnOnce() -> Result<()>,
        body: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        topolvm::stop(&self.cluster, &self.nodes, &self.spec)?;
        let made = meanwhile();
        let done = topolvm::start(&self.cluster, &self.nodes, spec)
            .and(made)
            .and_then(|()| body())
            .with_state(|| self.state());
        topolvm::stop(&self.cluster, &self.nodes, spec)?;
        topolvm::start(&self.cluster, &self.nodes, &self.spec)?;
        done
    }

    /// Waits for an event of this reason about this object, and returns its message.
    pub(crate) fn wait_event(&self, object: &str, reason: &str) -> Result<String> {
        self.wait_event_with(object, reason, "")
    }

    /// Waits for an event whose message contains this text, after any other messages.
    pub(crate) fn wait_event_with(&self, object: &str, reason: &str, words: &str) -> Result<String> {
        let selector = format!("involvedObject.name={object},reason={reason}");
        let mut command = self.cluster.kubectl_command();
        command.args(["get", "events", "--watch", "--request-timeout=180s", "--field-selector", &selector]);
        command.args(["-o", "jsonpath={.message}{\"\\n\"}"]);
        let mut kubectl = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let output = kubectl.stdout.take().context("kubectl has no output")?;
        let mut lines = BufReader::new(output).lines();
        let found = lines.find(|line| line.as_ref().map_or(true, |line| line.contains(words)));
        kubectl.kill()?;
        kubectl.wait()?;
        Ok(found.with_context(|| format!("no event {reason} about {object} with {words:?} within three minutes"))??)
    }

    /// Requests another size of a claim.
    pub(crate) fn request_size(&self, claim: &str, size: &str) -> Result<()> {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}}).to_string();
        self.kubectl(&["patch", "persistentvolumeclaim", claim, "-p", &patch]).map(drop)
    }

    /// Requests another size of a claim and waits until the volume, though not yet a filesystem on it, has it.
    pub(crate) fn expand(&self, claim: &str, size: &str) -> Result<()> {
        self.request_size(claim, size)?;
        let volume = self.kubectl(&["get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}"])?;
        let condition = format!("--for=jsonpath={{.spec.capacity.storage}}={size}");
        self.kubectl(&["wait", &condition, &format!("persistentvolume/{volume}"), "--timeout=180s"]).map(drop)
    }

    /// Deletes a claim, if it still exists, and waits until its volume is removed, also when the claim was not Bound.
    pub(crate) fn delete_claim(&self, claim: &str) -> Result<()> {
        let format = "jsonpath={.metadata.uid} {.spec.volumeName}";
        let said = self.kubectl(&["get", "pvc", claim, "--ignore-not-found", "-o", format])?;
        self.kubectl(&["delete", "persistentvolumeclaim", claim, "--ignore-not-found", "--timeout=180s"])?;
        let volume = match said.split_once(' ') {
            Some((uid, "")) => format!("{}/pvc-{uid}", logical_volume_resource(ApiFlavor::TopoLvm)),
            Some((_, volume)) => format!("persistentvolume/{volume}"),
            None => return Ok(()),
        };
        self.kubectl(&["wait", "--for=delete", &volume, "--timeout=180s"]).map(drop)
    }

    /// Waits until there is no LogicalVolume of either flavor.
    pub(crate) fn wait_no_volumes(&self) -> Result<()> {
        for flavor in FLAVORS {
            self.kubectl(&["wait", "--for=delete", &logical_volume_resource(flavor), "--all", "--timeout=180s"])?;
        }
        Ok(())
    }

    /// Checks that there are this many LogicalVolumes, that each has its LV, and that there is no other LV.
    pub(crate) fn check_volumes(&self, count: usize) -> Result<()> {
        let mut objects = Vec::new();
        for flavor in FLAVORS {
            let format = "jsonpath={range .items[*]}{.metadata.uid} {end}";
            objects.extend(words(&self.kubectl(&["get", &logical_volume_resource(flavor), "-o", format])?));
        }
        let mut volumes = words(&self.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?);
        objects.sort();
        volumes.sort();
        ensure!(objects == volumes, "LogicalVolumes {objects:?} and LVs {volumes:?} do not match");
        ensure!(objects.len() == count, "{} volumes where {count} should be: {objects:?}", objects.len());
        Ok(())
    }

    /// Restarts lvmd, which reads its configuration, and waits until it serves.
    pub(crate) fn restart_lvmd(&self) -> Result<()> {
        self.node.kill_kept(LVMD)?;
        self.cluster.ready("apiserver", || self.node.script("curl -sf http://127.0.0.1:8082/metrics").map(drop))
    }

    /// Configures lvmd to run this script in the place of `lvm`.
    pub(crate) fn use_lvm(&self, script: &str) -> Result<()> {
        let install = "mkdir -p /run/crash && rm -f /run/crash/arm* && cat >/run/crash/lvm.new \
                       && chmod 755 /run/crash/lvm.new && mv /run/crash/lvm.new /run/crash/lvm";
        self.node.script_with_input(install, script.as_bytes())?;
        if !self.node.script("cat /etc/topolvm/lvmd.yaml")?.contains("/run/crash/lvm") {
            self.node.script(
                "sed -i '/^lvm-command-prefix/d' /etc/topolvm/lvmd.yaml \
                 && echo 'lvm-command-prefix: [/run/crash/lvm]' >>/etc/topolvm/lvmd.yaml",
            )?;
            self.node.kill_kept(LVMD)?;
        }
        Ok(())
    }

    /// Waits, after kubelet and the agent were killed, until kubelet has published so many volumes to the new agent.
    pub(crate) fn wait_node_ready_again(&self, volumes: usize) -> Result<()> {
        let published = r#"topolvm_grpc_handled_total.method="NodePublishVolume",code="Ok"."#;
        let script = format!(
            "end=$((SECONDS + 90)); until curl -s http://127.0.0.1:8080/metrics | \
             awk '/{published}/ {{n = $2}} END {{exit n < {volumes}}}'; do (( SECONDS < end )); sleep 0.2; done"
        );
        self.node.script(&script).context("kubelet has not published the volumes again").map(drop)
    }

    fn clean_up(&self) -> Result<()> {
        self.node.script("rm -f /run/crash/arm")?;
        self.kubectl(&["delete", "pods,persistentvolumeclaims", "--all", "--timeout=180s"])?;
        self.kubectl(&["delete", "volumesnapshots", "--all", "--timeout=180s"])?;
        // Volumes that a test created without a claim
        self.kubectl(&["delete", &logical_volume_resource(ApiFlavor::TopoLvm), "--all", "--wait=false"])?;
        self.wait_no_volumes()
    }

    fn state(&self) -> String {
        // An agent that does not answer may run in a node that has ended
        let mut text = format!("console of {}:\n{}\n", self.node.name(), self.node.log_tail("console", 10));
        for arguments in [
            &["get", "pods,pvc,pv", "-o", "wide"][..],
            &["get", &logical_volume_resource(ApiFlavor::TopoLvm), "-o", "yaml"],
            &["get", &logical_volume_resource(ApiFlavor::Legacy), "-o", "yaml"],
            &["get", "events", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "-n",
                NAMESPACE,
                "-l=app.kubernetes.io/name=topolvm",
                "--all-containers",
                "--prefix",
                "--tail=15",
            ],
        ] {
            text += &self.kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"));
        }
        text += &self
            .node
            .script("lvs -a -o +tags; tail -n 15 /run/node/lvmd.log /run/node/topolvm-node.log")
            .unwrap_or_default();
        text
    }
}

/// Returns the name of the resource `LogicalVolume` for kubectl.
pub(crate) fn logical_volume_resource(flavor: ApiFlavor) -> String {
    format!("logicalvolumes.{}", flavor.group())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

//! A disk is evacuated under a pod that writes, while lvmd is killed repeatedly and the node loses its power once: the
//! evacuation resumes automatically, and no synced line is lost.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use system_tests::plugin;
use testbed::topolvm::{LVMD, RAID_CLASSES};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::Fixture;

/// Name of the pod, its claim and its StorageClass.
const NAME: &str = "evacuated";
/// Number of times that lvmd is killed; after half of them the node loses its power.
const KILLS: usize = 10;
/// Rate with which every kill finds a piece that is left to move: 33 pieces of 12 MiB in more than a minute.
const RATE: &str = "6Mi";
/// Time in which the rest is moved. In addition to the two seconds by the rate, a piece takes a second of LVM and two
/// reads.
const EMPTIED: Duration = Duration::from_mins(5);
const SIZE: &str = "400Mi";
/// Most bytes of a piece at that rate: of two seconds.
const PIECE: u64 = 12 << 20;
/// Least lines that a pod writes from one start to the next.
const LEAST_LINES: usize = 100;

/// Writes numbered lines to a file for each start, syncs each, and then records the sync on the disk of the machine,
/// which keeps its power. The second field of a line is determined by the first and by the start.
const WRITE: &str = r"trap 'exit 0' TERM
cd /data
start=$(ls | grep -c '^lines')
[ $start != 0 ] || { dd if=/dev/urandom of=random bs=1M count=200 && sha256sum random >sum && sync; } 2>/dev/null
n=0
until [ -e stop ]; do
  n=$((n + 1))
  if echo $n $(((n + start) * 2654435761 % 4294967296)) >>lines.$start && sync lines.$start
  then echo $n >>/notes/synced.$start; sync /notes/synced.$start
  else echo $n >>/notes/failed; sync /notes/failed; fi
done
echo >/notes/stopped
sleep 2147483647 & wait";

/// Finds out, with the name of its device behind, whether a piece is being moved.
const IS_MOVING: &str = "dmsetup info -c --noheadings -o name | grep -qx";

pub(crate) fn tests_with_processes() -> Vec<(String, Body)> {
    let name = "evacuation_survives_ten_lvmd_kills_and_a_power_cut";
    vec![(name.to_owned(), empty_with_kills)]
}

fn empty_with_kills(fixture: &Fixture) -> Result<()> {
    let [_, group] = RAID_CLASSES;
    // A program that other tests run in place of LVM does not survive a boot
    let write_config = "cat >/etc/topolvm/lvmd.yaml && sync /etc/topolvm/lvmd.yaml";
    fixture.node.script_with_input(write_config, fixture.spec.lvmd_config.as_bytes())?;
    fixture.restart_lvmd()?;
    let listed = fixture.node.script(&format!("pvs --noheadings -o pv_name --select vg_name={group}"))?;
    let disk = listed.split_whitespace().next().with_context(|| format!("{group} has no disk"))?;
    let notes = fixture.node.directory().join("notes");
    fs::create_dir_all(&notes)?;
    let done = EvacuationTest { fixture, group, disk, notes: notes.clone() }.run();
    if done.is_err() {
        // Other tests use the disk
        let stop = ["disk", "evacuate", fixture.node.name(), disk, "--stop", "--no-wait"];
        drop(plugin::run(&fixture.cluster, &fixture.cluster.inner_kubeconfig(), &stop));
    }
    let restored = fixture.node.script(&format!(
        "vgs -o vg_name --noheadings {group} -S 'pv_count=2' | grep -q . || vgextend -qq {group} {disk}
        pvs --noheadings -o pv_name --select vg_name={group} | xargs pvchange -qq -x y 2>/dev/null || :
        vgchange -qq --deltag topolvm.io/disk-group={group} {group}"
    ));
    done?;
    fs::remove_dir_all(notes)?;
    restored.map(drop)
}

struct EvacuationTest<'a> {
    fixture: &'a Fixture,
    group: &'a str,
    /// The disk that is emptied.
    disk: &'a str,
    /// Directory of this machine in which the pod records what it has synced.
    notes: PathBuf,
}

impl EvacuationTest<'_> {
    fn run(&self) -> Result<()> {
        let Self { fixture, disk, .. } = *self;
        let node = fixture.node.name();
        self.start_writer()?;
        self.wait_lines(0)?;
        plugin::run_successfully(&fixture.cluster, &["disk", "evacuate", node, disk, "--rate", RATE, "--no-wait"])?;
        let mut left = self.used()?;
        for kill in 1..=KILLS {
            left = self.kill(left, kill % 2 == 0).with_context(|| format!("kill {kill}"))?;
            if kill == KILLS / 2 {
                self.wait_moving()?;
                fixture.node.restart(true)?;
                self.wait_writer_again().context("after the power cut")?;
            }
        }
        self.wait_lines(1)?;
        eprintln!("{left} bytes are left after {KILLS} kills and a power cut");
        fixture.cluster.ready_within("apiserver", EMPTIED, || {
            let left = self.used()?;
            ensure!(left == 0, "{left} bytes are left");
            Ok(())
        })?;
        fixture.wait_event(node, "DiskEvacuated")?;
        self.check_lines()?;
        plugin::run_successfully(&fixture.cluster, &["disk", "remove", node, disk, "--yes"])?;
        let disks = fixture.node.script(&format!("pvs --noheadings -o pv_name --select vg_name={}", self.group))?;
        ensure!(!disks.contains(disk), "it is still in the group: {disks}");
        fixture.delete_pod_and_claim(NAME)?;
        fixture.kubectl(&["delete", "storageclass", NAME]).map(drop)
    }

    /// Hands the group over to lvmd and starts a pod that writes to a volume on the disk.
    fn start_writer(&self) -> Result<()> {
        let Self { fixture, group, disk, .. } = *self;
        let others = format!("pvs --noheadings -o pv_name --select 'vg_name={group} && pv_name!={disk}'");
        fixture.node.script(&format!(
            "vgchange -qq --addtag topolvm.io/disk-group={group} {group}; {others} | xargs pvchange -qq -x n"
        ))?;
        fixture.apply(&storage_class(TopoLvm, NAME, Some(group), true))?;
        fixture.apply(&claim(NAME, NAME, SIZE, VolumeMode::Filesystem))?;
        fixture.wait_bound(NAME)?;
        fixture.node.script(&format!("{others} | xargs pvchange -qq -x y"))?;
        fixture.apply(&writer())?;
        fixture.wait_ready(NAME)?;
        ensure!(self.used()? > 30 * PIECE, "the volume is on another disk");
        Ok(())
    }

    /// Returns the bytes of volumes that are on the disk.
    fn used(&self) -> Result<u64> {
        let script = format!("pvs --noheadings -o pv_used --units b --nosuffix {}", self.disk);
        let used = self.fixture.node.script(&script)?;
        used.trim().parse().with_context(|| format!("pvs printed {used:?}"))
    }

    /// Waits until lvmd has moved something since `before` bytes were left, or moves something now, and kills it.
    /// Returns the bytes that are left.
    fn kill(&self, before: u64, while_moving: bool) -> Result<u64> {
        let Self { fixture, disk, group, .. } = *self;
        let (wait, used) = ("(( SECONDS < end )) || { echo in vain >&2; exit 1; }", "pvs --noheadings -o pv_used");
        // It serves when it has waited for the LVM that the one before has left
        let ready = format!(
            "curl -sf http://127.0.0.1:8082/metrics | grep -q '^topolvm_lvmd_evacuation_remaining_bytes.*{disk}'"
        );
        let due = if while_moving {
            format!("{IS_MOVING} {group}-pvmove0")
        } else {
            format!("[ $({used} --units b --nosuffix {disk}) -lt {before} ] && ! {IS_MOVING} {group}-pvmove0")
        };
        let script = format!(
            "end=$((SECONDS + 60)); until {ready}; do {wait}; sleep 0.1; done; until {due}; do {wait}; done; \
             read -r pid </run/kept/{LVMD}; kill -KILL $pid; echo $pid"
        );
        let killed = fixture.node.script(&script)?;
        let left = self.used()?;
        eprintln!("killed lvmd {} with {left} bytes left, in a move: {while_moving}", killed.trim());
        ensure!(left > PIECE, "{left} bytes are left: it was not killed in an evacuation");
        ensure!(left <= before, "{left} bytes are left, and {before} were before");
        Ok(left)
    }

    fn wait_moving(&self) -> Result<()> {
        let is_moving = format!("{IS_MOVING} {}-pvmove0", self.group);
        let wait = format!("end=$((SECONDS + 60)); until {is_moving}; do (( SECONDS < end )); done");
        self.fixture.node.script(&wait).map(drop)
    }

    fn wait_writer_again(&self) -> Result<()> {
        let started = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1";
        self.fixture.kubectl(&["wait", started, &format!("pod/{NAME}"), "--timeout=180s"])?;
        self.fixture.wait_ready(NAME)
    }

    /// Waits until the pod has written since a start.
    fn wait_lines(&self, start: usize) -> Result<()> {
        self.fixture.cluster.ready("apiserver", || {
            let synced = self.synced(start)?;
            ensure!(synced >= LEAST_LINES, "{synced} lines are synced since start {start}");
            Ok(())
        })
    }

    /// Returns the number of lines that were synced since a start.
    fn synced(&self, start: usize) -> Result<usize> {
        let notes = match fs::read_to_string(self.notes.join(format!("synced.{start}"))) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            notes => notes?,
        };
        // A line without its end is being written
        let last = notes.rsplit_once('\n').and_then(|(whole, _)| whole.rsplit('\n').next());
        last.map_or(Ok(0), |last| last.parse().with_context(|| format!("the pod has noted {last:?}")))
    }

    /// Stops the writer and checks the file on the disk: no write has failed, and no synced line is lost.
    fn check_lines(&self) -> Result<()> {
        let fixture = self.fixture;
        fixture.exec_in_pod(NAME, "touch /data/stop")?;
        fixture.cluster.ready("apiserver", || {
            ensure!(self.notes.join("stopped").exists(), "the pod still writes");
            Ok(())
        })?;
        fixture.node.script("sync; echo 3 >/proc/sys/vm/drop_caches")?;
        fixture.exec_in_pod(NAME, "cd /data && sha256sum -c sum").context("what was moved is not what it was")?;
        ensure!(!self.notes.join("failed").exists(), "a write has failed");
        for start in 0..2 {
            let lines = fixture.exec_in_pod(NAME, &format!("cat /data/lines.{start}"))?;
            let (synced, found) = (self.synced(start)?, count_whole(&lines, start)?);
            eprintln!("start {start}: {synced} lines synced, {found} there");
            ensure!(synced >= LEAST_LINES && found >= synced, "of {synced} lines that were synced {found} are there");
        }
        let starts = fixture.exec_in_pod(NAME, "ls /data/lines.*")?;
        ensure!(starts.lines().count() == 2, "the pod was started at other times: {starts}");
        let problems =
            fixture.node.script(&format!("lvs -a --noheadings -o lv_name,lv_health_status {}", self.group))?;
        ensure!(!problems.contains("pvmove") && problems.split_whitespace().count() == 1, "{problems}");
        Ok(())
    }
}

/// Returns the pod that writes.
fn writer() -> Value {
    let mut writer = pod(NAME, NAME, VolumeMode::Filesystem);
    let spec = &mut writer["spec"];
    spec["containers"][0]["command"] = json!(["sh", "-c", WRITE]);
    let mounts = [("data", "/data"), ("notes", "/notes")];
    spec["containers"][0]["volumeMounts"] = mounts.map(|(name, path)| json!({"name": name, "mountPath": path})).into();
    let notes = json!({"name": "notes", "hostPath": {"path": "/run/node/notes", "type": "Directory"}});
    spec["volumes"] = json!([spec["volumes"][0], notes]);
    writer
}

/// Counts the lines, which have to be in order and right. The last one may be cut.
fn count_whole(lines: &str, start: usize) -> Result<usize> {
    let whole = lines.rsplit_once('\n').map_or("", |(whole, _)| whole);
    for (number, line) in (1..).zip(whole.lines()) {
        let sum = (number + start).wrapping_mul(2_654_435_761) % (1 << 32);
        ensure!(line == format!("{number} {sum}"), "line {number} of start {start} is {line:?}");
    }
    Ok(whole.lines().count())
}

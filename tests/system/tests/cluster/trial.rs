//! `kubectl topolvm trial` on a node without a volume group: the first claim, a reboot, a deleted image file, and a
//! removal that leaves nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use system_tests::commands::Commands;
use system_tests::objects::Objects;
use system_tests::plugin::{self, Answer};
use system_tests::shared::TestCluster;
use testbed::node::Node;

/// Directory of the file: a disk of the node. Its root directory is in memory.
const DIRECTORY: &str = "/var/lib/kubelet/topolvm-trial";
/// Copies of the metadata of each volume group, which LVM creates before it changes one.
const ARCHIVE: &str = "/etc/lvm/archive";
/// Copies of a group whose name has the same prefix, and of a foreign one of the same name.
const OF_OTHERS: [&str; 2] = ["topolvm-trial_00000-1_00000-2.vg", "topolvm-trial_00009-3.vg"];
const FILE: &str = "/var/lib/kubelet/topolvm-trial/topolvm-trial.img";
/// From the command to a claim with a volume, on a machine that does something else, too.
const FIRST_CLAIM: Duration = Duration::from_mins(3);
/// Pods of the DaemonSet that attaches the file.
const PODS: [&str; 4] = ["-n", "topolvm-system", "--selector", "app.kubernetes.io/component=trial"];
const TIMEOUT: &str = "--timeout=180s";

/// Runs `kubectl topolvm trial` in a cluster without the product.
pub(crate) fn check(shared: &TestCluster) -> Result<()> {
    let node = shared.node()?;
    // The volume group of the test bed, which the next boot recreates
    node.script("vgremove -qq myvg1; pvremove -qq /dev/ubdc")?;
    let before = Objects::list(shared)?;
    make_first_claim(shared, node).context("first claim")?;
    check_refusals(shared).context("refusals")?;
    check_discards(shared, node).context("discards")?;
    check_named(shared, node).context("what cannot be repaired")?;
    node.restart(false)?;
    check_after_reboot(shared).context("after a reboot")?;
    let page = Commands::of("trial.md", "Remove it")?;
    page.with("kubectl topolvm trial --remove", "# when the file is repaired")?.run(&shared.cluster)?;
    repair_deleted_file(shared, node).context("a deleted file")?;
    remove(shared, node).context("removal")?;
    Objects::list(shared)?.ensure_same(&before)?;
    let again = plugin::run_successfully(&shared.cluster, &["trial", "--remove"])?;
    ensure!(again.text == "no trial is installed\n", "{again:?}");
    Ok(())
}

/// Removes the trial, which leaves only directories on the node, and keeps the metadata of other groups.
fn remove(shared: &TestCluster, node: &Node) -> Result<()> {
    let [longer, foreign] = OF_OTHERS.map(|name| format!("{ARCHIVE}/{name}"));
    node.script(&format!(
        "set -- {ARCHIVE}/topolvm-trial_*.vg; cp \"$1\" {longer}; sed s,topolvm.io/trial,mine, \"$1\" >{foreign}"
    ))?;
    // The command does not remove a group that LVM does not see
    let hidden = "devices { global_filter = [ \"r|^/dev/loop|\" ] }";
    node.script(&format!(
        "cp /etc/lvm/lvmlocal.conf /tmp/lvmlocal.conf 2>/dev/null || :; echo '{hidden}' >/etc/lvm/lvmlocal.conf"
    ))?;
    let refused = run(shared, &["trial", "--remove"]);
    node.script("mv /tmp/lvmlocal.conf /etc/lvm/lvmlocal.conf 2>/dev/null || rm /etc/lvm/lvmlocal.conf")?;
    let refused = refused?;
    ensure!(!refused.is_success && refused.errors.contains("that LVM does not see"), "{refused:?}");
    node.script(&format!("test -s {FILE} && vgs topolvm-trial"))?;
    plugin::run_successfully(&shared.cluster, &["trial", "--remove"])?;
    let left = node.script(&format!(
        "losetup -a; vgs --noheadings -o vg_name topolvm-trial 2>/dev/null || :; ls -d {DIRECTORY} 2>/dev/null || :
        find /etc/lvm -name 'topolvm-trial*' | sort
        find /var/lib/kubelet/plugins/topolvm.io /var/lib/kubelet/plugins_registry /run/topolvm ! -type d"
    ))?;
    ensure!(left.lines().eq([longer, foreign]), "the removal leaves {left:?}");
    Ok(())
}

/// Runs the command, and then its output, like a user who copies it into a shell.
fn make_first_claim(shared: &TestCluster, node: &Node) -> Result<()> {
    let began = Instant::now();
    let directory = format!("--directory={DIRECTORY}");
    let answer = plugin::run_successfully(&shared.cluster, &["trial", "--size=1Gi", &directory, "--no-smoke-test"])?;
    ensure!(answer.errors.contains("not for data that you need"), "{answer:?}");
    let installed = began.elapsed();
    let (_, example) = answer.text.split_once("Try it:\n").context("no example")?;
    let (example, _) = example.split_once("Remove it again").context("no end of the example")?;
    let (apply, show) = example.split_once("\nEOF\n").context("no document for the shell")?;
    plugin::run_line(&shared.cluster, &format!("{apply}\nEOF\n"))?;
    shared.kubectl(&["wait", "--for=jsonpath={.status.phase}=Bound", "pvc/trial", TIMEOUT])?;
    let bound = began.elapsed();
    eprintln!(
        "trial: installed after {:.0} s, first claim after {:.0} s",
        installed.as_secs_f64(),
        bound.as_secs_f64()
    );
    ensure!(bound < FIRST_CLAIM, "the first claim took {bound:?}");
    plugin::run_line(&shared.cluster, show)?;
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let restarts = shared.kubectl(&[&["get", "pods", "-o", restarts][..], &PODS].concat())?;
    ensure!(restarts == "0", "the pod of the trial was restarted: {restarts}");
    let allocated = allocated_bytes(node)?;
    ensure!(allocated < 128 << 20, "{allocated} bytes of the file are allocated: it is not sparse");
    Ok(())
}

/// Checks that a blocked removal, of the trial or of the product, names the blocker and changes nothing.
fn check_refusals(shared: &TestCluster) -> Result<()> {
    let refused = run(shared, &["trial", "--remove"])?;
    ensure!(!refused.is_success && refused.errors.contains("PersistentVolumeClaim default/trial"), "{refused:?}");
    let refused = run(shared, &["uninstall"])?;
    ensure!(!refused.is_success && refused.errors.contains("kubectl topolvm trial --remove"), "{refused:?}");
    shared.kubectl(&["exec", "trial", "--", "test", "-s", "/data/dates"]).map(drop)
}

/// Checks that the script of the DaemonSet names problems that it cannot repair, and changes nothing.
fn check_named(shared: &TestCluster, node: &Node) -> Result<()> {
    let path = "jsonpath={.spec.template.spec.initContainers[0].command[11]}";
    let script = shared.kubectl(&["get", "daemonset", "topolvm-trial", "-n", "topolvm-system", "-o", path])?;
    let refused = |environment: &str, words: &str| -> Result<()> {
        let run = format!("script=$(cat); export TAG=topolvm.io/trial {environment}; ! sh -c \"$script\" 2>&1");
        let said = node.script_with_input(&run, script.as_bytes())?;
        ensure!(said.contains(words), "{words}: {said}");
        Ok(())
    };
    let other = "DIRECTORY=/var/lib/kubelet/other SIZE=1073741824";
    refused(&format!("GROUP=topolvm-trial {other}"), "the volume group topolvm-trial already exists on /dev/loop")?;
    refused(&format!("GROUP=large {other}000"), "/var/lib/kubelet/other/large.img can have at most")?;
    node.script("rmdir /var/lib/kubelet/other")?;
    // Its blocks stay, as those of a file that a loop device has
    node.script(&format!("ln {FILE} {FILE}.kept; rm {FILE}"))?;
    let outcome =
        refused(&format!("GROUP=topolvm-trial DIRECTORY={DIRECTORY} SIZE=1073741824"), "It contains these volumes: ");
    node.script(&format!("mv {FILE}.kept {FILE}"))?;
    outcome
}

/// Checks that blocks which are discarded in a volume take no space in the file any more.
fn check_discards(shared: &TestCluster, node: &Node) -> Result<()> {
    let write = "dd if=/dev/urandom of=/data/much bs=1M count=64 2>/dev/null && sync";
    shared.kubectl(&["exec", "trial", "--", "sh", "-c", write])?;
    let full = allocated_bytes(node)?;
    shared.kubectl(&["exec", "trial", "--", "sh", "-c", "rm /data/much && sync"])?;
    node.script("fstrim \"$(findmnt -rno TARGET | grep -m1 'kubernetes.io~csi.*/mount$')\"")?;
    let trimmed = allocated_bytes(node)?;
    ensure!(trimmed + (48 << 20) < full, "{full} bytes were allocated, and {trimmed} after a discard of 64 MiB");
    Ok(())
}

fn check_after_reboot(shared: &TestCluster) -> Result<()> {
    shared.cluster.ready("apiserver", || {
        let lines = shared.kubectl(&["exec", "trial", "--", "wc", "-l", "/data/dates"])?;
        // One of each start of the container
        ensure!(lines.trim_start().starts_with('2'), "the file has {lines}");
        Ok(())
    })
}

/// Checks that a file that is deleted under its loop device is recreated when no volume was in it.
fn repair_deleted_file(shared: &TestCluster, node: &Node) -> Result<()> {
    node.script(&format!("rm {FILE}"))?;
    shared.kubectl(&[&["delete", "pod", TIMEOUT][..], &PODS].concat())?;
    shared.cluster.ready("apiserver", || {
        let seen = node.script("cat /sys/block/loop*/loop/backing_file; vgs --noheadings -o vg_name topolvm-trial")?;
        let words: Vec<_> = seen.split_whitespace().collect();
        ensure!(words == [FILE, "topolvm-trial"], "loop devices and groups are {words:?}");
        Ok(())
    })
}

fn allocated_bytes(node: &Node) -> Result<u64> {
    let blocks: u64 = node.script(&format!("sync; stat -c %b {FILE}"))?.trim().parse()?;
    Ok(blocks * 512)
}

fn run(shared: &TestCluster, arguments: &[&str]) -> Result<Answer> {
    plugin::run(&shared.cluster, &shared.cluster.inner_kubeconfig(), arguments)
}

//! Injects a fault into a node, checks what must hold during the fault, and repairs the node.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::LVMD;

use super::class::Class;
use super::disturbance::Disturbance;
use super::foreign_group::{CreatedGroup, ForeignGroup};
use super::history::{EVENTS, Fact, History};
use super::programs::Programs;
use super::remap::{Remap, is_unchanged};
use super::state::published;
use super::workload::Workload;
use system_tests::plugin;

const LVMD_CONFIG: &str = "/etc/topolvm/lvmd.yaml";
const LVM_LOCAL: &str = "/etc/lvm/lvmlocal.conf";
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The nodes with the workloads that keep data on them.
#[derive(Debug)]
pub(super) struct DisturbedNodes<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) nodes: &'a [Node],
    pub(super) history: &'a History,
    pub(super) programs: &'a Programs<'a>,
    pub(super) workloads: Vec<Workload<'a>>,
    /// Timeout for the start of a pod.
    pub(super) patience: Duration,
}

impl<'a> DisturbedNodes<'a> {
    /// Starts a thick and a thin workload on each node.
    pub(super) fn start(
        cluster: &'a Cluster,
        nodes: &'a [Node],
        history: &'a History,
        programs: &'a Programs<'a>,
        patience: Duration,
    ) -> Result<Self> {
        let of_class = |class| nodes.iter().map(move |node| Workload::new(cluster, node, patience, "workload", class));
        let workloads: Vec<_> = of_class(Class::Thick).chain(of_class(Class::Thin)).collect();
        workloads.iter().try_for_each(Workload::start)?;
        Ok(Self { cluster, nodes, history, programs, workloads, patience })
    }

    /// Returns the node of this number, modulo the number of nodes.
    pub(super) fn node(&self, number: usize) -> Result<&'a Node> {
        self.nodes.iter().cycle().nth(number).context("there are no nodes")
    }

    /// Returns the workloads of a node.
    pub(super) fn workloads_on<'b>(&'b self, node: &'b Node) -> impl Iterator<Item = &'b Workload<'a>> {
        self.workloads.iter().filter(|workload| workload.node().name() == node.name())
    }

    /// Returns a thick and a thin workload of a node that are not started.
    fn probes(&self, node: &'a Node, purpose: &str) -> [Workload<'a>; 2] {
        [Class::Thick, Class::Thin].map(|class| Workload::new(self.cluster, node, self.patience, purpose, class))
    }

    /// Restarts pods with existing volumes, and creates and removes volumes.
    fn use_volumes(&self, node: &'a Node) -> Result<()> {
        self.workloads_on(node).try_for_each(Workload::restart)?;
        self.probes(node, "probe").iter().try_for_each(|probe| probe.start().and_then(|()| probe.delete()))
    }

    /// Disturbs a node and returns when it is as before. Each workload of the node must have kept its data.
    pub(super) fn disturb_node(&self, disturbance: &Disturbance, number: usize) -> Result<()> {
        let node = self.node(number)?;
        self.history.record(EVENTS, Fact::Disturbed(format!("on {} {disturbance}", node.name())));
        let done = match disturbance {
            Disturbance::ClassRemapped(remap) => self.remap_class(node, *remap),
            Disturbance::LvmConfig(setting) => self.configure_lvm(node, setting),
            Disturbance::LvmKilled(pauses) => self.kill_lvm_at_work(node, pauses),
            Disturbance::PowerCut => self.cut_power(node),
            Disturbance::SignatureDestroyed(class) => self.destroy_signature(node, *class),
            Disturbance::TenantGroup(group) => self.write_tenant_group(node, *group),
            Disturbance::ForeignDisk(group) => self.use_with_foreign_group(node, *group, &node.spec().last_disk()?),
            Disturbance::ObjectsDeleted => self.delete_objects(node),
            Disturbance::FilesystemFrozen(class) => self.freeze_filesystem(node, *class),
            Disturbance::VolumeHeld => self.hold_volume(node),
        };
        let kept = done.and_then(|()| self.workloads_on(node).try_for_each(Workload::check));
        self.history.record(EVENTS, Fact::Restored);
        kept.with_context(|| format!("on {}: {disturbance}", node.name()))
    }

    /// Restarts pods with existing volumes and removes volumes while their device class is configured differently.
    fn remap_class(&self, node: &'a Node, remap: Remap) -> Result<()> {
        let before = node.script(&format!("cat {LVMD_CONFIG}"))?;
        let probes = self.probes(node, "removed");
        probes.iter().try_for_each(Workload::start)?;
        let done = self
            .configure_lvmd(node, &remap.apply(&before)?, |node| remap.is_published(node))
            .and_then(|()| self.workloads_on(node).try_for_each(Workload::restart))
            .and_then(|()| probes.iter().try_for_each(Workload::delete));
        self.configure_lvmd(node, &before, is_unchanged)?;
        done
    }

    /// Writes lvmd's configuration and waits until the Node publishes the capacity of its classes.
    fn configure_lvmd(
        &self,
        node: &Node,
        config: &str,
        is_published: impl Fn(&std::collections::BTreeMap<String, u64>) -> bool,
    ) -> Result<()> {
        let write = format!("cat >{LVMD_CONFIG}.new; mv {LVMD_CONFIG}.new {LVMD_CONFIG}; sync {LVMD_CONFIG}");
        node.script_with_input(&write, config.as_bytes())?;
        let end = Instant::now() + self.patience;
        while !is_published(&published(self.cluster, node.name())?) {
            if Instant::now() > end {
                bail!("lvmd of {} does not work with this configuration:\n{config}", node.name());
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Restarts pods with existing volumes, and creates and removes volumes, with a setting of lvm.conf.
    fn configure_lvm(&self, node: &'a Node, setting: &str) -> Result<()> {
        let before = node.script(&format!("cat {LVM_LOCAL}"))?;
        let write = format!("cat >{LVM_LOCAL}");
        node.script_with_input(&write, format!("{before}{setting}\n").as_bytes())?;
        let done = self.use_volumes(node);
        node.script_with_input(&write, before.as_bytes())?;
        done
    }

    /// Kills LVM while volumes are created and removed, besides those of the sequences.
    fn kill_lvm_at_work(&self, node: &'a Node, pauses: &[u64]) -> Result<()> {
        let probes = self.probes(node, "probe");
        thread::scope(|scope| {
            let killing = scope.spawn(|| kill_lvm(node, pauses, self.patience));
            let done = probes.iter().try_for_each(|probe| probe.start().and_then(|()| probe.delete()));
            killing.join().map_err(|_| anyhow!("a thread panicked"))??;
            done
        })
    }

    fn cut_power(&self, node: &Node) -> Result<()> {
        self.workloads_on(node).try_for_each(Workload::write)?;
        node.restart(true)
    }

    /// Deletes the LogicalVolumes of the workloads by hand, restarts their pods, and undeletes the objects.
    fn delete_objects(&self, node: &'a Node) -> Result<()> {
        let volumes: Vec<_> = self.workloads_on(node).map(Workload::volume).collect::<Result<_>>()?;
        for volume in &volumes {
            self.cluster.kubectl_ok(["delete", "logicalvolumes.topolvm.io", volume, "--wait=false"])?;
        }
        self.workloads_on(node).try_for_each(Workload::restart)?;
        let names = volumes.iter().map(String::as_str);
        plugin::run_successfully(self.cluster, &["undelete"].into_iter().chain(names).collect::<Vec<_>>())?;
        self.use_volumes(node)
    }

    /// Deletes the CRD of LogicalVolumes, restarts the pods, and undeletes the objects.
    pub(super) fn delete_definition(&self) -> Result<()> {
        self.history.record(EVENTS, Fact::Disturbed("the definition of LogicalVolumes is deleted".to_owned()));
        self.cluster.kubectl_ok(["delete", "crd/logicalvolumes.topolvm.io", "--wait=false"])?;
        let done = self.workloads.iter().try_for_each(Workload::restart);
        let back = plugin::run_successfully(self.cluster, &["undelete", "--all"]);
        self.history.record(EVENTS, Fact::Restored);
        done?;
        back?;
        self.nodes.iter().try_for_each(|node| self.use_volumes(node))
    }

    /// Freezes a filesystem, as a backup tool that dies before it thaws it, and replaces its pod.
    fn freeze_filesystem(&self, node: &'a Node, class: Class) -> Result<()> {
        let workload = self.workload(node, class)?;
        workload.write()?;
        let directory = workload.mount_directory()?;
        node.script(&format!("fsfreeze -f {directory}"))?;
        if let Err(error) = workload.stop_pod() {
            // The process of a write whose answer timed out may be late, and wait for the frozen filesystem. It cannot
            // be killed, so kubelet does not unmount: an administrator has to thaw.
            let waiting = workload.uninterruptible_processes()?;
            if waiting.is_empty() {
                return Err(error.context("no process of the pod waits for the frozen filesystem"));
            }
            self.history.record(EVENTS, format!("{} is thawed by hand for {waiting}", workload.name()));
            node.script(&format!("fsfreeze -u {directory}"))?;
            workload.stop_pod()?;
        }
        workload.start_pod()?;
        workload.check()?;
        workload.restart()
    }

    /// Deletes a volume while a process has it mounted in a separate mount namespace and uses it: only the mount is
    /// removed with its directory. The Event names the process, and the volume is removed when the process has exited.
    fn hold_volume(&self, node: &'a Node) -> Result<()> {
        let held = Workload::new(self.cluster, node, self.patience, "held", Class::Thick);
        held.start()?;
        let stay = format!("cd {}; exec sleep 1000", held.mount_directory()?);
        let holder = node.script(&format!("setsid unshare -m sh -c '{stay}' </dev/null >/dev/null 2>&1 & echo $!"))?;
        node.script(&format!("until grep -q sleep /proc/{}/comm; do sleep 0.1; done", holder.trim()))?;
        let waits = held.begin_deletion()?;
        let said = held.wait_for_event(&waits, "RemoveFailed");
        node.script(&format!("kill {holder}"))?;
        let said = said?;
        ensure!(said.contains(holder.trim()), "the Event does not name process {holder}: {said}");
        held.wait_until_removed(&waits)
    }

    /// Returns the workload of a class on a node.
    fn workload<'b>(&'b self, node: &'b Node, class: Class) -> Result<&'b Workload<'a>> {
        self.workloads_on(node).find(|workload| workload.class() == class).context("no such workload")
    }

    /// Overwrites the first 4 KiB of a volume. No pod may get an empty filesystem instead of the damaged one. Then
    /// repairs it as an administrator would.
    fn destroy_signature(&self, node: &Node, class: Class) -> Result<()> {
        let workload = self.workload(node, class)?;
        workload.write()?;
        workload.stop_pod()?;
        let device = workload.device()?;
        let saved = "/run/node/first-block";
        let unused = format!(
            "until [ \"$(lvs --noheadings -o lv_device_open {device} | tr -d ' ')\" != open ]; do sleep 0.1; done"
        );
        node.script(&format!("{unused}; dd if={device} of={saved} bs=4096 count=1 iflag=direct status=none"))?;
        let copy = |from: &str| {
            format!(
                "dd if={from} of={device} bs=4096 count=1 oflag=direct conv=notrunc,fsync status=none; \
                 blockdev --flushbufs {device}"
            )
        };
        node.script(&copy("/dev/zero"))?;
        workload.start_pod()?;
        let why =
            workload.wait_for_mount_failure().context("a volume whose first 4 KiB are destroyed was published")?;
        self.history.record(EVENTS, format!("{} is refused: {why}", workload.name()));
        // kubelet would wait longer and longer before it tries again
        workload.stop_pod()?;
        node.script(&copy(saved))?;
        workload.start_pod()
    }

    /// Has a tenant write the metadata of a group into a raw block volume, to which kubelet has attached a loop device.
    fn write_tenant_group(&self, node: &'a Node, group: ForeignGroup) -> Result<()> {
        let tenant = Workload::new(self.cluster, node, self.patience, "tenant", Class::Thick).with_raw_block_volume();
        tenant.start()?;
        let done = self.use_with_foreign_group(node, group, &tenant.device()?);
        tenant.delete()?;
        done
    }

    /// Restarts pods with existing volumes, and creates and removes volumes, before and after a restart of lvmd, while
    /// LVM finds a group that is not the node's. Nothing of it may be changed or offered.
    fn use_with_foreign_group(&self, node: &'a Node, group: ForeignGroup, device: &str) -> Result<()> {
        let created = CreatedGroup::create(node, group, device)?;
        let done = self
            .use_volumes(node)
            .and_then(|()| self.programs.kill_on(node, LVMD))
            .and_then(|()| self.use_volumes(node))
            .and_then(|()| created.check(&published(self.cluster, node.name())?));
        created.remove()?;
        done
    }
}

/// Waits until LVM runs, and kills it after a pause in milliseconds; once for each pause, for at most half a minute
/// after the first LVM. After outages the sidecars pause before they send requests.
fn kill_lvm(node: &Node, pauses: &[u64], patience: Duration) -> Result<()> {
    let script = r#"
        lvms() {
            found=
            for p in /proc/[0-9]*; do
                if read -r name 2>/dev/null <"$p/comm" && [ "$name" = lvm ]; then found="$found ${p#/proc/}"; fi
            done
        }
        end=$((SECONDS + PATIENCE)) began=
        for pause in PAUSES; do
            lvms
            while [ -z "$found" ] && [ $SECONDS -lt $end ]; do sleep 0.01; lvms; done
            [ -n "$began" ] || { began=1 end=$((SECONDS + 30)); }
            sleep $pause
            lvms
            for pid in $found; do if kill -KILL $pid; then echo killed; fi; done
        done
    "#;
    let pauses: Vec<_> = pauses.iter().map(|pause| format!("0.{pause:03}")).collect();
    let output =
        node.script(&script.replace("PAUSES", &pauses.join(" ")).replace("PATIENCE", &patience.as_secs().to_string()))?;
    ensure!(output.contains("killed"), "{LVMD} of {} had nothing to do", node.name());
    Ok(())
}

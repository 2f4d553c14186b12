//! Kills programs at every step of a create and of a delete. Afterwards there is exactly the LV that there should be.

use anyhow::{Context as _, Result, ensure};

use crate::fixture::{Fixture, VG};

/// Script in place of `lvm`. If the file `arm` exists, it runs the file's action before, after or instead of a command,
/// once, and renames the file, so that the test knows.
///
/// Commands come as lines for LVM's shell, and are run one by one. When LVM is killed, so are the lines that it has not
/// read yet.
const LVM: &str = r#"#!/bin/bash
arm=/run/crash/arm
words=("$@")
run() { if [ ${#words[@]} -gt 0 ]; then /sbin/lvm "${words[@]}"; else /sbin/lvm <<<"$line"; fi; }
act() {
  if [ -e $arm ] && read -r when command action <$arm && [ "$command" = "$1" ] && mv $arm $arm.used; then
    case $when in
      before) eval "$action";;
      after) run; status=$?; eval "$action"; return $status;;
      kill-after)
        if [ ${#words[@]} -gt 0 ]; then /sbin/lvm "${words[@]}" & else /sbin/lvm <<<"$line" & fi
        pid=$!; sleep "$action"; kill -9 $pid; wait $pid; exit 137;;
    esac
  fi
  run
}
if [ ${#words[@]} -gt 0 ]; then act "$1"; exit; fi
while IFS= read -r line; do act "${line%% *}"; done
exit 0
"#;

/// Shell command that stops the agent, so that lvmd finishes and answers, and then kills it.
const AGENT_DEAF: &str =
    "pkill -STOP -x topolvm-node; (sleep 0.5; pkill -9 -x topolvm-node) </dev/null >/dev/null 2>&1 &";

/// A point in a create or delete at which programs are killed.
#[derive(Debug)]
pub(crate) struct Crash {
    /// Name of the crash.
    what: &'static str,
    /// Moment of the action: `before`, `after` or `kill-after` the command.
    when: &'static str,
    /// LVM command at which programs are killed.
    command: &'static str,
    /// Shell command that kills; for `kill-after` the seconds after which LVM itself is killed.
    action: &'static str,
}

const fn crash(what: &'static str, when: &'static str, command: &'static str, action: &'static str) -> Crash {
    Crash { what, when, command, action }
}

const LVMD: &str = "pkill -9 -x lvmd";
const AGENT: &str = "pkill -9 -x topolvm-node";
const BOTH: &str = "pkill -9 -x lvmd; pkill -9 -x topolvm-node";

/// Crashes at every step of a create at which LVM is called, with every program that can die there, and the same for a
/// delete.
pub(crate) const ALL: [Crash; 16] = [
    crash("lvmd_dies_before_fullreport", "before", "fullreport", LVMD),
    crash("the_agent_dies_before_fullreport", "before", "fullreport", AGENT),
    crash("lvmd_dies_before_lvcreate", "before", "lvcreate", LVMD),
    crash("the_agent_dies_before_lvcreate", "before", "lvcreate", AGENT),
    crash("both_die_before_lvcreate", "before", "lvcreate", BOTH),
    crash("lvcreate_dies_at_once", "kill-after", "lvcreate", "0"),
    crash("lvcreate_dies_early", "kill-after", "lvcreate", "0.01"),
    crash("lvcreate_dies_half_way", "kill-after", "lvcreate", "0.03"),
    crash("lvmd_dies_after_lvcreate", "after", "lvcreate", LVMD),
    crash("the_agent_dies_after_lvcreate", "after", "lvcreate", AGENT),
    crash("both_die_after_lvcreate", "after", "lvcreate", BOTH),
    crash("the_agent_dies_before_it_writes_the_status", "after", "lvcreate", AGENT_DEAF),
    crash("lvmd_dies_before_lvremove", "before", "lvremove", LVMD),
    crash("lvmd_dies_after_lvremove", "after", "lvremove", LVMD),
    crash("the_agent_dies_after_lvremove", "after", "lvremove", AGENT),
    crash("both_die_after_lvremove", "after", "lvremove", BOTH),
];

impl Crash {
    /// Returns the name of the test.
    pub(crate) fn name(&self) -> String {
        format!("crash::{}", self.what)
    }

    /// Creates and deletes a claim, with the crash on the way.
    pub(crate) fn run(&self, fixture: &Fixture) -> Result<()> {
        fixture.use_lvm(LVM)?;
        let while_deleting = self.command == "lvremove";
        if !while_deleting {
            self.arm(fixture)?;
        }
        fixture.apply_claim("crash", "immediate", "64Mi")?;
        fixture.wait_bound("crash")?;
        fixture.check_volumes(1)?;
        if while_deleting {
            self.arm(fixture)?;
        }
        fixture.delete_claim("crash")?;
        fixture.check_volumes(0)?;
        ensure!(fixture.node.script("ls /run/crash")?.contains("arm.used"), "the crash did not happen");
        Ok(())
    }

    fn arm(&self, fixture: &Fixture) -> Result<()> {
        let line = format!("{} {} {}", self.when, self.command, self.action);
        // Renamed into place, so that a command which is just starting reads all of it or nothing
        let script = format!("cd /run/crash && rm -f arm.used && echo '{line}' >arm.new && mv arm.new arm");
        fixture.node.script(&script).with_context(|| format!("cannot arm the crash in {VG}")).map(drop)
    }
}

//! The device of a volume: its line in `io.max` of the pod, and the rates of the pod by the kernel's counters in
//! `io.stat` there. Writes of kernel threads, such as ext4's journal, are in neither.

use anyhow::{Context as _, Result, bail, ensure};
use system_tests::io_rate;
use topolvm_api::IoLimit;

use super::wait_in_force;
use crate::fixture::{Fixture, VG};

/// Seconds for which a rate is measured once it is steady.
const SECONDS: u64 = 5;
/// Seconds for rates that are compared: the page cache is written back in pieces of up to 1 MiB.
const SECONDS_TOGETHER: u64 = 20;

/// The device of the volume of a claim, and the pod of the same name.
pub(super) struct Device<'a> {
    fixture: &'a Fixture,
    /// Major and minor number.
    number: String,
    /// UID of the pod.
    pod: String,
}

impl<'a> Device<'a> {
    pub(super) fn find(fixture: &'a Fixture, claim: &str) -> Result<Self> {
        let id = fixture.value("pv", &fixture.volume_name(claim)?, ".spec.csi.volumeHandle")?;
        let number = fixture.node.script(&format!("stat -L -c %Hr:%Lr /dev/{VG}/{id}"))?.trim().to_owned();
        Ok(Self { fixture, number, pod: fixture.value("pod", claim, ".metadata.uid")? })
    }

    /// Waits until the line of the device has these limits, in the time in which a change is to be in force.
    pub(super) fn wait_line(&self, limits: &str) -> Result<()> {
        wait_in_force(|| self.check_line(limits))
    }

    /// Checks that the line of the device has these limits.
    pub(super) fn check_line(&self, limits: &str) -> Result<()> {
        let line = self.line()?;
        ensure!(line == limits, "io.max says {line:?} and not {limits:?}");
        Ok(())
    }

    /// Returns the line of the device in `io.max` of the pod.
    fn line(&self) -> Result<String> {
        let Self { number, pod, .. } = self;
        let find = format!(
            "for dir in $(find /sys/fs/cgroup -type d -name 'pod{pod}'); do sed -n 's/^{number} //p' $dir/io.max; done"
        );
        Ok(self.fixture.node.script(&find)?.trim().to_owned())
    }

    /// Checks that the rate is the limit.
    pub(super) fn check_rate(&self, limit: IoLimit, wanted: u64) -> Result<()> {
        let rate = io_rate::check_rate(wanted, || self.rate(limit, wanted)).context(limit.as_str())?;
        eprintln!("{} per second: {rate:.1} with a limit of {wanted}", limit.as_str());
        Ok(())
    }

    /// Checks that the rate is higher than this.
    pub(super) fn check_faster_than(&self, limit: IoLimit, slow: u64) -> Result<()> {
        let rate = self.rate(limit, slow)?;
        ensure!(rate > io_rate::number(slow)?, "{} {rate}/s are no more than {slow}/s", limit.as_str());
        Ok(())
    }

    /// Measures a rate of about `expected` once it is steady.
    fn rate(&self, limit: IoLimit, expected: u64) -> Result<f64> {
        let script = script(&[self], limit, expected, SECONDS);
        let found = numbers(&self.fixture.node.script(&script)?)?;
        found.first().copied().context("no rate")
    }

    /// Measures the rates of two devices in the same time; `expected` is that of the first.
    pub(super) fn rates_together(first: &Self, second: &Self, limit: IoLimit, expected: u64) -> Result<(f64, f64)> {
        let script = script(&[first, second], limit, expected, SECONDS_TOGETHER);
        match numbers(&first.fixture.node.script(&script)?)?[..] {
            [first, second] => Ok((first, second)),
            ref other => bail!("{other:?} are not two rates"),
        }
    }
}

/// Returns a script that prints the rates of devices. It begins when the first device has used its allowance of one
/// second, and ends when it has used that of some more.
fn script(devices: &[&Device<'_>], limit: IoLimit, expected: u64, seconds: u64) -> String {
    let key = match limit {
        IoLimit::ReadOperations => "rios",
        IoLimit::ReadBytes => "rbytes",
        IoLimit::WriteOperations => "wios",
        IoLimit::WriteBytes => "wbytes",
    };
    let words =
        |word: fn(&Device<'_>) -> String| devices.iter().map(|device| word(device)).collect::<Vec<_>>().join(" ");
    let numbers = words(|device| device.number.clone());
    let files = words(|Device { pod, .. }| format!("$(find /sys/fs/cgroup -type d -name 'pod{pod}')/io.stat"));
    let enough = seconds * expected;
    // A sample starts no program: on a busy machine that takes longer than may lie between time and count
    format!(
        "devices=({numbers}); files=({files})
        sample() {{
          now=(); read -r up _ </proc/uptime
          for i in ${{!files[@]}}; do
            while read -r device counts; do
              [[ $device = ${{devices[i]}} && $counts =~ {key}=([0-9]+) ]] && now[i]=${{BASH_REMATCH[1]}}
            done <${{files[i]}}
          done
        }}
        wait_for() {{
          from=$1; end=$((SECONDS + 60))
          until sample; (( now[0] >= from + $2 )); do
            (( SECONDS < end )) || {{ echo \"only $((now[0] - from)) of $2\" >&2; exit 1; }}; sleep 0.2
          done
        }}
        sample; wait_for ${{now[0]:-0}} {expected}
        start=$up; begun=(${{now[@]}}); wait_for ${{now[0]}} {enough}
        for i in ${{!now[@]}}; do
          awk -v n=$((now[i] - begun[i])) -v s=$start -v e=$up 'BEGIN {{ print n / (e - s) }}'
        done"
    )
}

fn numbers(text: &str) -> Result<Vec<f64>> {
    text.split_whitespace().map(|word| word.parse().with_context(|| format!("{word:?} is no number"))).collect()
}

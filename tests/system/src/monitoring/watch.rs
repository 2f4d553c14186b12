//! Waits for alerts, for their end and for data, and checks the texts of alerts.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::server::Prometheus;

impl Prometheus<'_> {
    /// Waits until each of these alerts has fired since the call, not necessarily all at once, and checks the texts of
    /// all alerts. `before_poll` is called before each poll.
    pub fn wait_for_alerts(&self, wanted: &[&str], mut before_poll: impl FnMut() -> Result<()>) -> Result<()> {
        let mut silent: BTreeSet<&str> = wanted.iter().copied().collect();
        let mut with_gaps = BTreeSet::new();
        self.ready(|| {
            before_poll()?;
            let firing = self.firing()?;
            with_gaps.extend(self.texts()?.into_iter().filter(|text| has_gap(text)));
            silent.retain(|name| !firing.contains(*name));
            ensure!(silent.is_empty(), "{silent:?} do not fire, and these do: {firing:?}");
            Ok(())
        })?;
        ensure!(with_gaps.is_empty(), "texts of alerts lack values: {with_gaps:#?}");
        Ok(())
    }

    /// Waits until none of these alerts fires. Deleted pods are no longer scraped.
    pub fn wait_for_end(&self, gone: &[&str]) -> Result<()> {
        self.ready(|| {
            self.find_pods()?;
            let firing = self.firing()?;
            let left: BTreeSet<_> = firing.iter().filter(|name| gone.contains(&name.as_str())).collect();
            ensure!(left.is_empty(), "{left:?} still fire");
            Ok(())
        })
    }

    /// Waits until no alert has fired for ten seconds, apart from those that are `known`.
    pub fn wait_for_silence(&self, known: &[&str]) -> Result<()> {
        self.ready(|| {
            let silent = self.silent_seconds(known, 10)?;
            ensure!(silent >= 10.0, "fired in the last ten seconds: {:?}", self.firing()?);
            Ok(())
        })
    }

    /// Waits until each of these expressions has returned data.
    pub fn wait_for_data(&self, mut missing: Vec<String>) -> Result<()> {
        self.ready(|| {
            let mut still = Vec::new();
            for expression in &missing {
                if self.query(expression)?.is_empty() {
                    still.push(expression.clone());
                }
            }
            missing = still;
            ensure!(missing.is_empty(), "no data for:\n{}", missing.join("\n"));
            Ok(())
        })
    }
}

/// Returns whether the text of an alert could not be rendered, or lacks a value. A label that is not there is nothing.
fn has_gap(text: &str) -> bool {
    const GAPS: [&str; 10] = ["no value", "{{", "<error", "  ", "()", "( ", " )", " /", "/ ", " ,"];
    // The path of a device begins with a slash
    let without_paths = text.replace(" /dev/", " ");
    GAPS.iter().any(|gap| without_paths.contains(gap)) || text.trim() != text
}

#[cfg(test)]
mod tests {
    use super::has_gap;

    #[test]
    fn a_value_that_is_missing_is_seen() {
        for text in [
            "topolvm-node on node  does not reach lvmd",
            "on node n1 () 3 runs of lvs have failed",
            "of the volume of the claim / on node n1",
            "(device class ) are free",
            "Next, on the node: vgs ",
            "<error expanding template: x>",
            "<no value> volumes",
        ] {
            assert!(has_gap(text), "{text}");
        }
        let whole = "2% of the volume of the claim shop/data on node n1 (device class ssd) are free. Next: iostat -x 1";
        assert!(!has_gap(whole) && !has_gap("The volumes on the disk /dev/sdb of the group ssd cannot be moved"));
    }
}

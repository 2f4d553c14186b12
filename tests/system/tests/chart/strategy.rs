//! The strategy by which nodes are preferred: one value for controller and extender.

use anyhow::{Result, ensure};
use serde_json::Value;
use system_tests::chart;

use crate::objects::Objects;

const SECRET: [&str; 2] = ["--set", "webhook.certManager=false,webhook.selfManaged=true,scheduling.mode=extender"];

pub(crate) fn check_strategy() -> Result<()> {
    let passed = strategies(&[])?;
    ensure!(passed == (None, None), "without the value: {passed:?}");
    let passed = strategies(&["--set", "scheduling.strategy=binpack"])?;
    ensure!(passed == (Some("binpack".to_owned()), Some("binpack".to_owned())), "with the value: {passed:?}");
    let own = ["--set", "scheduling.strategy=spradout,scheduler.schedulerOptions.strategy=binpack"];
    let passed = strategies(&own)?;
    ensure!(passed == (Some("spradout".to_owned()), Some("binpack".to_owned())), "with an option: {passed:?}");
    Ok(())
}

/// Returns the strategies in the flags of controller and extender with these arguments of helm.
fn strategies(arguments: &[&str]) -> Result<(Option<String>, Option<String>)> {
    let rendered = chart::render("topolvm", "topolvm-system", &[&SECRET, arguments].concat())?;
    let objects = Objects::parse(&rendered)?;
    let controller = objects.find("Deployment", "topolvm-controller")?;
    let mut flags = controller["spec"]["template"]["spec"]["containers"][0]["args"].as_array().into_iter().flatten();
    let strategy = |flag: &Value| flag.as_str()?.strip_prefix("--node-strategy=").map(str::to_owned);
    let options = &objects.find("ConfigMap", "topolvm-scheduler-options")?["data"]["scheduler-options.yaml"];
    let mut lines = options.as_str().unwrap_or_default().lines();
    let of_extender = lines.find_map(|line| line.strip_prefix("strategy: ")).map(str::to_owned);
    Ok((flags.find_map(strategy), of_extender))
}

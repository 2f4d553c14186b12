//! The ports of containers, and the network policy that is in front of them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::equality::{SIDECARS, known_values, render, render_with};
use crate::objects::Objects;

/// The port of liveness-probe's metrics in TopoLVM's chart. We have no such sidecar.
const LIVENESS_PROBE: u64 = 9808;
/// The web page listens on a loopback address.
const WEB_PAGE: &str = "ui";

pub(crate) fn check_ports() -> Result<()> {
    for values in known_values() {
        check(&render(values)?).with_context(|| values.to_owned())?;
    }
    // With all that listens, no port of the policy is closed
    let all = ["--set", "inventory.enabled=true,controller.ui.enabled=true", "--set", SIDECARS];
    let objects = render_with("extender-self-managed", &all)?;
    let (open, allowed) = (open_ports(controller(&objects)?)?, allowed_ports(&objects)?.context("no policy")?);
    ensure!(open == allowed, "containers open {open:?}, and the network policy names {allowed:?}");
    Ok(())
}

/// Checks that the policy of a controller with webhooks names each of its ports, and that sidecars open ports that
/// their containers name.
fn check(objects: &Objects) -> Result<()> {
    for workload in objects.of_kind("Deployment").chain(objects.of_kind("DaemonSet")) {
        let open = open_ports(workload)?;
        ensure!(!open.contains(&LIVENESS_PROBE), "{LIVENESS_PROBE} is open: {workload}");
        for container in containers(workload)? {
            let arguments = container["args"].as_array().map_or(&[][..], Vec::as_slice);
            for endpoint in arguments.iter().filter_map(|argument| argument.as_str()?.strip_prefix("--http-endpoint=:"))
            {
                let port: u64 = endpoint.parse()?;
                ensure!(ports(container).any(|(_, named)| named == port), "{port} is not named: {container}");
            }
        }
    }
    if let Some(allowed) = allowed_ports(objects)? {
        let open = open_ports(controller(objects)?)?;
        ensure!(open.is_subset(&allowed), "containers open {open:?}, and the network policy names {allowed:?}");
    }
    Ok(())
}

fn controller(objects: &Objects) -> Result<&Value> {
    let found = objects.of_kind("Deployment").find(|deployment| deployment["metadata"]["name"] == "topolvm-controller");
    found.context("no controller")
}

fn containers(workload: &Value) -> Result<&[Value]> {
    workload["spec"]["template"]["spec"]["containers"].as_array().map(Vec::as_slice).context("no containers")
}

/// Returns the ports of a container with their names.
fn ports(container: &Value) -> impl Iterator<Item = (&str, u64)> {
    let ports = container["ports"].as_array().map_or(&[][..], Vec::as_slice);
    ports.iter().filter_map(|port| Some((port["name"].as_str()?, port["containerPort"].as_u64()?)))
}

/// Returns the ports of a workload's pods that others can reach.
fn open_ports(workload: &Value) -> Result<BTreeSet<u64>> {
    let open = containers(workload)?.iter().flat_map(ports).filter(|(name, _)| *name != WEB_PAGE);
    Ok(open.map(|(_, port)| port).collect())
}

/// Returns the ports that the network policy names, if there is one.
fn allowed_ports(objects: &Objects) -> Result<Option<BTreeSet<u64>>> {
    let Some(policy) = objects.of_kind("NetworkPolicy").next() else { return Ok(None) };
    let mut allowed = BTreeSet::new();
    for rule in policy["spec"]["ingress"].as_array().context("no rules")? {
        for port in rule["ports"].as_array().context("a rule for all ports")? {
            let first = port["port"].as_u64().context("no number")?;
            allowed.extend(first..=port["endPort"].as_u64().unwrap_or(first));
        }
    }
    Ok(Some(allowed))
}

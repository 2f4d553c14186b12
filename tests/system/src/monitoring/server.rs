//! Prometheus in the network namespace of a cluster, configured as in `deploy/monitoring/prometheus.yml`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::assets;
use testbed::cluster::Cluster;
use testbed::sidecars::NAMESPACE;

use super::queries::directory;

/// Name of the process.
const NAME: &str = "prometheus";
/// Address of its API, in the namespace.
const ADDRESS: &str = "127.0.0.1:9090";

/// A sample of the answer to a query.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The labels.
    pub labels: Value,
    /// The value.
    pub value: f64,
}

/// A handle of a running Prometheus that scrapes and evaluates once a second.
#[derive(Debug)]
pub struct Prometheus<'a> {
    cluster: &'a Cluster,
    directory: PathBuf,
}

impl<'a> Prometheus<'a> {
    /// Starts Prometheus with these rules and with the pods of the product as targets; its files are in a directory.
    pub fn start(cluster: &'a Cluster, directory: &Path, rules: &Value) -> Result<Self> {
        let prometheus = Self { cluster, directory: directory.to_owned() };
        prometheus.write("rules.yaml", rules)?;
        prometheus.write("prometheus.yaml", &configuration()?)?;
        prometheus.find_pods()?;
        let mut command = cluster.command(assets::prometheus()?.join(NAME));
        command.arg(format!("--config.file={}", directory.join("prometheus.yaml").display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.args([&format!("--web.listen-address={ADDRESS}"), "--log.level=warn"]);
        cluster.spawn(NAME, &command)?;
        cluster.ready(NAME, || prometheus.query("1"))?;
        Ok(prometheus)
    }

    /// Writes the targets: each port of each container, with the labels that Prometheus would get from the API server.
    /// Debian's Prometheus cannot query it.
    pub fn find_pods(&self) -> Result<()> {
        let pods = self.cluster.kubectl_ok(["get", "pods", "-n", NAMESPACE, "-o", "json"])?;
        let pods: Value = serde_json::from_str(&pods).context("kubectl prints no JSON")?;
        let pods = pods.get("items").and_then(Value::as_array).context("no list of pods")?;
        let targets: Vec<Value> = pods.iter().flat_map(targets_of).collect();
        ensure!(!targets.is_empty(), "no pod has a port");
        // It is read when it changes: complete or not at all
        self.write("targets.new", &targets.into())?;
        fs::rename(self.directory.join("targets.new"), self.directory.join("targets.json")).context("replace targets")
    }

    /// Evaluates an expression.
    pub fn query(&self, expression: &str) -> Result<Vec<Sample>> {
        let answer = self.get("query", Some(expression))?;
        let result = answer.get("result").and_then(Value::as_array).context("no result")?;
        let sample = |sample: &Value| {
            let labels = sample.get("metric")?.clone();
            let value = sample.get("value")?.get(1)?.as_str()?.parse().ok()?;
            Some(Sample { labels, value })
        };
        // A scalar is a pair of a time and a value
        Ok(result.iter().filter_map(sample).collect())
    }

    /// Returns the names of the alerts that are firing.
    pub fn firing(&self) -> Result<BTreeSet<String>> {
        self.alerts_in("firing")
    }

    /// Returns the names of the alerts whose condition is true, and not long enough for them to fire.
    pub(super) fn pending(&self) -> Result<BTreeSet<String>> {
        self.alerts_in("pending")
    }

    /// Returns the number of the last `seconds` in which no alert has fired, apart from those that are `known`.
    pub(super) fn silent_seconds(&self, known: &[&str], seconds: u64) -> Result<f64> {
        let firing = format!("ALERTS{{alertstate=\"firing\",alertname!~\"{}\"}}", known.join("|"));
        let samples = self.query(&format!("count_over_time(absent({firing})[{seconds}s:1s])"))?;
        Ok(samples.first().map_or(0.0, |sample| sample.value))
    }

    fn alerts_in(&self, state: &str) -> Result<BTreeSet<String>> {
        let samples = self.query(&format!("ALERTS{{alertstate=\"{state}\"}}"))?;
        let name = |sample: Sample| sample.labels.get("alertname").and_then(Value::as_str).map(str::to_owned);
        Ok(samples.into_iter().filter_map(name).collect())
    }

    /// Returns the texts of alerts, firing or about to, as Prometheus has rendered them.
    pub fn texts(&self) -> Result<Vec<String>> {
        let answer = self.get("alerts", None)?;
        let alerts = answer.get("alerts").and_then(Value::as_array).context("no alerts")?;
        let texts = alerts.iter().filter_map(|alert| alert.get("annotations")?.as_object());
        Ok(texts.flat_map(|texts| texts.values().filter_map(Value::as_str)).map(str::to_owned).collect())
    }

    /// Returns the errors of rules that could not be evaluated the last time.
    pub fn errors(&self) -> Result<Vec<String>> {
        let answer = self.get("rules", None)?;
        let groups = answer.get("groups").and_then(Value::as_array).context("no groups of rules")?;
        let rules = groups.iter().filter_map(|group| group.get("rules")?.as_array()).flatten();
        let error = |rule: &Value| {
            let error = rule.get("lastError").and_then(Value::as_str).filter(|error| !error.is_empty())?;
            Some(format!("{}: {error}", rule.get("name")?))
        };
        Ok(rules.filter_map(error).collect())
    }

    /// Calls `probe` until it succeeds, for at most three minutes.
    pub fn ready<T>(&self, probe: impl FnMut() -> Result<T>) -> Result<T> {
        self.cluster.ready(NAME, probe)
    }

    /// Stops it.
    pub fn stop(self) -> Result<()> {
        self.cluster.stop(NAME, Duration::from_secs(5))
    }

    fn get(&self, what: &str, query: Option<&str>) -> Result<Value> {
        let mut command = self.cluster.command("curl");
        command.args(["--silent", "--show-error", "--max-time", "10", "--get"]);
        if let Some(query) = query {
            command.arg("--data-urlencode").arg(format!("query={query}"));
        }
        let output = command.arg(format!("http://{ADDRESS}/api/v1/{what}")).output().context("run curl")?;
        let said = || String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let mut answer: Value = serde_json::from_slice(&output.stdout).with_context(said)?;
        ensure!(answer.get("status").is_some_and(|status| status == "success"), "{query:?}: {answer}");
        Ok(answer.get_mut("data").map(Value::take).unwrap_or_default())
    }

    fn write(&self, name: &str, content: &Value) -> Result<()> {
        // JSON is YAML
        fs::write(self.directory.join(name), content.to_string()).with_context(|| format!("write {name}"))
    }
}

/// Returns the configuration that ships, with targets in a file, and with an interval of a second.
fn configuration() -> Result<Value> {
    let path = directory().join("prometheus.yml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut config: Value = serde_saphyr::from_str(&text).with_context(|| format!("{} is no YAML", path.display()))?;
    let jobs = config.get_mut("scrape_configs").and_then(Value::as_array_mut).context("nothing is scraped")?;
    for job in jobs.iter_mut().filter_map(Value::as_object_mut) {
        job.remove("kubernetes_sd_configs").context("a job does not discover pods")?;
        job.insert("file_sd_configs".to_owned(), json!([{"files": ["targets.json"]}]));
    }
    let settings = config.as_object_mut().context("no configuration")?;
    settings.insert("global".to_owned(), json!({"scrape_interval": "1s", "evaluation_interval": "1s"}));
    settings.insert("rule_files".to_owned(), json!(["rules.yaml"]));
    Ok(config)
}

/// Returns the targets of a pod.
fn targets_of(pod: &Value) -> Vec<Value> {
    let text = |path: &str| pod.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).into_iter().flatten();
    let ports = containers.flat_map(|container| {
        let ports = container.get("ports").and_then(Value::as_array).into_iter().flatten();
        ports.map(move |port| (container, port))
    });
    let target = |(container, port): (&Value, &Value)| {
        let text_of = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let address = format!("{}:{}", text("/status/podIP"), port.get("containerPort").unwrap_or(&Value::Null));
        json!({"targets": [address], "labels": {
            "__meta_kubernetes_namespace": text("/metadata/namespace"),
            "__meta_kubernetes_pod_name": text("/metadata/name"),
            "__meta_kubernetes_pod_node_name": text("/spec/nodeName"),
            "__meta_kubernetes_pod_phase": text("/status/phase"),
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": text("/metadata/labels/app.kubernetes.io~1name"),
            "__meta_kubernetes_pod_container_name": text_of(container, "name"),
            "__meta_kubernetes_pod_container_port_name": text_of(port, "name"),
        }})
    };
    if text("/status/podIP").is_empty() { Vec::new() } else { ports.map(target).collect() }
}

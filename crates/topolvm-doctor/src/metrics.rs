//! Metrics of agents and lvmd in the text format of Prometheus.

use crate::read_error::ReadResult;

/// Metrics of a pod.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Node of the pod.
    pub node: String,
    /// Name of the pod.
    pub pod: String,
    /// The samples.
    pub samples: ReadResult<Vec<Sample>>,
}

/// A sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Labels as they are written, without the braces.
    pub labels: String,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// Parses the samples of a text. Lines that are no sample are left out.
    pub fn parse_all(text: &str) -> Vec<Self> {
        text.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let (labels, rest) = rest.rsplit_once('}')?;
                (name, labels, rest)
            }
            None => line.split_once(' ').map(|(name, rest)| (name, "", rest))?,
        };
        // A time may follow
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name: name.to_owned(), labels: labels.to_owned(), value })
    }

    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        let pairs = self.labels.split("\",").filter_map(|pair| pair.trim_end_matches('"').split_once("=\""));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_labels_and_without() {
        let text = "# TYPE a gauge\na{node=\"n1\",device_class=\"x{y}\"} 81.5\nb 1 1700000000\nnonsense\n# EOF\n";
        let samples = Sample::parse_all(text);
        let names: Vec<_> = samples.iter().map(|sample| (sample.name.as_str(), sample.value)).collect();
        assert_eq!(names, [("a", 81.5), ("b", 1.0)]);
        let first = samples.first().unwrap();
        assert_eq!((first.label("device_class"), first.label("class")), (Some("x{y}"), None));
    }
}

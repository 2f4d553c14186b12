//! Names that users meet in a cluster: reasons of Events, annotations and labels, metrics. Each is on its page.

use std::fs;

use super::finding::Finding;
use super::source::Source;
use crate::tools::repository;

/// Calls whose second argument is the reason of an Event.
const PUBLISHERS: [&str; 2] = ["publish_warning(", "publish_normal("];
/// Beginnings of the names of our metrics.
const METRICS: &str = "\"topolvm_";

/// Finds names in product code that are on no page.
pub(crate) fn find_undocumented(sources: &[Source]) -> Vec<Finding> {
    let page = |name: &str| fs::read_to_string(repository().join("docs").join(name)).unwrap_or_default();
    let pages = Pages {
        events: page("events.md"),
        annotations: page("annotations.md"),
        metrics: ["metrics", "lvmd", "topolvm-node", "topolvm-controller", "topolvm-scheduler", "webhooks"]
            .map(|name| page(&format!("{name}.md")))
            .concat(),
    };
    let product = sources.iter().filter(|source| source.is_product() && !source.is_test());
    product.flat_map(|source| pages.find_missing(source)).collect()
}

struct Pages {
    events: String,
    annotations: String,
    metrics: String,
}

impl Pages {
    fn find_missing(&self, source: &Source) -> Vec<Finding> {
        let text = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        let missing = |what: &str, page: &str, name: &str, text: &str| {
            (!text.contains(name)).then(|| (name.to_owned(), format!("{what} {name} is not in docs/{page}")))
        };
        let reasons = reasons(text).filter_map(|name| missing("the Event", "events.md", name, &self.events));
        let metrics = metrics(text).into_iter();
        let metrics = metrics.filter_map(|name| missing("the metric", "metrics.md", &name, &self.metrics));
        let marks = if source.file.ends_with("topolvm-api/src/flavor.rs") { marks(text) } else { Vec::new() };
        let marks = marks.into_iter();
        let marks = marks.filter_map(|name| missing("the name", "annotations.md", &name, &self.annotations));
        let line = |name: &str| {
            let suffix = name.rsplit('/').next().unwrap_or(name);
            1 + text.lines().position(|line| line.contains(suffix)).unwrap_or(0)
        };
        let found = reasons.chain(metrics).chain(marks);
        found.map(|(name, message)| Finding::new(source, line(&name), message)).collect()
    }
}

/// Returns the reasons of the Events that a file publishes.
fn reasons(text: &str) -> impl Iterator<Item = &str> {
    let calls = PUBLISHERS.iter().flat_map(|call| text.split(call).skip(1));
    calls.filter_map(|rest| {
        let argument = rest.split(';').next()?.split(',').nth(1)?.trim();
        argument.strip_prefix('"')?.strip_suffix('"')
    })
}

/// Returns the names of metrics that are literals of their own.
fn metrics(text: &str) -> Vec<String> {
    let names = text.split(METRICS).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0));
    let is_name =
        |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    names.filter(is_name).map(|name| format!("topolvm_{name}")).collect()
}

/// Returns the names that are made of the API group.
fn marks(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| line.ends_with(';'));
    let pair = |line: &str| {
        let mut literals = line.split_once(" = \"")?.1.trim_end_matches("\";").split("\", \"");
        let (prefix, suffix) = (literals.next()?.to_owned(), literals.next()?);
        suffix.starts_with('/').then(|| format!("{prefix}topolvm.io{suffix}"))
    };
    lines.filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_metrics_and_names_of_a_file_are_found() {
        let text = "events.publish_warning(&about, \"Stale\", \"Delete\", note).await;\n\
                    self.publish_warning(volume, reason.as_str(), \"Compare\", message);\n\
                    describe(\"topolvm_lost_volumes\"); panic!(\"topolvm_node failed\");\n\
                    node_finalizer = \"\", \"/node\";\ncapacity_prefix = \"capacity.\", \"/\";\n";
        assert_eq!(reasons(text).collect::<Vec<_>>(), ["Stale"]);
        assert_eq!(metrics(text), ["topolvm_lost_volumes"]);
        assert_eq!(marks(text), ["topolvm.io/node", "capacity.topolvm.io/"]);
        let pages = Pages {
            events: "`Stale`".to_owned(),
            annotations: "capacity.topolvm.io/".to_owned(),
            metrics: String::new(),
        };
        let source =
            Source::parse("crates/topolvm-api/src/flavor.rs", format!("const X: &str = r#\"{text}\"#;")).unwrap();
        let found = pages.find_missing(&source);
        let messages: Vec<_> = found.iter().map(|finding| finding.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "the metric topolvm_lost_volumes is not in docs/metrics.md",
                "the name topolvm.io/node is not in docs/annotations.md"
            ]
        );
    }
}

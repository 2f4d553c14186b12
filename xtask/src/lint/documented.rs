//! Names that users meet in a cluster: reasons of Events and conditions, annotations and labels, metrics. Each is on
//! its page.

use std::fs;

use super::finding::Finding;
use super::source::Source;
use crate::tools::repository;

/// Calls whose second argument is the reason of an Event.
const PUBLISHERS: [&str; 2] = ["publish_warning(", "publish_normal("];
/// Beginnings of the names of our metrics.
const METRICS: &str = "\"topolvm_";
/// Domains of names that stand on objects and on LVs.
const DOMAINS: [&str; 2] = ["topolvm.io/", "superedge.io/"];
/// Names in these domains that stand on nothing: versions of the API.
const NO_MARKS: [&str; 1] = ["topolvm.io/v1"];

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
        let missing = |what: &str, page: &str, name: &str, is_there: bool| {
            (!is_there).then(|| (name.to_owned(), format!("{what} {name} is not in docs/{page}")))
        };
        let in_events = |what, name| missing(what, "events.md", name, has_name(&self.events, name));
        let reasons = reasons(text).filter_map(|name| in_events("the Event", name));
        let conditions = condition_reasons(text).into_iter().filter_map(|name| in_events("the condition", name));
        let metrics = metrics(text).into_iter();
        // Prometheus's library adds to the names of counters
        let metrics =
            metrics.filter_map(|name| missing("the metric", "metrics.md", &name, self.metrics.contains(name.as_str())));
        let mut marks = literal_marks(text);
        if source.file.ends_with("topolvm-api/src/flavor.rs") {
            marks.extend(derived_marks(text));
        }
        let marks = marks.into_iter();
        let marks =
            marks.filter_map(|name| missing("the name", "annotations.md", &name, has_name(&self.annotations, &name)));
        let line = |name: &str| {
            let suffix = name.rsplit('/').next().unwrap_or(name);
            1 + text.lines().position(|line| line.contains(suffix)).unwrap_or(0)
        };
        let found = reasons.chain(conditions).chain(metrics).chain(marks);
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

/// Returns the reasons of conditions: of a LogicalVolume, which are variants with a text of the same name, and of a
/// volume for kubelet, which stand behind their severity.
fn condition_reasons(text: &str) -> Vec<&str> {
    let word = |text: &str| text.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or_default().len();
    let mut reasons = Vec::new();
    for (mark, middle) in [("Self::", " => \""), ("Severity::", ", \"")] {
        for rest in text.split(mark).skip(1) {
            let (name, after) = rest.split_at(word(rest));
            let Some(literal) = after.strip_prefix(middle) else { continue };
            let (reason, end) = literal.split_at(word(literal));
            let is_one = end.starts_with('"') && (mark == "Severity::" || reason == name);
            reasons
                .extend((is_one && reason.starts_with(|letter: char| letter.is_ascii_uppercase())).then_some(reason));
        }
    }
    reasons
}

/// Returns the names of metrics that are literals of their own.
fn metrics(text: &str) -> Vec<String> {
    let names = text.split(METRICS).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0));
    let is_name =
        |name: &&str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    names.filter(is_name).map(|name| format!("topolvm_{name}")).collect()
}

/// Returns true if a page has a name, and not only one that it is a part of.
fn has_name(page: &str, name: &str) -> bool {
    let is_part = |letter: Option<char>, joints: &[char]| {
        letter.is_some_and(|letter| letter.is_ascii_alphanumeric() || joints.contains(&letter))
    };
    page.match_indices(name).any(|(at, _)| {
        let (before, after) = (page[..at].chars().next_back(), page[at + name.len()..].chars().next());
        // What ends with a slash is followed by names of users
        !is_part(before, &['-', '_', '.', '/']) && (name.ends_with('/') || !is_part(after, &['-', '_']))
    })
}

/// Returns the names of annotations, labels, finalizers and tags that stand in code, but for comments.
fn literal_marks(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&letter);
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for (at, domain) in DOMAINS.iter().flat_map(|domain| line.match_indices(domain)) {
            let begin = line[..at].rfind(|letter| !is_part(letter)).map_or(0, |before| before + 1);
            let rest = &line[at + domain.len()..];
            let name = rest.split(|letter| !is_part(letter)).next().unwrap_or_default().trim_end_matches('.');
            let mark = format!("{}{domain}{name}", &line[begin..at]);
            if !name.is_empty() && !NO_MARKS.contains(&mark.as_str()) && !names.contains(&mark) {
                names.push(mark);
            }
        }
    }
    names
}

/// Returns the names that are made of the API group.
fn derived_marks(text: &str) -> Vec<String> {
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
        assert_eq!(derived_marks(text), ["topolvm.io/node", "capacity.topolvm.io/"]);
        let pages = Pages {
            events: "`Stale`".to_owned(),
            annotations: "`capacity.topolvm.io/CLASS`, `topology.topolvm.io/node`".to_owned(),
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

    #[test]
    fn reasons_of_conditions_are_found() {
        let text = "Self::VolumeReady => \"VolumeReady\", Self::Blue => \"#00f\", Self::Ext4 => \"ext4\"\n\
                    Condition::new(Severity::Degraded, \"ThinPoolFull\", message); (Severity::Warn, \"no text\")";
        assert_eq!(condition_reasons(text), ["VolumeReady", "ThinPoolFull"]);
    }

    #[test]
    fn literal_marks_finds_names_and_skips_comments_and_versions() {
        let text = "/// Like `topolvm.io/example`.\n\
                    const LABEL: (&str, &str) = (\"topolvm.io/trial\", \"true\");\n\
                    const OTHER: &str = \"superedge.io/local.pv\"; const DOMAIN: &str = \"topolvm.io/\";\n\
                    needs(\"1 Insufficient topolvm.io/capacity.\", \"topolvm.io/v1\");\n\
                    tag(\"a.topolvm.io/making={attempt}\");\n";
        let names = ["topolvm.io/trial", "superedge.io/local.pv", "topolvm.io/capacity", "a.topolvm.io/making"];
        let mut found = literal_marks(text);
        found.sort_by_key(|name| names.iter().position(|one| one == name));
        assert_eq!(found, names);
    }

    #[test]
    fn a_name_is_not_on_a_page_because_a_longer_one_is() {
        let page = "`topology.topolvm.io/node`, `topolvm.io/source-volume-id`, `capacity.topolvm.io/CLASS`, \
                    `topolvm.io/trial=true`";
        for (name, is_there) in [
            ("topolvm.io/node", false),
            ("topolvm.io/source", false),
            ("topolvm.io/trial", true),
            ("capacity.topolvm.io/", true),
            ("topolvm.io/capacity", false),
        ] {
            assert_eq!(has_name(page, name), is_there, "{name}");
        }
    }
}

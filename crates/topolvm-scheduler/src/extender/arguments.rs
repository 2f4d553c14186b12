//! The JSON of an `ExtenderArgs`, of which the texts of Nodes stay where they are in the body.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Name;
use super::pod::Pod;

/// An `ExtenderArgs`. Old versions of Kubernetes write the names in small letters.
#[derive(Deserialize)]
pub(super) struct Arguments<'a> {
    #[serde(borrow, rename = "Pod", alias = "pod")]
    pub(super) pod: Option<Pod<'a>>,
    #[serde(borrow, rename = "Nodes", alias = "nodes")]
    pub(super) nodes: Option<NodeList<'a>>,
    #[serde(borrow, rename = "NodeNames", alias = "nodenames")]
    pub(super) names: Option<Vec<Name<'a>>>,
}

/// A list of Nodes.
#[derive(Deserialize)]
pub(super) struct NodeList<'a> {
    #[serde(borrow, rename = "apiVersion")]
    pub(super) api_version: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) kind: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) items: Option<Vec<NodeObject<'a>>>,
}

/// A Node object, as the texts of its fields. A list of full-size Nodes is read once only: with the text of the whole
/// object its fields would have to be found in a second pass.
pub(super) struct NodeObject<'a> {
    /// The key of its first field.
    pub(super) first_key: &'a str,
    /// The value of its last field.
    pub(super) last_value: &'a str,
    pub(super) metadata: Option<&'a RawValue>,
}

impl NodeObject<'_> {
    /// Returns the place of the object in the body that it was read from, with its braces.
    pub(super) fn place_in(&self, body: &[u8]) -> Option<Range<usize>> {
        let (key, value) = (place_of(body, self.first_key), place_of(body, self.last_value));
        let begin = body.get(..key.start)?.iter().rposition(|&byte| byte == b'{')?;
        let end = value.end + body.get(value.end..)?.iter().position(|&byte| byte == b'}')?;
        Some(begin..end + 1)
    }
}

/// Returns the place of a text in the body that it was borrowed from.
fn place_of(body: &[u8], text: &str) -> Range<usize> {
    let begin = text.as_ptr().addr().wrapping_sub(body.as_ptr().addr());
    begin..begin + text.len()
}

impl<'de: 'a, 'a> Deserialize<'de> for NodeObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = NodeObject<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Node")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut node: Option<NodeObject<'de>> = None;
        while let Some((key, value)) = map.next_entry::<&str, &RawValue>()? {
            let node =
                node.get_or_insert_with(|| NodeObject { first_key: key, last_value: value.get(), metadata: None });
            node.last_value = value.get();
            if key == "metadata" {
                node.metadata = Some(value);
            }
        }
        node.ok_or_else(|| A::Error::custom("a Node has no field"))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The texts of the Nodes of a request, each with that of its metadata.
    fn nodes(text: &str) -> Result<Vec<(&str, Option<&str>)>, serde_json::Error> {
        let arguments: Arguments<'_> = serde_json::from_str(text)?;
        let items = arguments.nodes.and_then(|list| list.items).unwrap_or_default();
        let texts = items.into_iter().map(|node| {
            let place = node.place_in(text.as_bytes()).unwrap();
            (text.get(place).unwrap(), node.metadata.map(RawValue::get))
        });
        Ok(texts.collect())
    }

    #[test]
    fn node_text_is_the_whole_object() {
        let one = concat!(
            r#"{ "spec" :{"metadata":{"x":[[{}],[{"y":"]]]}}}\\"}]]}},"metadata": {"name":"a"} ,"#,
            r#" "status":{"é":"\u00e9\\\""}} "#,
        );
        let two = r#"{"metadata":{"name":"b","deep":{"deep":[1,2,[3,"four{[",5e6],null,true]}}}"#;
        let text = format!(
            r#"{{"Pod":{{"metadata":{{}}}},"Nodes":{{"metadata":{{"items":[2]}},"items":[{one}, {two}],"a":1}},"b":1}}"#
        );
        let expected = [
            (one.trim_end(), Some(r#"{"name":"a"}"#)),
            (two, Some(r#"{"name":"b","deep":{"deep":[1,2,[3,"four{[",5e6],null,true]}}"#)),
        ];
        assert_eq!(nodes(&text).unwrap(), expected);
    }

    #[rstest]
    #[case::null_list(r#"{"Nodes":null}"#)]
    #[case::null_items(r#"{"Nodes":{"items":null}}"#)]
    #[case::no_items(r#"{"nodes":{"items":[ ]}}"#)]
    #[case::names(r#"{"NodeNames":["a"]}"#)]
    fn node_list_may_be_empty(#[case] text: &str) {
        assert_eq!(nodes(text).unwrap(), []);
    }

    #[rstest]
    #[case::nothing("")]
    #[case::no_end(r#"{"Nodes":{"items":[{"a":1}]}"#)]
    #[case::no_field(r#"{"Nodes":{"items":[{}]}}"#)]
    #[case::null_node(r#"{"Nodes":{"items":[null]}}"#)]
    #[case::two_objects("{}{}")]
    #[case::wrong_brackets(r#"{"Nodes":{"items":[{"a":[}]}]}}"#)]
    fn node_list_that_is_no_json_is_refused(#[case] text: &str) {
        nodes(text).unwrap_err();
    }
}

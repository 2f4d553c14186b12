//! The query of `/api/volumes`: which volumes, in which order, and which of these.

use std::str::FromStr;

/// Rows of an answer at most.
pub(crate) const MOST_ROWS: usize = 500;
/// Rows of an answer to a query without a number of rows.
const DEFAULT_ROWS: usize = 100;
/// The most words of a search.
const MOST_WORDS: usize = 8;

/// A query that cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("{0} must be a number, such as {0}=100")]
    Number(&'static str),
    #[error(
        "sort must be one of problem, name, size, node, class, state and age; prefix it with - for descending order"
    )]
    Sort,
}

/// The order of volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Those with a problem first.
    #[default]
    Problem,
    /// By namespace and name of the claim.
    Name,
    /// By size.
    Size,
    /// By node.
    Node,
    /// By device class.
    Class,
    /// By state.
    State,
    /// By time of creation.
    Age,
}

impl FromStr for Sort {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        match text {
            "" | "problem" => Ok(Self::Problem),
            "name" => Ok(Self::Name),
            "size" => Ok(Self::Size),
            "node" => Ok(Self::Node),
            "class" => Ok(Self::Class),
            "state" => Ok(Self::State),
            "age" => Ok(Self::Age),
            _ => Err(QueryError::Sort),
        }
    }
}

/// A query for volumes. Empty texts select everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeQuery {
    /// Words in lower case that must all be part of the names of a volume.
    pub(crate) words: Vec<String>,
    pub(crate) namespace: String,
    pub(crate) node: String,
    pub(crate) class: String,
    /// A state, or `problem` for every volume that has one.
    pub(crate) state: String,
    pub(crate) sort: Sort,
    pub(crate) is_descending: bool,
    pub(crate) offset: usize,
    pub(crate) limit: usize,
}

impl VolumeQuery {
    /// Parses the query of a URL. Parameters that are not known are left out, so that an older page works with a newer
    /// server.
    pub(crate) fn parse(query: &str) -> Result<Self, QueryError> {
        let mut parsed = Self { limit: DEFAULT_ROWS, ..Self::default() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "q" => {
                    parsed.words = value.split_whitespace().take(MOST_WORDS).map(str::to_lowercase).collect();
                }
                "namespace" => parsed.namespace = value.into_owned(),
                "node" => parsed.node = value.into_owned(),
                "class" => parsed.class = value.into_owned(),
                "state" => parsed.state = value.into_owned(),
                "sort" => {
                    let turned = value.strip_prefix('-');
                    parsed.is_descending = turned.is_some();
                    parsed.sort = turned.unwrap_or(&value).parse()?;
                }
                "offset" => parsed.offset = value.parse().map_err(|_| QueryError::Number("offset"))?,
                "limit" => parsed.limit = value.parse().map_err(|_| QueryError::Number("limit"))?,
                _ => {}
            }
        }
        parsed.limit = parsed.limit.min(MOST_ROWS);
        Ok(parsed)
    }
}

/// Returns the values of a parameter that may be repeated, `most` of them at most.
pub(crate) fn repeated(query: &str, parameter: &str, most: usize) -> Vec<String> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    pairs.filter(|(name, _)| name == parameter).map(|(_, value)| value.into_owned()).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_parsed_and_bounded() {
        let parsed = VolumeQuery::parse("q=Shop%20data&class=ssd&sort=-size&offset=40&limit=9999&new=1").unwrap();
        let expected = VolumeQuery {
            words: vec!["shop".to_owned(), "data".to_owned()],
            class: "ssd".to_owned(),
            sort: Sort::Size,
            is_descending: true,
            offset: 40,
            limit: MOST_ROWS,
            ..VolumeQuery::default()
        };
        assert_eq!(parsed, expected);
        assert_eq!(VolumeQuery::parse("").unwrap().limit, DEFAULT_ROWS);
    }

    #[test]
    fn what_cannot_be_answered_is_refused_with_what_can() {
        for (query, words) in [("offset=x", "offset=100"), ("limit=-1", "limit=100"), ("sort=colour", "age")] {
            let error = VolumeQuery::parse(query).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_parameter_may_be_repeated_so_many_times() {
        assert_eq!(repeated("volume=a&node=x&volume=b%2Fc&volume=d", "volume", 2), ["a", "b/c"]);
    }
}

//! Strategy by which one of several nodes with enough free space is preferred for a volume.

use std::str::FromStr;

/// The order in which nodes with enough free space are preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeStrategy {
    /// More free space is better, so that volumes are spread over the nodes.
    #[default]
    Spread,
    /// Less free space is better, so that nodes are filled one after the other and the others keep free space for large
    /// volumes.
    Binpack,
}

/// The text is no strategy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be spread or binpack")]
pub struct ParseNodeStrategyError;

impl FromStr for NodeStrategy {
    type Err = ParseNodeStrategyError;

    /// Carina's keywords count too: it has had both spellings of the first, and reads them in any case.
    fn from_str(text: &str) -> Result<Self, ParseNodeStrategyError> {
        match text.to_ascii_lowercase().as_str() {
            "spread" | "spreadout" | "spradout" => Ok(Self::Spread),
            "binpack" => Ok(Self::Binpack),
            _ => Err(ParseNodeStrategyError),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_carina_are_understood() {
        for word in ["spread", "spreadout", "spradout", "Spreadout"] {
            assert_eq!(word.parse(), Ok(NodeStrategy::Spread), "{word}");
        }
        assert_eq!("binpack".parse(), Ok(NodeStrategy::Binpack));
        assert_eq!("BINPACK".parse(), Ok(NodeStrategy::Binpack));
        for other in ["", "best", "spread "] {
            assert_eq!(other.parse::<NodeStrategy>(), Err(ParseNodeStrategyError), "{other}");
        }
    }
}

//! Scanner of the JSON of an extender request: finds where its parts begin and end, while the text arrives.
//!
//! A list of thousands of Node objects is a hundred megabytes, of which the metadata alone are read. Everything else is
//! looked at once, and only for strings and brackets: whether it is JSON in other respects is left to kube-scheduler,
//! which gets its own text back.

mod word;

use std::ops::Range;

use word::{Strings, Word};

/// Place of a value in the text, in bytes.
pub(super) type Extent = Range<usize>;

/// Brackets that are open around the members of a Node object: those of the request, of the list, of its items and of
/// the object itself. What lies deeper is only skipped.
const INNERMOST: usize = 4;

/// A text whose brackets do not match, or that goes on after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("brackets do not match near byte {0}")]
pub(crate) struct ScanError(usize);

/// Places of the parts of a request.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) pod: Option<Extent>,
    pub(super) nodes: Option<Extent>,
    pub(super) names: Option<Extent>,
    /// Members of the list of Nodes that are not its items.
    pub(super) list_fields: Vec<(&'static str, Extent)>,
    /// The list's items, where it has any that are not null.
    pub(super) items: Option<Extent>,
    /// Each item.
    pub(super) nodes_found: Vec<NodeExtent>,
}

/// Place of a Node object.
#[derive(Debug)]
pub(super) struct NodeExtent {
    pub(super) whole: Extent,
    pub(super) metadata: Option<Extent>,
}

/// Members of objects that are of interest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Key {
    Pod,
    Nodes,
    Names,
    /// A member of the list of Nodes.
    Field(&'static str),
    Items,
    /// Of a Node object.
    Metadata,
    #[default]
    Other,
}

/// An open bracket, and the value in it that has begun.
#[derive(Debug, Default)]
struct Level {
    is_array: bool,
    key: Key,
    /// Begin of the value.
    begin: usize,
}

/// The state of a scan, which goes on when more of the text is there.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    pub(super) parts: Parts,
    /// Bytes that have been looked at.
    position: usize,
    strings: Strings,
    /// Open brackets.
    depth: usize,
    /// The outermost of them, from the second entry on.
    levels: [Level; INNERMOST + 1],
    /// The last string outside of skipped values, with its quotes.
    string: Extent,
    /// Metadata of the Node object that has begun.
    metadata: Option<Extent>,
    is_complete: bool,
}

impl Scanner {
    /// Looks at what has arrived since the last call; `text` is everything so far.
    pub(super) fn advance(&mut self, text: &[u8]) -> Result<(), ScanError> {
        while self.position < text.len() {
            if self.depth > self.innermost() {
                self.skip_words(text);
            }
            // What is not skipped in words of 8 bytes is looked at byte by byte
            let end = text.len().min(self.position + size_of::<u64>());
            while self.position < end {
                self.step(text)?;
                self.position += 1;
            }
        }
        Ok(())
    }

    /// Returns the parts of a text that has arrived whole.
    pub(super) fn finish(self) -> Result<Parts, ScanError> {
        if self.is_complete { Ok(self.parts) } else { Err(ScanError(self.position)) }
    }

    /// Returns how many brackets are open around the innermost values of interest. Of a member of the request that is
    /// not the list of Nodes only the end is.
    fn innermost(&self) -> usize {
        if self.key_at(1) == Key::Nodes { INNERMOST } else { 1 }
    }

    /// Skips what lies too deep to be of interest, as long as that is certain for 8 bytes at once.
    fn skip_words(&mut self, text: &[u8]) {
        let innermost = self.innermost();
        let (words, _) = text.get(self.position..).unwrap_or_default().as_chunks::<8>();
        for bytes in words {
            let Some(Word { strings, opening, closing }) = Word::read(*bytes, self.strings) else { return };
            if self.depth <= innermost + closing {
                return;
            }
            self.depth = self.depth + opening - closing;
            self.strings = strings;
            self.position += bytes.len();
        }
    }

    /// Looks at one byte.
    fn step(&mut self, text: &[u8]) -> Result<(), ScanError> {
        let Some(&byte) = text.get(self.position) else { return Ok(()) };
        let was_in_string = self.strings.is_inside();
        self.strings.step(byte);
        match (was_in_string, self.strings.is_inside()) {
            (false, true) if self.is_complete => return Err(ScanError(self.position)),
            (false, true) => self.string.start = self.position,
            (true, false) => self.string.end = self.position + 1,
            (true, true) => {}
            (false, false) => return self.step_outside_of_strings(text, byte),
        }
        Ok(())
    }

    fn step_outside_of_strings(&mut self, text: &[u8], byte: u8) -> Result<(), ScanError> {
        match byte {
            _ if byte.is_ascii_whitespace() => {}
            _ if self.is_complete => return Err(ScanError(self.position)),
            b'{' | b'[' => self.open(byte == b'['),
            b'}' | b']' => self.close(text, byte == b']')?,
            b':' if self.depth <= self.innermost() => {
                let (key, begin) = (self.key(text), self.position + 1);
                if let Some(level) = self.levels.get_mut(self.depth) {
                    (level.key, level.begin) = (key, begin);
                }
            }
            b',' if self.depth <= self.innermost() => self.end_value(text),
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, is_array: bool) {
        self.depth += 1;
        if let Some(level) = self.levels.get_mut(self.depth) {
            *level = Level { is_array, key: Key::Other, begin: self.position + 1 };
        }
    }

    fn close(&mut self, text: &[u8], is_array: bool) -> Result<(), ScanError> {
        let is_of_interest = self.depth <= self.innermost();
        let does_match = self.levels.get(self.depth).is_some_and(|level| level.is_array == is_array);
        if self.depth == 0 || is_of_interest && !does_match {
            return Err(ScanError(self.position));
        }
        if is_of_interest {
            self.end_value(text);
        }
        self.depth -= 1;
        self.is_complete = self.depth == 0;
        Ok(())
    }

    /// Returns the meaning of the key that has just been read.
    fn key(&self, text: &[u8]) -> Key {
        let name = text.get(self.string.clone()).unwrap_or_default();
        // As Go reads a request, whose type has no JSON names
        let is = |key: &str| name.eq_ignore_ascii_case(key.as_bytes());
        match self.depth {
            1 if is(r#""pod""#) => Key::Pod,
            1 if is(r#""nodes""#) => Key::Nodes,
            1 if is(r#""nodenames""#) => Key::Names,
            2 if self.key_at(1) == Key::Nodes => match name {
                br#""items""# => Key::Items,
                br#""apiVersion""# => Key::Field("apiVersion"),
                br#""kind""# => Key::Field("kind"),
                br#""metadata""# => Key::Field("metadata"),
                _ => Key::Other,
            },
            4 if self.is_in_items() && name == br#""metadata""# => Key::Metadata,
            _ => Key::Other,
        }
    }

    fn key_at(&self, depth: usize) -> Key {
        self.levels.get(depth).map_or(Key::Other, |level| level.key)
    }

    fn is_in_items(&self) -> bool {
        self.key_at(2) == Key::Items && self.levels.get(3).is_some_and(|level| level.is_array)
    }

    /// Notes the value that ends here.
    fn end_value(&mut self, text: &[u8]) {
        let Some(level) = self.levels.get_mut(self.depth) else { return };
        let (is_array, key) = (level.is_array, level.key);
        let extent = trim(text, level.begin..self.position);
        level.begin = self.position + 1;
        if !is_array {
            level.key = Key::Other;
        }
        let is_null = text.get(extent.clone()) == Some(b"null");
        let value = (!is_null).then_some(extent.clone());
        match key {
            Key::Pod => self.parts.pod = value,
            Key::Nodes => self.parts.nodes = value,
            Key::Names => self.parts.names = value,
            Key::Field(name) => self.parts.list_fields.push((name, extent)),
            Key::Items => self.parts.items = value,
            Key::Metadata => self.metadata = value,
            Key::Other if self.depth == 3 && self.is_in_items() && !extent.is_empty() => {
                self.parts.nodes_found.push(NodeExtent { whole: extent, metadata: self.metadata.take() });
            }
            Key::Other => {}
        }
    }
}

/// Returns an extent without the white space at its ends.
fn trim(text: &[u8], extent: Extent) -> Extent {
    let value = text.get(extent.clone()).unwrap_or_default();
    let begin = extent.start + (value.len() - value.trim_ascii_start().len());
    begin..begin + value.trim_ascii().len()
}

#[cfg(test)]
mod tests;

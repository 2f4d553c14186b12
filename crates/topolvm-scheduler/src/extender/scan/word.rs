//! Strings and brackets of JSON, byte by byte and, where no backslash is in the way, 8 bytes at once.

/// The state of strings at a place in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Strings {
    is_inside: bool,
    /// The byte before is a backslash that takes its meaning from the next one.
    is_escaped: bool,
}

impl Strings {
    /// Returns whether the place is in a string. Its first quote is, its last is not.
    pub(super) fn is_inside(self) -> bool {
        self.is_inside
    }

    /// Goes past a byte.
    pub(super) fn step(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'"' => self.is_inside = !self.is_inside,
            b'\\' => self.is_escaped = self.is_inside,
            _ => {}
        }
    }
}

/// The contents of 8 bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// State after them.
    pub(super) strings: Strings,
    /// Brackets of both kinds outside of strings.
    pub(super) opening: usize,
    pub(super) closing: usize,
}

/// The lowest bit of each byte.
const LOWEST: u64 = u64::from_ne_bytes([0x01; 8]);
/// The highest bit of each byte.
const HIGHEST: u64 = u64::from_ne_bytes([0x80; 8]);
/// The bit in which square brackets and braces differ, in each byte.
const BRACE: u64 = u64::from_ne_bytes([b'{' ^ b'['; 8]);

impl Word {
    /// Reads 8 bytes; `None` when a backslash is among them or before them.
    pub(super) fn read(bytes: [u8; 8], strings: Strings) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        if strings.is_escaped || find(word, b'\\') != 0 {
            return None;
        }
        let quotes = find(word, b'"');
        let before = if strings.is_inside { HIGHEST } else { 0 };
        // A byte is in a string when the number of quotes up to it is odd
        let inside = sum_parities(quotes) ^ before;
        let braces = word | BRACE;
        let (opening, closing) = (find(braces, b'{') & !inside, find(braces, b'}') & !inside);
        let strings = Strings { is_inside: inside >> 63 == 1, is_escaped: false };
        Some(Self { strings, opening: count(opening), closing: count(closing) })
    }
}

/// Returns the highest bit of each byte that is `wanted`.
const fn find(word: u64, wanted: u8) -> u64 {
    let different = word ^ u64::from_ne_bytes([wanted; 8]);
    // Without carry from one byte to the next: the highest bit is left out of the sum
    !(((different & !HIGHEST) + !HIGHEST) | different) & HIGHEST
}

/// Returns of each byte the parity of the highest bits of the bytes up to it.
const fn sum_parities(highest: u64) -> u64 {
    let pairs = highest ^ (highest << 8);
    let fours = pairs ^ (pairs << 16);
    fours ^ (fours << 32)
}

/// Returns how many of the highest bits of the bytes are set.
fn count(highest: u64) -> usize {
    // The product has in its last byte the sum of all bytes
    usize::from(((highest >> 7).wrapping_mul(LOWEST) >> 56).to_le_bytes()[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the bytes one after the other.
    fn step_through(bytes: [u8; 8], mut strings: Strings) -> Word {
        let (mut opening, mut closing) = (0, 0);
        for byte in bytes {
            strings.step(byte);
            if !strings.is_inside {
                opening += usize::from(matches!(byte, b'{' | b'['));
                closing += usize::from(matches!(byte, b'}' | b']'));
            }
        }
        Word { strings, opening, closing }
    }

    #[test]
    fn eight_bytes_at_once_are_read_as_one_after_the_other() {
        // All words of eight out of these, of which neighbours in the table of characters are the likely mistakes
        let letters = *b"\"{[}]";
        let others = [b'\0', b'!', b'#', b'Z', b'^', b'z', b'|', b'~', 0x7f, 0xa2, 0xdb, 0xdd, 0xfb, 0xfd, 0xff];
        for number in 0..5_u32.pow(8) / 7 {
            let mut rest = number * 7;
            let mut bytes = [0; 8];
            for byte in &mut bytes {
                *byte = letters[usize::try_from(rest % 5).unwrap()];
                rest /= 5;
            }
            let number = usize::try_from(number).unwrap();
            bytes[number % 8] = others[number % others.len()];
            for is_inside in [false, true] {
                let before = Strings { is_inside, is_escaped: false };
                assert_eq!(Word::read(bytes, before), Some(step_through(bytes, before)), "{bytes:?} {before:?}");
            }
        }
    }

    #[test]
    fn backslashes_are_left_to_the_slow_way() {
        for is_inside in [false, true] {
            assert_eq!(Word::read(*b"abc\\\"abc", Strings { is_inside, is_escaped: false }), None);
            assert_eq!(Word::read(*b"abcdefgh", Strings { is_inside, is_escaped: true }), None);
        }
    }
}

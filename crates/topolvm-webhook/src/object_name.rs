//! Validates names of objects. A name becomes part of a request's path, and pods reach the webhook before the names in
//! them are validated.

/// The most bytes of a name (RFC 1123 subdomain).
pub(crate) const MAX_LENGTH: usize = 253;

/// Returns whether the API server could have an object of this name.
pub(crate) fn is_valid(name: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= MAX_LENGTH
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_lead_a_request_elsewhere_are_none() {
        for name in ["data", "a.b-c", "0"] {
            assert!(is_valid(name), "{name}");
        }
        for name in ["", ".", "..", "../pods/x", "a/status", "a?watch=1", "A", "-a", "a%2f", &"a".repeat(254)] {
            assert!(!is_valid(name), "{name}");
        }
    }
}

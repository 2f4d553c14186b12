//! Volume attributes: of every other length refused, every other letter taken without harm.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lvm::LvAttr;

fuzz_target!(|text: &str| {
    let Ok(attr) = text.parse::<LvAttr>() else {
        assert!(text.len() != 10 || !text.is_ascii(), "{text:?} is refused");
        return;
    };
    assert_eq!(attr.as_str(), text);
    let _ = (attr.volume_type(), attr.state(), attr.is_writable(), attr.is_open(), attr.skips_activation());
    assert!(!(attr.is_thin() && attr.holds_volumes()), "{text:?}");
    assert!(!attr.is_thin_pool() || attr.holds_volumes(), "{text:?}");
    if let Some(problem) = attr.problem() {
        assert!(!problem.to_string().is_empty());
    }
});

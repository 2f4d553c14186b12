//! lvmd.yaml: a configuration that can work, or everything that is wrong with it, with file and line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lvmd_config::Config;

fuzz_target!(|text: &str| {
    match Config::parse("lvmd.yaml", text) {
        Ok(config) => {
            let classes: Vec<_> = config.classes.iter().collect();
            assert!(!classes.is_empty());
            assert!(classes.iter().filter(|class| class.default).count() <= 1);
            for class in classes {
                assert!(config.classes.get(&class.name).is_some(), "{:?}", class.name);
            }
        }
        Err(invalid) => {
            assert!(!invalid.0.is_empty());
            assert!(invalid.0.iter().all(|problem| problem.starts_with("lvmd.yaml:")), "{invalid}");
        }
    }
});

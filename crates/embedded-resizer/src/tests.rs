//! Tests of the resizer over a fake API server and a fake driver.

mod expansion;
mod fake_driver;
mod harness;
mod modification;

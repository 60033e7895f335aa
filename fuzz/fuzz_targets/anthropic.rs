#![cfg_attr(fuzzing, no_main)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    use capstan::provider::fuzzing::{Wire, check_answer};
    capstan_fuzz::within_runtime(|| check_answer(Wire::Anthropic, data));
});

#[cfg(not(fuzzing))]
fn main() {}

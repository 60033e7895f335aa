#![cfg_attr(fuzzing, no_main)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    capstan_fuzz::within_runtime(|| capstan::provider::fuzzing::check_calls(data));
});

#[cfg(not(fuzzing))]
fn main() {}

#![cfg_attr(fuzzing, no_main)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    capstan::provider::fuzzing::check_schema(data);
});

#[cfg(not(fuzzing))]
fn main() {}

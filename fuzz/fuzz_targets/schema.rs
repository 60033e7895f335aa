#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    capstan_fuzz::fuzzing::check_schema(data);
});

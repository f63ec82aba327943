#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pollux_fuzz::config::check(data));

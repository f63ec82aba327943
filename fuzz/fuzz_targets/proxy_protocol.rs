#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pollux_fuzz::proxy_protocol::check(data));

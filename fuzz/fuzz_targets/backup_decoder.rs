#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| atoll_fuzz::backup_decoder::run(input));

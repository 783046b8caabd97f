#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| belljar_fuzz::stream_marks(data));

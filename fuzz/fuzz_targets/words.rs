//! Any text to every reader of text: an answer, and what was understood is written and read back
//! as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use octavo_codec::Codec;
use octavo_page::config::RunConfig;
use octavo_page::{ByteSize, Unit};
use std::fmt::{Debug, Display};
use std::str::FromStr;

fuzz_target!(|text: &str| {
    reads_back::<ByteSize>(text);
    reads_back::<Unit>(text);
    reads_back::<Codec>(text);
    match RunConfig::decode(text) {
        Ok(config) => {
            let mut word = String::new();
            config.encode(&mut word).expect("a String takes everything");
            assert_eq!(RunConfig::decode(&word), Ok(config));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(span) = octavo_sys::maps::span_of(text) {
        let line = format!("{:x}-{:x} ", span.start, span.end);
        assert_eq!(octavo_sys::maps::span_of(&line), Some(span));
    }
});

fn reads_back<T: FromStr<Err: Display + Debug + PartialEq> + Display + Debug + PartialEq>(
    text: &str,
) {
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse(), Ok(value)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

//! Decoders alone, over whole files of raw deflate that zlib made at its level 6.

use super::peers::WINDOW_BITS;
use super::{CodecError, PASSES, Program, round};
use crate::host::cpu_time;
use comfy_table::Table;
use libdeflater::Decompressor;
use octavo_codec::deflate::Inflate;
use rustix::time::ClockId;
use serde::Serialize;
use std::time::Duration;
use zlib_rs::{Deflate, DeflateFlush, InflateFlush, Status};

/// One decoder.
#[derive(Debug, Serialize)]
pub struct StreamRow {
    decoder: &'static str,
    decompress_mb_s: f64,
}

type Decode<'a> = Box<dyn FnMut(&[u8], &mut [u8]) -> bool + 'a>;

/// Measures each decoder on each file as one stream, in turns, the best of the passes.
pub fn compare(programs: &[Program]) -> Result<Vec<StreamRow>, CodecError> {
    let streams: Vec<Vec<u8>> =
        programs.iter().map(|p| deflated(&p.bytes)).collect::<Result<_, _>>()?;
    let bytes: usize = programs.iter().map(|p| p.bytes.len()).sum();
    let mut best = [Duration::MAX; 3];
    let mut decoders = decoders();
    for _ in 0..PASSES {
        for ((name, decode), best) in decoders.iter_mut().zip(&mut best) {
            let mut time = Duration::ZERO;
            for (program, stream) in programs.iter().zip(&streams) {
                let mut out = vec![1; program.bytes.len()];
                let start = cpu_time(ClockId::ThreadCPUTime);
                let fine = decode(stream, &mut out);
                time += cpu_time(ClockId::ThreadCPUTime) - start;
                if !fine || out != program.bytes {
                    let (codec, file) = (format!("inflate of {name}"), program.file.clone());
                    return Err(CodecError::Wrong { codec, file });
                }
            }
            *best = time.min(*best);
        }
    }
    let row = |((decoder, _), time): (&(&'static str, Decode<'_>), Duration)| StreamRow {
        decoder,
        decompress_mb_s: round(bytes as f64 / 1e6 / time.as_secs_f64(), 1.0),
    };
    Ok(decoders.iter().zip(best).map(row).collect())
}

fn decoders<'a>() -> [(&'static str, Decode<'a>); 3] {
    let (mut ours, mut libdeflate) = (Inflate::new(), Decompressor::new());
    let mut zlib = zlib_rs::Inflate::new(false, WINDOW_BITS);
    [
        (
            "octavo",
            Box::new(move |stream: &[u8], out: &mut [u8]| ours.inflate(stream, out).is_ok()),
        ),
        (
            "libdeflate",
            Box::new(move |stream: &[u8], out: &mut [u8]| {
                libdeflate.deflate_decompress(stream, out).is_ok()
            }),
        ),
        (
            "zlib-rs",
            Box::new(move |stream: &[u8], out: &mut [u8]| {
                zlib.reset(false);
                let status = zlib.decompress(stream, out, InflateFlush::Finish);
                matches!(status, Ok(Status::StreamEnd))
            }),
        ),
    ]
}

fn deflated(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut out = vec![0; bytes.len() + bytes.len() / 8 + 1024];
    let mut zlib = Deflate::new(6, false, WINDOW_BITS);
    match zlib.compress(bytes, &mut out, DeflateFlush::Finish) {
        Ok(Status::StreamEnd) => {
            out.truncate(zlib.total_out() as usize);
            Ok(out)
        }
        other => Err(CodecError::Peer {
            codec: "zlib-rs:6".to_owned(),
            why: format!("a whole file gives {other:?}"),
        }),
    }
}

/// As people read it.
pub fn table(rows: &[StreamRow]) -> Table {
    let mut table = crate::table::table(&["whole files by zlib level 6", "decomp MB/s"], 1..);
    for row in rows {
        table.add_row([row.decoder.to_owned(), format!("{:.0}", row.decompress_mb_s)]);
    }
    table
}

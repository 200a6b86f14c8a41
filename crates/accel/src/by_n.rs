//! A unit in N parts, all at once: what makes an accelerator fast at large units.
//!
//! The bytes are those of the codec `...:by_N`, and either reads what the other wrote: N words of
//! 32 bits, the first N itself, word i where part i begins; then the parts. Here each part is a
//! request of its own, and all of them are one batch.

use crate::batch::Batch;
use crate::request::{Engine, Failure, Request};
use octavo_codec::Codec;

/// The most parts.
pub const MAX_PARTS: usize = 64;

/// Compresses `unit` in `n` parts, each with `codec`, into the front of `out`; gives the bytes that
/// took. The parts come apart in `room`, which is as long as the unit: one that does not get shorter
/// does not fit.
///
/// # Errors
/// [`Failure`] of the first part that failed: then there is no whole.
///
/// # Panics
/// When `n` is no power of two up to [`MAX_PARTS`], the unit cannot be cut so, or `room` is shorter
/// than the unit.
pub fn compress<E: Engine + ?Sized>(
    engine: &mut E,
    codec: Codec,
    n: usize,
    unit: &[u8],
    room: &mut [u8],
    out: &mut [u8],
) -> Result<usize, Failure> {
    let part_bytes = assert_parts(n, unit.len());
    let mut requests = no_requests(codec);
    let rooms = room[..unit.len()].chunks_exact_mut(part_bytes);
    for ((request, part), room) in requests.iter_mut().zip(unit.chunks_exact(part_bytes)).zip(rooms)
    {
        *request = Request::compress(codec, part, room);
    }
    let requests = &mut requests[..n];
    Batch::new(engine, requests).finish();

    let mut end = 4 * n;
    for (i, request) in requests.iter().enumerate() {
        let size = result(request)?;
        let word = if i == 0 { n } else { end };
        let bytes = request.bytes().unwrap_or(&[]);
        let to = out.get_mut(end..end + size).ok_or(Failure::DoesNotFit)?;
        to.copy_from_slice(bytes);
        // There is room for the words: there was for what comes behind them.
        out[4 * i..][..4].copy_from_slice(&(word as u32).to_le_bytes());
        end += size;
    }
    Ok(end)
}

/// Decompresses the `n` parts of `bytes` into the whole of `unit`.
///
/// # Errors
/// [`Failure::Corrupt`] when they are no `n` parts that give it.
///
/// # Panics
/// When `n` is no power of two up to [`MAX_PARTS`], or the unit cannot be cut so.
pub fn decompress<E: Engine + ?Sized>(
    engine: &mut E,
    codec: Codec,
    n: usize,
    bytes: &[u8],
    unit: &mut [u8],
) -> Result<(), Failure> {
    let part_bytes = assert_parts(n, unit.len());
    let mut requests = no_requests(codec);
    for (i, (request, part)) in
        requests.iter_mut().zip(unit.chunks_exact_mut(part_bytes)).enumerate()
    {
        let bytes = part_of(bytes, n, i).ok_or(Failure::Corrupt)?;
        *request = Request::decompress(codec, bytes, part);
    }
    let requests = &mut requests[..n];
    Batch::new(engine, requests).finish();
    requests.iter().try_for_each(|request| result(request).map(drop))
}

fn no_requests<'a>(codec: Codec) -> [Request<'a>; MAX_PARTS] {
    core::array::from_fn(|_| Request::compress(codec, &[], &mut []))
}

fn result(request: &Request<'_>) -> Result<usize, Failure> {
    request.outcome().expect("the batch is finished").result
}

/// The bytes of part `i` of `n`, if there are such.
fn part_of(bytes: &[u8], n: usize, i: usize) -> Option<&[u8]> {
    let word = |i: usize| {
        let word = bytes.get(4 * i..)?.first_chunk()?;
        Some(u32::from_le_bytes(*word) as usize)
    };
    if word(0)? != n {
        return None;
    }
    let begin = if i == 0 { 4 * n } else { word(i)? };
    let end = if i + 1 == n { bytes.len() } else { word(i + 1)? };
    bytes.get(begin..end)
}

fn assert_parts(n: usize, bytes: usize) -> usize {
    assert!(n.is_power_of_two() && n <= MAX_PARTS, "{n} parts");
    assert!(bytes.is_multiple_of(n), "{bytes} bytes in {n} equal parts");
    bytes / n
}

//! Trains tables for canned deflate and prints them as the source of `src/deflate/general.rs`.
//!
//!     cargo run --release -p octavo-codec --example train -- TABLES FILE...

use octavo_codec::deflate::{Deflate, Histogram, Lengths, Level, train};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tables, files @ ..] = &arguments[..] else {
        return Err("arguments: TABLES FILE...".into());
    };
    let mut deflate = Deflate::new();
    let mut units = Vec::new();
    for file in files {
        let pages = std::fs::read(file)?;
        // Small units and large ones: distances differ.
        for unit in pages.chunks_exact(4096).chain(pages.chunks_exact(65536)) {
            if unit[8..] != unit[..unit.len() - 8] {
                let mut histogram = Histogram::new();
                deflate.count(Level::L1, unit, &mut histogram);
                units.push(histogram);
            }
        }
    }
    let trained = train(&units, tables.parse()?, 32768);
    println!(
        "//! Tables for canned deflate that suit most programs. Made by `examples/train.rs` from"
    );
    println!(
        "//! {} units of programs that are in no benchmark: see docs/codec.md.\n",
        units.len()
    );
    println!("use super::encode::Lengths;\n");
    println!("/// Code lengths of the general tables; a table's id is its place here.");
    println!("#[rustfmt::skip]");
    println!("pub const GENERAL: [Lengths; {}] = [", trained.len());
    for Lengths { litlen, distance } in trained {
        println!("    Lengths {{\n        litlen: [");
        print_rows(&litlen);
        println!("        ],\n        distance: [");
        print_rows(&distance);
        println!("        ],\n    }},");
    }
    println!("];");
    Ok(())
}

fn print_rows(lengths: &[u8]) {
    for row in lengths.chunks(26) {
        let row: Vec<String> = row.iter().map(u8::to_string).collect();
        println!("            {},", row.join(","));
    }
}

//! Tables as all comparisons print them.

use comfy_table::{CellAlignment, Table, presets};
use std::ops::RangeBounds;

/// A table with these heads, without lines; the columns of `numbers` end at their right.
pub fn table(heads: &[&str], numbers: impl RangeBounds<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heads.iter().copied());
    for (n, column) in table.column_iter_mut().enumerate() {
        if numbers.contains(&n) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

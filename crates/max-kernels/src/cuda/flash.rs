//! Attention of 16-bit floats by warpgroups, which GPUs of compute capability 9.0 have: `flash.cu` has the function, `dense.cuh`
//! and `paged.cuh` say where its operands are, in a graph and in a cache in pages, and here is how large its tiles are.

use std::fmt::Write;

use max_driver::cuda::Gpu;

/// The columns of a panel of shared memory, and the bytes of one of its rows.
const PANEL: i64 = 64;
const PANEL_ROW: i64 = 128;

/// The shared memory that a block has if it is alone on a multiprocessor, and if there are two.
const SHARED: [i64; 2] = [200 << 10, 113 << 10];

/// The most slots that are of use.
const MOST_SLOTS: i64 = 12;

/// The longest keys and values that fit the registers.
const MOST_DEPTH: i64 = 256;

/// The most rows and keys, so that positions fit 32 bits.
pub(super) const MOST_POSITIONS: i64 = 1 << 30;

/// What a block computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    depth: i64,
    width: i64,
    /// The keys of a tile.
    keys: i64,
    /// The warpgroups that have 64 rows each.
    groups: i64,
    /// The blocks of a multiprocessor.
    blocks: i64,
}

impl Shape {
    /// For as many rows as there may be.
    pub(super) fn of_many_rows(depth: i64, width: i64) -> Shape {
        let keys = if depth.max(width) <= 2 * PANEL { 128 } else { 64 };
        Shape { depth, width, keys, groups: 2, blocks: 1 }
    }

    /// For at most 64 rows, with two blocks on a multiprocessor if there are enough for that.
    pub(super) fn of_few_rows(depth: i64, width: i64, two: bool) -> Shape {
        let blocks = if two && depth.max(width) <= 2 * PANEL { 2 } else { 1 };
        Shape { depth, width, keys: 64, groups: 1, blocks }
    }

    /// The rows of a block.
    pub(super) fn rows(&self) -> i64 {
        64 * self.groups
    }

    /// The threads of a block: one warpgroup copies.
    pub(super) fn threads(&self) -> u32 {
        128 * (self.groups as u32 + 1)
    }

    /// The blocks that run at a time.
    pub(super) fn blocks(&self, gpu: &Gpu) -> i64 {
        self.blocks * i64::from(gpu.multiprocessors())
    }

    /// The bytes of shared memory: queries, slots, and barriers for each.
    pub(super) fn shared(&self) -> u32 {
        (self.queries() + self.slots() * self.slot() + 16 * (self.slots() + 1)) as u32
    }

    fn queries(&self) -> i64 {
        self.rows() * PANEL_ROW * panels(self.depth)
    }

    fn slot(&self) -> i64 {
        self.keys * PANEL_ROW * panels(self.depth.max(self.width))
    }

    fn slots(&self) -> i64 {
        let room = SHARED[usize::from(self.blocks > 1)] - 16 * (MOST_SLOTS + 1);
        ((room - self.queries()) / self.slot()).min(MOST_SLOTS)
    }

    /// What names of functions say about it.
    pub(super) fn name(&self) -> String {
        let Shape { depth, width, keys, groups, blocks } = self;
        format!("{depth}_{width}_{keys}_{groups}_{blocks}")
    }

    /// The text of the function, with more definitions; `operands` is `dense.cuh` or `paged.cuh`.
    pub(super) fn text(&self, half: bool, definitions: &[(&str, bool)], operands: &str) -> String {
        let Shape { depth, width, keys, groups, blocks } = self;
        let slots = self.slots();
        let mut text = format!(
            "#define HALF {}\n#define DEPTH {depth}\n#define WIDTH {width}\n#define KEYS {keys}\n#define GROUPS {groups}\n\
             #define SLOTS {slots}\n#define BLOCKS {blocks}\n",
            u8::from(half)
        );
        for (word, on) in definitions {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {word} {}", u8::from(*on));
        }
        text.push_str(include_str!("tensor.cuh"));
        text.push_str(include_str!("flash/warpgroup.cuh"));
        text.push_str(&product("scores_product", *keys, half, false));
        text.push_str(&product("results_product", *width, half, true));
        text.push_str(operands);
        text.push_str(include_str!("flash/flash.cu"));
        text
    }
}

/// Whether keys and values of these lengths are supported, on a GPU.
pub(super) fn fits(gpu: &Gpu, depth: i64, width: i64) -> bool {
    let small = |size: i64| size > 0 && size % 8 == 0 && size <= MOST_DEPTH;
    gpu.compute_capability() == (9, 0) && small(depth) && small(width)
}

/// Whether scores may be compared before they are multiplied by a factor.
pub(super) fn keeps_order(scale: f64) -> bool {
    let scale = scale as f32;
    scale > 0.0 && scale.is_finite()
}

fn panels(columns: i64) -> i64 {
    (columns + PANEL - 1) / PANEL
}

/// A function for the product of 64 rows with `columns` columns, a sixteenth of the depth of a panel at a time. Its left operand
/// is a tile or in registers, where it adds to sums, and its right operand is a tile of rows or of columns.
fn product(name: &str, columns: i64, half: bool, in_registers: bool) -> String {
    let dtype = if half { "f16" } else { "bf16" };
    let sums = columns / 2;
    let list = |count: i64, text: &dyn Fn(i64) -> String| (0..count).map(text).collect::<Vec<_>>().join(", ");
    let places = list(sums, &|i| format!("%{i}"));
    let outputs = list(sums, &|i| format!("\"+f\"(sums[{i}])"));
    let instruction =
        format!("wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype} {{{places}}}");
    let next = |i: i64| sums + i;
    match in_registers {
        true => format!(
            "__device__ __forceinline__ void {name}(float (&sums)[{sums}], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {{\n\
             asm volatile(\"{instruction}, {{%{}, %{}, %{}, %{}}}, %{}, 1, 1, 1, 1;\"\n\
             : {outputs} : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b));\n}}\n",
            next(0),
            next(1),
            next(2),
            next(3),
            next(4)
        ),
        false => format!(
            "__device__ __forceinline__ void {name}(float (&sums)[{sums}], u64 a, u64 b, int keep) {{\n\
             asm volatile(\"{{\\n.reg .pred keep;\\nsetp.ne.b32 keep, %{}, 0;\\n\
             {instruction}, %{}, %{}, keep, 1, 1, 0, 0;\\n}}\"\n\
             : {outputs} : \"l\"(a), \"l\"(b), \"r\"(keep));\n}}\n",
            next(2),
            next(0),
            next(1)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_shared_memory() {
        for depth in (8..=MOST_DEPTH).step_by(8) {
            for width in [8, depth, MOST_DEPTH] {
                let few = [false, true].map(|two| Shape::of_few_rows(depth, width, two));
                for shape in few.into_iter().chain([Shape::of_many_rows(depth, width)]) {
                    // Keys and values are in use at the same time, and the next ones must have a place.
                    assert!(shape.slots() >= 3, "{shape:?}");
                    let shared = i64::from(shape.shared()) + 1024;
                    assert!(shared * shape.blocks <= 228 << 10, "{shape:?} takes {shared}");
                }
            }
        }
    }

    #[test]
    fn products_have_the_registers_of_their_columns() {
        let text = product("f", 16, true, false);
        assert!(
            text.contains("m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, keep"),
            "{text}"
        );
        let text = product("f", 8, false, true);
        assert!(
            text.contains("m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 1"),
            "{text}"
        );
    }
}

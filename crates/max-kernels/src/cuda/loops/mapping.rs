//! How a nest is mapped to threads: which of them share a row, and how many elements each handles.

use max_core::kernel::{Instr, Level};

use super::nest::Nest;
use crate::loops::Axis;

/// The threads per block, unless something else decides.
const BLOCK: usize = 256;
/// The threads that exchange values without a barrier.
const WARP: usize = 32;
/// The bytes that a thread reads or writes in one access.
const PIECE: usize = 16;
/// The bytes of shared memory that are available to every block.
const SHARED: usize = 48 << 10;
/// How many bytes of a row a thread may hold.
const HELD: usize = 128;

/// What neighbouring threads handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Consecutive vectors of the last axis; nothing is reduced.
    Flat,
    /// Vectors of the last axis, in tiles of this many elements along it and along another axis, along which some loads
    /// are contiguous: these go through shared memory, in vectors of `vector` elements along that axis.
    Tile { axis: usize, side: usize, vector: usize },
    /// Vectors of the same row: this many threads, a power of two, share a row.
    Along { group: usize },
    /// Vectors of neighbouring rows, in blocks that are this many threads across; `down` threads share a row.
    Across { across: usize, down: usize },
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) scheme: Scheme,
    /// The elements per vector.
    pub(super) vector: usize,
    /// How many vectors a thread handles at a time.
    pub(super) repeat: usize,
    /// Whether a thread holds all vectors of its rows at the same time, and so reads memory once.
    pub(super) held: bool,
}

/// How the elements of a vector are laid out in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    Together,
    Same,
    Apart,
}

impl Mapping {
    /// The mapping of a nest on a GPU with this many multiprocessors.
    pub(super) fn of(nest: &Nest, multiprocessors: u32) -> Mapping {
        let enough = i64::from(multiprocessors) * 2;
        let Some(reduce) = &nest.reduce else { return flat(nest, enough) };
        let last = nest.kept.last().unwrap_or(reduce);
        if contiguous(nest, reduce) >= contiguous(nest, last) {
            along(nest, reduce, enough)
        } else {
            across(nest, last, enough)
        }
    }

    /// The axis that vectors go along.
    pub(super) fn axis<'a>(&self, nest: &'a Nest) -> Option<&'a Axis> {
        match self.scheme {
            Scheme::Along { .. } => nest.reduce.as_ref(),
            Scheme::Flat | Scheme::Tile { .. } | Scheme::Across { .. } => nest.kept.last(),
        }
    }

    /// How a vector of an access is laid out.
    pub(super) fn lies(&self, nest: &Nest, access: usize) -> Lies {
        let Some(axis) = self.axis(nest).filter(|_| self.vector > 1) else { return Lies::Together };
        match axis.strides[nest.walk_of[access]] {
            0 => Lies::Same,
            1 if is_aligned(nest, axis, access, self.vector) => Lies::Together,
            _ => Lies::Apart,
        }
    }

    /// The threads per block.
    pub(super) fn block(&self) -> [usize; 2] {
        match self.scheme {
            Scheme::Flat | Scheme::Tile { .. } => [BLOCK, 1],
            Scheme::Along { group } if group <= WARP => [BLOCK, 1],
            Scheme::Along { group } => [group, 1],
            Scheme::Across { across, down } => [across, down],
        }
    }

    /// How many vectors, or rows, or vectors of rows, the nest has.
    pub(super) fn items(&self, nest: &Nest) -> i64 {
        match self.scheme {
            Scheme::Along { .. } => nest.rows(),
            Scheme::Tile { axis, side, .. } => {
                let tiles = |(at, of): (usize, &Axis)| match at == axis || at + 1 == nest.kept.len() {
                    true => (of.size as u64).div_ceil(side as u64) as i64,
                    false => of.size,
                };
                nest.kept.iter().enumerate().map(tiles).product()
            }
            Scheme::Flat | Scheme::Across { .. } => {
                let last = nest.kept.last().map_or(1, |axis| axis.size);
                nest.rows() / last.max(1) * (last as u64).div_ceil(self.vector as u64) as i64
            }
        }
    }

    /// How many of these a block handles.
    pub(super) fn items_of_block(&self) -> usize {
        match self.scheme {
            Scheme::Flat => BLOCK * self.repeat,
            Scheme::Tile { .. } => 1,
            Scheme::Along { group } => self.block()[0] / group,
            Scheme::Across { across, .. } => across,
        }
    }
}

/// Whether a load is contiguous along an axis other than the last.
pub(super) fn lies_across(nest: &Nest, axis: usize, access: usize) -> bool {
    let (walk, last) = (nest.walk_of[access], nest.kept.len() - 1);
    let stride = |axis: usize| nest.kept[axis].strides[walk];
    axis != last && stride(axis) == 1 && ![0, 1].contains(&stride(last))
}

/// Tiles, where loads and stores are contiguous along different axes and both axes are long enough.
fn tile(nest: &Nest) -> Option<Mapping> {
    let last = nest.kept.len() - 1;
    let loads = |axis: usize| {
        nest.touches().filter(move |&(_, access, written)| !written && lies_across(nest, axis, access))
    };
    let axis = (0..last).max_by_key(|&axis| loads(axis).count())?;
    let (along, across) = (&nest.kept[last], &nest.kept[axis]);
    let written =
        |(_, access, written): (usize, usize, bool)| !written || along.strides[nest.walk_of[access]] == 1;
    let bytes: usize = loads(axis).map(|(_, access, _)| nest.accesses[access].dtype.size_in_bytes()).sum();
    if bytes == 0 || along.size.min(across.size) < 16 || !nest.touches().all(written) {
        return None;
    }
    let side = if bytes <= 8 { 64 } else { 32 };
    let whole = |vector: usize| {
        across.size % vector as i64 == 0
            && loads(axis).all(|(_, access, _)| is_aligned(nest, across, access, vector))
    };
    let largest = loads(axis).map(|(_, access, _)| nest.accesses[access].dtype.size_in_bytes()).max()?;
    let mut down = PIECE / largest;
    while down > 1 && !whole(down) {
        down /= 2;
    }
    let vector = vector(nest, along, false).min(side * side / BLOCK);
    let repeat = side * side / (BLOCK * vector);
    let fits = bytes * side * (side + 4) <= SHARED;
    let scheme = Scheme::Tile { axis, side, vector: down.min(side * side / BLOCK) };
    fits.then_some(Mapping { scheme, vector, repeat, held: true })
}

/// How many consecutive elements each access finds along an axis, among the accesses that are walked by element.
fn contiguous(nest: &Nest, axis: &Axis) -> usize {
    let by_element = nest.touches().filter(|(at, ..)| nest.levels[*at] == Level::Element);
    by_element.filter(|(_, access, _)| axis.strides[nest.walk_of[*access]] == 1).count()
}

/// Whether vectors of an access along an axis are aligned, given that slots are.
fn is_aligned(nest: &Nest, along: &Axis, access: usize, vector: usize) -> bool {
    let unit = vector.min(PIECE / nest.accesses[access].dtype.size_in_bytes()) as i64;
    let walk = nest.walk_of[access];
    let mut others = nest.axes().filter(|axis| !std::ptr::eq(*axis, along));
    nest.accesses[access].offset % unit == 0 && others.all(|axis| axis.strides[walk] % unit == 0)
}

/// The largest vectors along an axis that memory allows. With `odd` (nests of one kept axis), the
/// last one may be partial.
fn vector(nest: &Nest, axis: &Axis, odd: bool) -> usize {
    let touched = nest.touches().filter(|(_, access, _)| axis.strides[nest.walk_of[*access]] == 1);
    let sizes: Vec<usize> =
        touched.map(|(_, access, _)| nest.accesses[access].dtype.size_in_bytes()).collect();
    let (Some(&least), Some(&most)) = (sizes.iter().min(), sizes.iter().max()) else { return 1 };
    let mut vector = (PIECE / least).min(2 * PIECE / most).max(1);
    let fits = |vector: usize| {
        let whole = odd || axis.size % vector as i64 == 0;
        whole
            && nest.touches().all(|(_, access, written)| {
                let stride = axis.strides[nest.walk_of[access]];
                let wide = nest.accesses[access].dtype.size_in_bytes() >= 4;
                match stride {
                    1 => is_aligned(nest, axis, access, vector) || !written && !wide,
                    0 => true,
                    _ => !written,
                }
            })
    };
    while vector > 1 && !fits(vector) {
        vector /= 2;
    }
    vector
}

/// The size of the largest element that is accessed, in bytes.
fn largest(nest: &Nest) -> usize {
    nest.touches().map(|(_, access, _)| nest.accesses[access].dtype.size_in_bytes()).max().unwrap_or(1)
}

fn flat(nest: &Nest, enough: i64) -> Mapping {
    let Some(last) = nest.kept.last() else {
        return Mapping { scheme: Scheme::Flat, vector: 1, repeat: 1, held: true };
    };
    if let Some(mapping) = tile(nest) {
        return mapping;
    }
    let vector = vector(nest, last, nest.kept.len() == 1);
    let mut mapping = Mapping { scheme: Scheme::Flat, vector, repeat: 1, held: true };
    let repeat = (PIECE / vector).clamp(2, 8) * if vector == 8 { 2 } else { 1 };
    if mapping.items(nest) / (BLOCK * repeat) as i64 >= enough {
        mapping.repeat = repeat;
    }
    mapping
}

/// The maximum number of bytes per element of a row that a thread holds from one pass to the next: loads that several
/// passes use, as they are in memory, and values that are not recomputed.
fn bytes_held(nest: &Nest) -> usize {
    // The first and the last pass that need the value of each instruction.
    let mut wanted: Vec<Option<(usize, usize)>> = vec![None; nest.code.len()];
    for at in (0..nest.code.len()).rev().filter(|&at| nest.live[at]) {
        let passes = match nest.code[at] {
            Instr::Reduce(..) => Some((nest.ready[at] - 1, nest.ready[at] - 1)),
            Instr::Store(..) => Some((nest.last(), nest.last())),
            _ if nest.is_costly(at) => wanted[at].map(|_| (nest.ready[at], nest.ready[at])),
            _ => wanted[at],
        };
        let Some((first, last)) = passes else { continue };
        for arg in nest.code[at].args().iter().map(|arg| arg.0 as usize) {
            if nest.levels[arg] == Level::Element {
                let own = wanted[arg].get_or_insert((first, last));
                *own = (own.0.min(first), own.1.max(last));
            }
        }
    }
    let held = |at: usize, pass: usize| match (&nest.code[at], wanted[at]) {
        (Instr::Load(access), Some((first, last))) if first <= pass && pass < last => {
            nest.accesses[*access as usize].dtype.size_in_bytes()
        }
        (_, Some((_, last))) if nest.is_costly(at) && nest.ready[at] <= pass && pass < last => {
            nest.dtypes[at].size_in_bytes().max(4)
        }
        _ => 0,
    };
    let after = |pass: usize| (0..nest.code.len()).map(|at| held(at, pass)).sum();
    (0..nest.last()).map(after).max().unwrap_or(0).max(1)
}

fn along(nest: &Nest, reduce: &Axis, enough: i64) -> Mapping {
    let vector = vector(nest, reduce, false);
    let vectors = reduce.size as u64 / vector as u64;
    let most = (HELD / (vector * bytes_held(nest))).clamp(1, 8);
    let mapping = |group: usize, repeat: usize| Mapping {
        scheme: Scheme::Along { group },
        vector,
        repeat,
        held: (group * repeat) as u64 >= vectors,
    };
    if vectors <= WARP as u64 {
        return mapping((vectors as usize).next_power_of_two(), 1);
    }
    for repeat in [2, 4] {
        if repeat <= most && vectors <= (WARP * repeat) as u64 && nest.rows() >= enough {
            return mapping(WARP, repeat);
        }
    }
    // Many rows keep all multiprocessors busy with few threads per row; few rows need many.
    let groups: &[usize] =
        if nest.rows() >= enough { &[64, 128, 256, 512, 1024] } else { &[128, 256, 512, 1024] };
    let repeat_for = |group: usize| (vectors.div_ceil(group as u64) as usize).next_power_of_two();
    let wanted = if nest.rows() >= enough { 4 } else { 1 };
    // Two blocks on a multiprocessor take turns waiting for memory, so one that fills it is the last choice.
    let fits = |limit: usize, largest: usize| {
        groups.iter().find(|&&group| group <= largest && repeat_for(group) <= limit)
    };
    match fits(wanted.min(most), 512).or_else(|| fits(most, 512)).or_else(|| fits(most, 1024)) {
        Some(&group) => mapping(group, repeat_for(group)),
        None => mapping(1024, 4.min(most.max(2))),
    }
}

fn across(nest: &Nest, last: &Axis, enough: i64) -> Mapping {
    let vector = vector(nest, last, false).min(8);
    let mut across = 32;
    let items = nest.rows() / vector as i64;
    // Narrow blocks read memory in small pieces, and wide ones leave multiprocessors without work.
    while across > 16 && items / across < enough || across as u64 / 2 >= items as u64 && across > 1 {
        across /= 2;
    }
    let down = (BLOCK / across as usize).min((nest.row_length() as usize).next_power_of_two());
    let repeat = (4 * PIECE / (vector * largest(nest))).clamp(1, 4);
    Mapping { scheme: Scheme::Across { across: across as usize, down }, vector, repeat, held: false }
}

//! Loops of floats as chains: the whole program of a row, or of a group of columns, is one list of steps.
//!
//! `build` makes the steps; this module says where they find their memory and runs them. A chain goes over the loop
//! row by row. Along a row (where it is reduced, or nothing is), an iteration of a segment is a group of its elements;
//! across rows, it is one step along the reduced axis for a group of columns, and the next such group is the next row.

mod build;

use max_core::DType;
use max_core::kernel::Loop;

use super::plan::{Uses, moves_much, splits, task_size};
use super::space::Space;
use crate::scratch::{self, Line};
use crate::tile::{self, Act, ChainFn, GROUP, Segment, Step};
use crate::{Memory, Pool};

/// Where a step finds its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the user's memory: a view.
    View(u32),
    /// In the scratch memory of a thread.
    Scratch,
    /// Among the constants.
    Image,
}

/// A step without addresses. Distances are in bytes.
#[derive(Clone, Copy, Debug)]
struct Planned {
    act: Act,
    place: Place,
    offset: isize,
    /// Per iteration, per iteration that runs together with the first, and per row.
    stride: isize,
    lane: isize,
    row: isize,
    /// Per column of a part of a row.
    column: isize,
}

/// How a chain walks a view: the first element, and the strides of the axes, the rows last. All in elements.
#[derive(Debug)]
struct Walked {
    slot: usize,
    size: isize,
    offset: isize,
    strides: Vec<isize>,
}

/// The axes of a chain.
#[derive(Debug)]
struct Shape {
    /// The axes above the rows, and the rows.
    axes: Vec<usize>,
    /// Iterations with whole groups, and the elements of one more that is not whole.
    whole: usize,
    rest: usize,
    /// Whether a row is one group, so that rows are iterations.
    single: bool,
    /// Whether iterations go across rows.
    across: bool,
}

/// A loop that runs as a chain.
#[derive(Debug)]
pub(crate) struct PreparedChain {
    run: ChainFn,
    steps: Vec<Planned>,
    segments: Vec<Segment>,
    views: Vec<Walked>,
    image: Vec<Line>,
    shape: Shape,
    /// The number of rows, the parts that each is cut into, and the iterations of a part.
    rows: usize,
    parts: usize,
    part: usize,
    /// The rows, or parts of rows, per task.
    task: usize,
    shared: bool,
    streaming: bool,
    bytes: usize,
}

/// The iterations of a part of a long row.
const PART: usize = 128;
/// Below this many elements times steps, a loop is not worth waking other threads.
const SMALL: usize = 32 << 10;

impl PreparedChain {
    /// The loop as a chain, if it has that form.
    pub(super) fn new(
        loop_: &Loop<i64>,
        dtypes: &[DType],
        live: &[bool],
        uses: &Uses,
        space: &Space,
    ) -> Option<PreparedChain> {
        let run = tile::chain()?;
        let shape = Shape::new(space)?;
        let rows = shape.axes.iter().fold(1, |product: usize, &size| product.saturating_mul(size));
        let elements = space.elements();
        let reduces = space.horizontal || shape.across;
        if reduces && splits(rows, elements) {
            return None;
        }
        let built = build::build(loop_, dtypes, live, space, &shape)?;
        let across = shape.across;
        let last = shape.axes.len() - 1;
        let views = space.views.iter().map(|view| {
            let mut strides = view.outer.clone();
            if !space.horizontal {
                strides.push(view.row);
            }
            if across {
                strides.push(view.col * GROUP as isize);
            }
            strides.resize(last + 1, 0);
            let size = view.dtype.size_in_bytes() as isize;
            Walked { slot: view.slot, size, offset: view.offset, strides }
        });
        let views: Vec<Walked> = views.collect();
        let part = if reduces || shape.whole <= PART { shape.whole.max(1) } else { PART };
        let parts = if reduces { 1 } else { shape.whole.div_ceil(part).max(1) };
        let unit = elements / rows / parts;
        Some(PreparedChain {
            run,
            shared: elements.saturating_mul(built.steps.len()) > SMALL,
            streaming: moves_much(space, uses),
            steps: built.steps,
            segments: built.segments,
            views,
            image: built.image,
            rows,
            parts,
            part,
            task: (task_size(elements) / unit.max(1)).max(1),
            bytes: built.bytes,
            shape,
        })
    }

    /// # Safety
    ///
    /// The memory was checked for the loop.
    pub(super) unsafe fn run(&self, memory: &[Memory], pool: &Pool) {
        let units = self.rows * self.parts;
        let table = (self.steps.len() * size_of::<Step>() + self.segments.len() * size_of::<Segment>())
            .next_multiple_of(size_of::<Line>());
        let task = |task: usize| {
            let units = task * self.task..units.min((task + 1) * self.task);
            scratch::with(table + self.bytes, |scratch| {
                // SAFETY: the scratch memory has room for the steps and the segments, which are written before they
                // are used, and then for what the steps use.
                unsafe {
                    let steps = std::slice::from_raw_parts_mut(scratch.cast::<Step>(), self.steps.len());
                    let segments = scratch.add(size_of_val(steps)).cast::<Segment>();
                    let segments = std::slice::from_raw_parts_mut(segments, self.segments.len());
                    segments.copy_from_slice(&self.segments);
                    let mut at = units.start;
                    while at < units.end {
                        at += self.rows_from(at, units.end - at, memory, scratch.add(table), steps, segments);
                    }
                }
                if self.streaming {
                    tile::fence();
                }
            });
        };
        let tasks = units.div_ceil(self.task);
        if self.shared && tasks > 1 { pool.run(tasks, &task) } else { (0..tasks).for_each(task) }
    }

    /// Runs as many units as have their memory at constant distances, and returns their number.
    ///
    /// # Safety
    ///
    /// The memory was checked, the scratch memory suffices, and the units exist.
    unsafe fn rows_from(
        &self,
        unit: usize,
        most: usize,
        memory: &[Memory],
        scratch: *mut u8,
        steps: &mut [Step],
        segments: &mut [Segment],
    ) -> usize {
        let (row, part) = (unit / self.parts, unit % self.parts);
        let (axis, last) = (self.shape.axes.len() - 1, self.shape.axes[self.shape.axes.len() - 1]);
        let rows = if self.parts > 1 { 1 } else { most.min(last - row % last) };
        let columns = (part * self.part * GROUP) as isize;
        for (step, planned) in steps.iter_mut().zip(&self.steps) {
            let mut row_stride = planned.row;
            let (mut stride, mut lane) = (planned.stride, planned.lane);
            let start = match planned.place {
                Place::Scratch => scratch,
                Place::Image => self.image.as_ptr().cast_mut().cast(),
                Place::View(view) => {
                    let view = &self.views[view as usize];
                    let (mut at, mut left) = (view.offset, row);
                    for (size, stride) in self.shape.axes.iter().zip(&view.strides).rev() {
                        at += (left % size) as isize * stride;
                        left /= size;
                    }
                    row_stride = view.strides[axis] * view.size;
                    memory[view.slot].ptr().wrapping_offset(at * view.size)
                }
            };
            if self.shape.single {
                (stride, row_stride) = (row_stride, 0);
                lane = match planned.place {
                    Place::View(_) => stride,
                    Place::Scratch => build::BYTES,
                    Place::Image => 0,
                };
            }
            let offset = planned.offset + columns * planned.column;
            let ptr = start.wrapping_offset(offset);
            let lines = |distance: isize| distance % size_of::<Line>() as isize == 0;
            let streams = self.streaming && matches!(planned.place, Place::View(_));
            let aligned = streams && lines(ptr.addr() as isize) && lines(row_stride) && lines(stride);
            let act = if aligned { planned.act.streamed() } else { planned.act };
            *step = Step { ptr, stride, lane, row: row_stride, act };
        }
        let mut calls = rows;
        if self.shape.single {
            segments[0].iterations = rows;
            calls = 1;
        } else if self.parts > 1 {
            self.cut(part, segments);
        }
        // SAFETY: the caller's promise.
        unsafe { (self.run)(steps, segments, calls, self.shape.rest) };
        rows
    }

    /// The segments of a part of a row: the last part also has the elements that are no whole group.
    fn cut(&self, part: usize, segments: &mut [Segment]) {
        let whole = self.part.min(self.shape.whole - part * self.part);
        for (segment, full) in segments.iter_mut().zip(&self.segments) {
            segment.iterations = match full.iterations {
                iterations if iterations == self.shape.whole => whole,
                iterations => iterations,
            };
        }
        if self.shape.rest > 0 && part + 1 < self.parts {
            segments[segments.len() - 1].iterations = 0;
        }
    }
}

impl Shape {
    /// The axes of a space, if a chain can go over it.
    fn new(space: &Space) -> Option<Shape> {
        let across = !space.horizontal && space.steps > 1;
        if space.transposed || across && !space.cols.is_multiple_of(GROUP) {
            return None;
        }
        let mut axes = space.outer.clone();
        if !space.horizontal {
            axes.push(space.rows);
        }
        if across {
            axes.push(space.cols / GROUP);
        }
        if axes.is_empty() {
            axes.push(1);
        }
        let (whole, rest) = if across { (space.steps, 0) } else { (space.cols / GROUP, space.cols % GROUP) };
        let rows = axes.iter().fold(1, |product: usize, &size| product.saturating_mul(size));
        if !space.horizontal && whole == 0 && rows > 1 {
            return None;
        }
        let single = !across && whole == 1 && rest == 0;
        Some(Shape { axes, whole, rest, single, across })
    }

    /// All iterations.
    fn iterations(&self) -> usize {
        self.whole + usize::from(self.rest > 0)
    }
}

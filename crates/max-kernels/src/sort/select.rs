//! Selects a few elements of a line in one pass: what is not smaller than the last of the best so far is skipped, many at a
//! time, and candidates are pruned whenever there are too many.

use max_core::Result;

use super::key::{Key, Packed};
use super::{LONG, Line, Shared, Tasks, with_memory};
use crate::simd::{Isa, versions};

/// The most elements that are selected.
const MOST: usize = 2048;

/// Up to this many are kept in order all the time.
const ORDERED: usize = 16;

/// How many keys are compared at once: first those of a block, then those of its parts.
const BLOCK: usize = 64;
const STEP: usize = 16;

/// Whether the wanted elements of a line are few enough.
pub(super) fn suits(line: &Line) -> bool {
    let few = if line.count <= ORDERED { 4 } else { 8 };
    line.count <= MOST && line.count <= line.size / few
}

/// The candidates that there is room for.
fn room(count: usize) -> usize {
    2 * count + 3 * BLOCK
}

/// Selects the wanted elements of a line.
///
/// # Safety
///
/// The source may be read, and the results written.
pub(super) unsafe fn select<K: Key, P: Packed>(line: Line, tasks: Tasks) -> Result<()> {
    let count = line.count;
    let (parts, length) = if line.size >= LONG { line.parts() } else { (1, line.size) };
    let scan = match count <= ORDERED {
        true => version::<Ordered<K, P>>(Isa::best()),
        false => version::<Many<K, P>>(Isa::best()),
    };
    // Each part gives as many as are wanted, or all that it has.
    let room = room(count);
    with_memory(parts * (room * size_of::<P>() + size_of::<usize>()), |memory| {
        let candidates = Shared(memory.cast::<P>());
        let counts = Shared(memory.wrapping_add(parts * room * size_of::<P>()).cast::<usize>());
        tasks(parts, &|part| {
            let (start, end) = (part * length, line.size.min((part + 1) * length));
            // SAFETY: a part has room for its candidates and their number; the caller guarantees the source.
            unsafe {
                let best = candidates.get().add(part * room);
                scan(Part { line, start, end, best: best.cast(), found: counts.get().add(part) });
            }
        });
        // SAFETY: every part wrote its number of candidates, and as many of these; they are moved together.
        let all = unsafe {
            let mut total = 0;
            for part in 0..parts {
                let found = counts.get().add(part).read();
                candidates.get().add(part * room).copy_to(candidates.get().add(total), found);
                total += found;
            }
            std::slice::from_raw_parts_mut(candidates.get(), total)
        };
        if all.len() > count {
            all.select_nth_unstable(count - 1);
        }
        all[..count].sort_unstable();
        // SAFETY: guaranteed by the caller.
        unsafe { line.write(0, &all[..count]) }
    })
}

/// A part of a line to select from.
#[derive(Clone, Copy)]
struct Part {
    line: Line,
    start: usize,
    end: usize,
    /// Room for candidates.
    best: *mut u8,
    /// The number of those that were found.
    found: *mut usize,
}

trait Body {
    /// # Safety
    ///
    /// The source may be read; there is room for candidates, and for their number.
    unsafe fn run<const FMA: bool>(part: Part);
}

versions!(version: Body, fn(part: Part));

/// Candidates in any order.
struct Many<K, P>(std::marker::PhantomData<(K, P)>);

impl<K: Key, P: Packed> Body for Many<K, P> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(part: Part) {
        let (line, count, best) = (part.line, part.line.count, part.best.cast::<P>());
        let (mut len, mut limit) = (0, None);
        let prune = |len: &mut usize| {
            // SAFETY: as many candidates have been written, more than are wanted.
            let found = unsafe { std::slice::from_raw_parts_mut(best, *len) };
            found.select_nth_unstable(count - 1);
            *len = count;
            K::of(found[count - 1].key())
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            line.each_chunk::<K>(part.start..part.end, |keys, start| {
                for (number, block) in keys.chunks(BLOCK).enumerate() {
                    // Later elements are behind equal ones, so only smaller keys count.
                    if limit.is_some_and(|limit| lowest::<K, BLOCK>(block) >= limit) {
                        continue;
                    }
                    for (step, few) in block.chunks(STEP).enumerate() {
                        if limit.is_some_and(|limit| lowest::<K, STEP>(few) >= limit) {
                            continue;
                        }
                        for (at, &key) in few.iter().enumerate() {
                            let index = start + number * BLOCK + step * STEP + at;
                            best.add(len).write(P::new(key.wide(), index));
                            len += usize::from(limit.is_none_or(|limit| key < limit));
                        }
                    }
                    if len > 2 * count + BLOCK {
                        limit = Some(prune(&mut len));
                    }
                }
            });
            if len > count {
                prune(&mut len);
            }
            part.found.write(len);
        }
    }
}

/// A few candidates, in order.
struct Ordered<K, P>(std::marker::PhantomData<(K, P)>);

impl<K: Key, P: Packed> Body for Ordered<K, P> {
    #[inline(always)]
    unsafe fn run<const FMA: bool>(part: Part) {
        let line = part.line;
        let count = line.count.min(part.end - part.start);
        let mut best = [P::new(0, 0); ORDERED];
        let mut len = 0;
        // SAFETY: guaranteed by the caller.
        unsafe {
            line.each_chunk::<K>(part.start..part.end, |keys, start| {
                // The first ones are taken as they come.
                let taken = keys.len().min(count - len);
                for (at, key) in keys[..taken].iter().enumerate() {
                    insert(&mut best[..=len], P::new(key.wide(), start + at));
                    len += 1;
                }
                let mut limit = K::of(best[count - 1].key());
                for (number, block) in keys[taken..].chunks(STEP).enumerate() {
                    if lowest::<K, STEP>(block) >= limit {
                        continue;
                    }
                    for (at, &key) in block.iter().enumerate().filter(|(_, key)| **key < limit) {
                        let new = P::new(key.wide(), start + taken + number * STEP + at);
                        if new < best[count - 1] {
                            insert(&mut best[..count], new);
                        }
                    }
                    limit = K::of(best[count - 1].key());
                }
            });
            part.best.cast::<P>().copy_from_nonoverlapping(best.as_ptr(), count);
            part.found.write(count);
        }
    }
}

/// Puts a candidate in its place among others in order, the last of which is dropped.
#[inline(always)]
fn insert<P: Packed>(best: &mut [P], new: P) {
    let mut at = best.len() - 1;
    while at > 0 && best[at - 1] > new {
        best[at] = best[at - 1];
        at -= 1;
    }
    best[at] = new;
}

/// The lowest of some keys, usually of as many as given.
#[inline(always)]
fn lowest<K: Key, const COUNT: usize>(keys: &[K]) -> K {
    match <&[K; COUNT]>::try_from(keys) {
        Ok(keys) => keys.iter().fold(K::MAX, |lowest, &key| lowest.min(key)),
        Err(_) => keys.iter().fold(K::MAX, |lowest, &key| lowest.min(key)),
    }
}

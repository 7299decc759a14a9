//! Keys of one byte: counting how often each occurs says where elements go.

use max_core::Result;

use super::{Line, Shared, Tasks, with_memory};

/// The fewest elements for which counting pays.
pub(super) const LEAST: usize = 256;

/// How many keys there are.
const KEYS: usize = 256;

/// Sorts a line of keys of one byte.
///
/// # Safety
///
/// The source may be read, and the results written.
pub(super) unsafe fn sort_bytes(line: Line, tasks: Tasks) -> Result<()> {
    // SAFETY: guaranteed by the caller, here and in the tasks.
    unsafe {
        sort(
            line,
            tasks,
            KEYS,
            &|range, counts| {
                let mut other = [0u64; KEYS];
                line.each_chunk::<u8>(range, |keys, _| {
                    let mut pairs = keys.chunks_exact(2);
                    for pair in &mut pairs {
                        counts[usize::from(pair[0])] += 1;
                        other[usize::from(pair[1])] += 1;
                    }
                    pairs.remainder().iter().for_each(|&key| counts[usize::from(key)] += 1);
                });
                counts.iter_mut().zip(other).for_each(|(count, other)| *count += other);
            },
            &|range, next| {
                line.each_chunk::<u8>(range, |keys, start| {
                    for (at, &key) in keys.iter().enumerate() {
                        let place = &mut next[usize::from(key)];
                        put(&line, *place as usize, start + at);
                        *place += 1;
                    }
                });
            },
        )
    }
}

/// Sorts a line of bools, whose keys differ in their last bit.
///
/// # Safety
///
/// As for [`sort_bytes`].
pub(super) unsafe fn sort_bools(line: Line, tasks: Tasks) -> Result<()> {
    // SAFETY: guaranteed by the caller, here and in the tasks.
    unsafe {
        sort(
            line,
            tasks,
            2,
            &|range, counts| {
                let all = range.len() as u64;
                line.each_chunk::<u8>(range, |keys, _| {
                    counts[1] += keys.iter().map(|&key| u32::from(key & 1)).sum::<u32>() as u64;
                });
                counts[0] = all - counts[1];
            },
            &|range, next| {
                let (mut first, mut second) = (next[0], next[1]);
                line.each_chunk::<u8>(range, |keys, start| {
                    for (at, &key) in keys.iter().enumerate() {
                        let last = u64::from(key & 1);
                        put(&line, (if last == 1 { second } else { first }) as usize, start + at);
                        second += last;
                        first += 1 - last;
                    }
                });
            },
        )
    }
}

/// Writes an element of the source to a place among the results, if it is wanted.
///
/// # Safety
///
/// The source may be read, and the results written.
#[inline(always)]
unsafe fn put(line: &Line, place: usize, index: usize) {
    if place >= line.count {
        return;
    }
    // SAFETY: guaranteed by the caller; results need not be aligned.
    unsafe {
        if let Some(indices) = line.indices {
            indices.at(place).cast::<i64>().write_unaligned(index as i64);
        }
        if let Some(values) = line.values {
            values.at(place).write(line.source.at(index).read());
        }
    }
}

type Range = std::ops::Range<usize>;

/// Counts keys in the parts of a line, and then places the elements of each part.
fn sort(
    line: Line,
    tasks: Tasks,
    keys: usize,
    count: &(dyn Fn(Range, &mut [u64]) + Sync),
    place: &(dyn Fn(Range, &mut [u64]) + Sync),
) -> Result<()> {
    let (parts, length) = line.parts();
    with_memory(parts * keys * size_of::<u64>(), |memory| {
        let memory = Shared(memory.cast::<u64>());
        let range = |part: usize| part * length..line.size.min((part + 1) * length);
        // SAFETY: there are as many counts for each part, and a part is touched by one task at a time.
        let of = |part: usize| unsafe { std::slice::from_raw_parts_mut(memory.get().add(part * keys), keys) };
        tasks(parts, &|part| {
            let counts = of(part);
            counts.fill(0);
            count(range(part), counts);
        });
        let mut total = 0;
        for key in 0..keys {
            for part in 0..parts {
                let counts = of(part);
                total += std::mem::replace(&mut counts[key], total);
            }
        }
        tasks(parts, &|part| place(range(part), of(part)));
    })
}

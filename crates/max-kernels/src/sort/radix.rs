//! Sorts lines by their digits: long lines are first divided into buckets by the highest digit in which keys differ, which
//! are then sorted from their lowest digit on.

use std::ops::Range;

use max_core::Result;

use super::key::{Key, Packed};
use super::{Line, Shared, Tasks, with_memory};

/// Lines of at least this many elements are divided into buckets.
const BUCKETED: usize = 1 << 14;

/// The most bits of the digit that chooses a bucket, and how many elements a bucket would have at best.
const BUCKET_BITS: u32 = 11;
const BUCKET_SIZE: usize = 128;

/// The most bits of the other digits.
const DIGIT_BITS: u32 = 8;

/// Up to this many elements are compared instead.
const COMPARED: usize = 192;

/// With up to this many elements for each digit, the highest one is looked at first, and then few are left.
const PER_DIGIT: usize = 128;

/// About so many tasks sort the buckets of a line.
const BUCKET_TASKS: usize = 32;

/// Sorts a line.
///
/// # Safety
///
/// The source may be read, and the results written.
pub(super) unsafe fn sort<K: Key, P: Packed>(line: Line, tasks: Tasks) -> Result<()> {
    let size = line.size;
    if size >= BUCKETED {
        // SAFETY: guaranteed by the caller.
        return unsafe { sort_buckets::<K, P>(line, tasks) };
    }
    with_memory(2 * size * size_of::<P>(), |memory| {
        let memory = memory.cast::<P>();
        // SAFETY: there is memory for two arrays, which any bytes are valid for; the caller guarantees the rest.
        unsafe {
            pack::<K, P>(&line, 0..size, memory);
            let a = std::slice::from_raw_parts_mut(memory, size);
            let b = std::slice::from_raw_parts_mut(memory.add(size), size);
            let wanted = line.count;
            if wanted <= size / 2 {
                a.select_nth_unstable(wanted);
                a[..wanted].sort_unstable();
                line.write(0, a);
            } else {
                line.write(0, sort_slice(a, b));
            }
        }
    })
}

/// Packs some elements; returns the bits that are set in some key, and those that are set in all.
///
/// # Safety
///
/// The source may be read, and there is memory for as many elements.
unsafe fn pack<K: Key, P: Packed>(line: &Line, range: Range<usize>, to: *mut P) -> (u64, u64) {
    let (mut some, mut all, first) = (0, u64::MAX, range.start);
    // SAFETY: guaranteed by the caller.
    unsafe {
        line.each_chunk::<K>(range, |keys, start| {
            let to = to.add(start - first);
            for (at, key) in keys.iter().enumerate() {
                let key = key.wide().wrapping_sub(line.base);
                (some, all) = (some | key, all & key);
                to.add(at).write(P::new(key, start + at));
            }
        });
    }
    (some, all)
}

/// Sorts elements that are in the order of their positions, with the help of as much memory; returns where they are.
fn sort_slice<'a, P: Packed>(a: &'a mut [P], b: &'a mut [P]) -> &'a [P] {
    if sort_either(a, b) { b } else { a }
}

/// As [`sort_slice`]; returns whether they are in the second slice.
fn sort_either<P: Packed>(a: &mut [P], b: &mut [P]) -> bool {
    if a.len() <= COMPARED {
        a.sort_unstable();
        return false;
    }
    let (some, all) = a.iter().fold((0, u64::MAX), |(some, all), x| (some | x.key(), all & x.key()));
    let differ = some ^ all;
    if differ == 0 {
        return false;
    }
    let (low, high) = (differ.trailing_zeros(), u64::BITS - differ.leading_zeros());
    let digits = (high - low).div_ceil(DIGIT_BITS);
    if a.len() <= PER_DIGIT * digits as usize {
        // Few elements differ in their highest bits.
        let bits = DIGIT_BITS.min(high - low);
        let ends = scatter(a, b, high - bits, bits);
        let mut start = 0;
        for &end in &ends[..1 << bits] {
            if sort_either(&mut b[start..end], &mut a[start..end]) {
                b[start..end].copy_from_slice(&a[start..end]);
            }
            start = end;
        }
        return true;
    }
    let bits = (high - low).div_ceil(digits);
    let (mut from, mut to, mut moved) = (a, b, false);
    for digit in 0..digits {
        let shift = low + digit * bits;
        if differ >> shift & ((1 << bits) - 1) != 0 {
            scatter(from, to, shift, bits);
            (from, to, moved) = (to, from, !moved);
        }
    }
    moved
}

/// Moves elements to their places by a digit, in order; returns where those with each digit end.
fn scatter<P: Packed>(from: &[P], to: &mut [P], shift: u32, bits: u32) -> [usize; 1 << DIGIT_BITS] {
    let digit = |x: &P| (x.key() >> shift) as usize & ((1 << bits) - 1);
    let mut next = [0usize; 1 << DIGIT_BITS];
    from.iter().for_each(|x| next[digit(x)] += 1);
    let mut total = 0;
    for count in &mut next[..1 << bits] {
        total += std::mem::replace(count, total);
    }
    for x in from {
        let place = &mut next[digit(x)];
        to[*place] = *x;
        *place += 1;
    }
    next
}

/// Sorts a long line.
///
/// # Safety
///
/// As for [`sort`].
unsafe fn sort_buckets<K: Key, P: Packed>(line: Line, tasks: Tasks) -> Result<()> {
    let (size, (parts, length)) = (line.size, line.parts());
    let bucket_bits = (size / BUCKET_SIZE).ilog2().min(BUCKET_BITS);
    let buckets = 1 << bucket_bits;
    let range = |part: usize| part * length..size.min((part + 1) * length);
    let array = size * size_of::<P>();
    let counts = parts * buckets * size_of::<usize>();
    with_memory(2 * array + counts + parts * size_of::<(u64, u64)>(), |memory| {
        let a = Shared(memory.cast::<P>());
        let b = Shared(memory.wrapping_add(array).cast::<P>());
        let counts = Shared(memory.wrapping_add(2 * array).cast::<usize>());
        let bits = Shared(
            memory.wrapping_add(2 * array + parts * buckets * size_of::<usize>()).cast::<(u64, u64)>(),
        );
        // SAFETY: ranges are inside the arrays, which any bytes are valid for, and each is used by one task at a time.
        let slice = |array: Shared<P>, range: Range<usize>| unsafe {
            std::slice::from_raw_parts_mut(array.get().add(range.start), range.len())
        };
        // SAFETY: there are as many counts for each part, and a part is touched by one task at a time.
        let counts_of = |part: usize| unsafe {
            std::slice::from_raw_parts_mut(counts.get().add(part * buckets), buckets)
        };
        // SAFETY: there is memory for the bits of each part; the caller guarantees the source.
        tasks(parts, &|part| unsafe {
            let found = pack::<K, P>(&line, range(part), b.get().add(range(part).start));
            bits.get().add(part).write(found);
        });
        // SAFETY: all have been written.
        let of_parts = (0..parts).map(|part| unsafe { bits.get().add(part).read() });
        let (some, all) = of_parts.fold((0, u64::MAX), |(some, all), (s, a)| (some | s, all & a));
        let differ = some ^ all;
        if differ == 0 {
            // SAFETY: the caller guarantees the results.
            return tasks(parts, &|part| unsafe { line.write(range(part).start, slice(b, range(part))) });
        }
        let shift = (u64::BITS - differ.leading_zeros()).saturating_sub(bucket_bits);
        let bucket = |x: &P| (x.key() >> shift) as usize & (buckets - 1);
        tasks(parts, &|part| {
            let counts = counts_of(part);
            counts.fill(0);
            slice(b, range(part)).iter().for_each(|x| counts[bucket(x)] += 1);
        });
        // Where each part puts its elements of each bucket, and where buckets end.
        let mut ends = Vec::with_capacity(buckets);
        let mut total = 0;
        for bucket in 0..buckets {
            for part in 0..parts {
                total += std::mem::replace(&mut counts_of(part)[bucket], total);
            }
            ends.push(total);
        }
        tasks(parts, &|part| {
            let next = counts_of(part);
            for x in slice(b, range(part)).iter() {
                let place = &mut next[bucket(x)];
                // SAFETY: every element was counted, so its place is inside, and no other element has it.
                unsafe { a.get().add(*place).write(*x) };
                *place += 1;
            }
        });
        let runs = runs(&ends, size.min(line.count));
        tasks(runs.len(), &|run| {
            for bucket in runs[run].clone() {
                let start = if bucket == 0 { 0 } else { ends[bucket - 1] };
                let range = start..ends[bucket];
                let sorted = sort_slice(slice(a, range.clone()), slice(b, range));
                // SAFETY: the caller guarantees the results.
                unsafe { line.write(start, sorted) };
            }
        });
    })
}

/// Runs of buckets for tasks, up to that which ends the wanted elements.
fn runs(ends: &[usize], wanted: usize) -> Vec<Range<usize>> {
    let each = wanted.div_ceil(BUCKET_TASKS);
    let (mut runs, mut first, mut done) = (Vec::new(), 0, 0);
    for (bucket, &end) in ends.iter().enumerate() {
        if end - done >= each || end >= wanted {
            runs.push(first..bucket + 1);
            (first, done) = (bucket + 1, end);
        }
        if end >= wanted {
            break;
        }
    }
    runs
}

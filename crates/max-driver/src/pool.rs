//! A caching memory pool: blocks that buffers returned wait here for the next buffer of about their size, because pages
//! that are already mapped are far cheaper than fresh ones.
//!
//! Invariants: blocks start at a multiple of [`ALIGNMENT`] and are initialized from the start; the bytes held
//! for reuse never exceed the limit; a block is either held or leased, never both.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use max_core::{Error, Result};
use memmap2::MmapMut;

use crate::guard::{Guard, Guarded, guard};

/// The alignment of every block: a cache line, and the widest vector register.
pub(crate) const ALIGNMENT: usize = 64;

/// Smaller blocks go straight back to the system's allocator, which caches them well itself.
const SMALLEST_HELD: usize = 4 << 10;

/// Blocks of at least this size are mapped pages of their own, which read as zero without being touched.
const SMALLEST_MAPPED: usize = 1 << 20;

/// What a block must contain when it is leased.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Zeros.
    Zeroed,
    /// Anything; usually what an earlier buffer left there.
    Stale,
}

/// The pool: see the module.
pub(crate) struct Pool {
    limit: usize,
    state: Mutex<State>,
    in_use: AtomicUsize,
}

struct State {
    /// Held blocks by size, each queue in the order in which they were returned.
    free: BTreeMap<usize, VecDeque<(u64, Block)>>,
    /// Counts the returned blocks, to tell which came first.
    clock: u64,
    held: usize,
}

impl Pool {
    /// An empty pool that holds at most `limit` bytes for reuse.
    pub(crate) const fn new(limit: usize) -> Pool {
        let state = State { free: BTreeMap::new(), clock: 0, held: 0 };
        Pool { limit, state: Mutex::new(state), in_use: AtomicUsize::new(0) }
    }

    /// A block of at least `bytes` bytes, which is returned when the lease is dropped.
    pub(crate) fn take(&'static self, bytes: usize, contents: Contents) -> Result<Lease> {
        let block = match guard() {
            Some(side) => Block::guarded(bytes, contents, side),
            None => self.pooled(bytes, contents),
        };
        let block = block.ok_or_else(|| {
            Error::memory(format!("the system refused to allocate {bytes} bytes of host memory"))
        })?;
        self.in_use.fetch_add(block.size(), Ordering::Relaxed);
        Ok(Lease { block: Some(block), pool: self })
    }

    /// A block that is held for reuse, or fresh memory; if the system refuses that, releases what is held and tries
    /// once more.
    fn pooled(&self, bytes: usize, contents: Contents) -> Option<Block> {
        let size = self.size_class(bytes);
        if let Some(block) = self.reuse(size) {
            if contents == Contents::Zeroed {
                // SAFETY: the block has at least `bytes` bytes, and nobody else has it.
                unsafe { block.ptr().write_bytes(0, bytes) };
            }
            return Some(block);
        }
        Block::fresh(size).or_else(|| {
            self.release();
            Block::fresh(size)
        })
    }

    /// The bytes of all leased blocks.
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// The bytes of all blocks held for reuse.
    pub(crate) fn bytes_held(&self) -> usize {
        self.lock().held
    }

    /// The size that a block gets: eight classes between powers of two, so that slightly different sizes share blocks;
    /// exact where the block would not be held anyway.
    fn size_class(&self, bytes: usize) -> usize {
        if bytes > self.limit {
            return bytes;
        }
        let step = (bytes.next_power_of_two() / 16).max(ALIGNMENT);
        bytes.max(1).next_multiple_of(step)
    }

    /// The block of exactly this size that was returned last: its pages are the most likely to be in a cache.
    fn reuse(&self, size: usize) -> Option<Block> {
        let mut state = self.lock();
        let (_, block) = state.free.get_mut(&size)?.pop_back()?;
        state.held -= size;
        Some(block)
    }

    /// Takes a block back, and evicts those that have waited longest until it fits.
    fn give_back(&self, block: Block) {
        let size = block.size();
        self.in_use.fetch_sub(size, Ordering::Relaxed);
        if size < SMALLEST_HELD || size > self.limit || matches!(block, Block::Guarded(_)) {
            return;
        }
        // Returning pages to the system takes a while, so evicted blocks are dropped after the lock is released.
        let mut evicted = Vec::new();
        let mut state = self.lock();
        while state.held + size > self.limit {
            let age = |queue: &VecDeque<(u64, Block)>| queue.front().map_or(u64::MAX, |(stamp, _)| *stamp);
            let oldest = state.free.values_mut().min_by_key(|queue| age(queue));
            let Some((_, old)) = oldest.and_then(VecDeque::pop_front) else { break };
            state.held -= old.size();
            evicted.push(old);
        }
        state.clock += 1;
        state.held += size;
        let stamp = state.clock;
        state.free.entry(size).or_default().push_back((stamp, block));
        drop(state);
    }

    /// Gives everything held back to the system.
    fn release(&self) {
        let mut state = self.lock();
        state.held = 0;
        let free = std::mem::take(&mut state.free);
        drop(state);
        drop(free);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block leased from a pool.
pub(crate) struct Lease {
    block: Option<Block>,
    pool: &'static Pool,
}

impl Lease {
    /// Where the block starts.
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.block.as_ref().map_or(NonNull::dangling(), Block::ptr)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give_back(block);
        }
    }
}

/// Memory from the system.
enum Block {
    Heap { ptr: NonNull<u8>, layout: Layout },
    Mapped(NonNull<u8>, MmapMut),
    Guarded(Guarded),
}

// SAFETY: a block owns its memory and gives out only its address, which may be used from any thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Fresh zeroed memory, or `None` if the system refuses.
    fn fresh(size: usize) -> Option<Block> {
        if size >= SMALLEST_MAPPED {
            let mut pages = MmapMut::map_anon(size).ok()?;
            // Huge pages make the first touch much cheaper; a system without them just ignores the advice.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Some(Block::Mapped(NonNull::new(pages.as_mut_ptr())?, pages));
        }
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: a size class is never zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Block::Heap { ptr, layout })
    }

    /// Guarded memory, or `None` if the system refuses.
    fn guarded(bytes: usize, contents: Contents, side: Guard) -> Option<Block> {
        let block = Guarded::new(bytes, 1, side)?;
        Some(Block::Guarded(if contents == Contents::Stale { block.poisoned() } else { block }))
    }

    fn ptr(&self) -> NonNull<u8> {
        match self {
            Block::Heap { ptr, .. } | Block::Mapped(ptr, _) => *ptr,
            Block::Guarded(block) => block.ptr(),
        }
    }

    fn size(&self) -> usize {
        match self {
            Block::Heap { layout, .. } => layout.size(),
            Block::Mapped(_, pages) => pages.len(),
            Block::Guarded(block) => block.len(),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Block::Heap { ptr, layout } = self {
            // SAFETY: it was allocated by the same allocator with this layout, and is dropped once.
            unsafe { dealloc(ptr.as_ptr(), *layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::ErrorKind;

    fn pool(limit: usize) -> &'static Pool {
        Box::leak(Box::new(Pool::new(limit)))
    }

    fn first_byte(lease: &Lease) -> u8 {
        // SAFETY: a lease has at least one byte, and these tests share none between threads.
        unsafe { lease.ptr().read() }
    }

    #[test]
    fn blocks_come_back_and_are_reused() {
        let pool = pool(1 << 20);
        let lease = pool.take(10_000, Contents::Stale).unwrap();
        let ptr = lease.ptr();
        assert!(ptr.addr().get().is_multiple_of(ALIGNMENT));
        assert!(pool.bytes_in_use() >= 10_000 && pool.bytes_held() == 0);
        // SAFETY: the lease has this byte.
        unsafe { ptr.write(7) };
        drop(lease);
        assert!(pool.bytes_in_use() == 0 && pool.bytes_held() >= 10_000);

        let again = pool.take(9_999, Contents::Stale).unwrap();
        assert_eq!((again.ptr(), first_byte(&again), pool.bytes_held()), (ptr, 7, 0));
        drop(again);
        let zeroed = pool.take(10_000, Contents::Zeroed).unwrap();
        assert_eq!((zeroed.ptr(), first_byte(&zeroed)), (ptr, 0));
    }

    #[test]
    fn the_oldest_go_when_the_limit_is_reached() {
        let pool = pool(64 << 10);
        let leases: Vec<_> = [16, 24, 32].map(|k| pool.take(k << 10, Contents::Stale).unwrap()).into();
        let newest = leases[2].ptr();
        drop(leases);
        assert_eq!(pool.bytes_held(), (24 + 32) << 10);
        assert_eq!(pool.take(32 << 10, Contents::Stale).unwrap().ptr(), newest);
        drop(pool.take(65 << 10, Contents::Stale).unwrap());
        drop(pool.take(100, Contents::Stale).unwrap());
        assert_eq!((pool.bytes_held(), pool.bytes_in_use()), (56 << 10, 0));
    }

    #[test]
    fn sizes_are_classed_with_little_waste() {
        let pool = pool(1 << 30);
        for bytes in [0usize, 1, 64, 65, 1000, 4097, 1_000_000, (1 << 20) + 1, 1 << 30] {
            let size = pool.size_class(bytes);
            assert!(size >= bytes && size <= bytes + (bytes / 8).max(64), "{bytes} became {size}");
        }
    }

    #[test]
    fn refusal_is_an_error() {
        for bytes in [1usize << 52, isize::MAX as usize, usize::MAX] {
            let error = pool(1 << 20).take(bytes, Contents::Zeroed).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Memory);
        }
    }

    #[test]
    fn threads_share_a_pool() {
        let pool = pool(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                scope.spawn(move || {
                    for round in 0..200 {
                        let lease = pool.take(4096 * (1 + (round + thread) % 7), Contents::Zeroed).unwrap();
                        assert_eq!(first_byte(&lease), 0);
                        // SAFETY: the lease is this thread's own.
                        unsafe { lease.ptr().write(1) };
                    }
                });
            }
        });
        assert!(pool.bytes_in_use() == 0 && pool.bytes_held() <= 1 << 20);
    }
}

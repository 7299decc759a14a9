//! Guarded memory: a test mode in which a kernel that touches memory outside its block crashes at once.
//!
//! With `MAX_GUARD_MEMORY=end` every block of host memory ends right before an inaccessible page, and with
//! `MAX_GUARD_MEMORY=start` it starts right after one. Blocks are never reused, so freed memory cannot be touched
//! either, and a block with undefined contents is filled with [`POISON`]. A block that ends at a page is only as
//! aligned as its length: kernels meet the worst alignment that a user's memory can have.

use std::ptr::NonNull;
use std::sync::OnceLock;

use max_core::{HostBytes, Result, bail};

/// The side of a block that borders on an inaccessible page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The block ends right before such a page.
    End,
    /// The block starts right after such a page.
    Start,
}

/// The byte that fills blocks with undefined contents: a NaN in every float dtype that has one.
pub const POISON: u8 = 0xFF;

/// Which side of every block is guarded, if any: the value of `MAX_GUARD_MEMORY` when it was first read.
pub fn guard() -> Option<Guard> {
    static GUARD: OnceLock<Option<Guard>> = OnceLock::new();
    *GUARD.get_or_init(|| {
        let wanted = std::env::var("MAX_GUARD_MEMORY").unwrap_or_default();
        parse(&wanted).unwrap_or_else(|| {
            eprintln!("MAX_GUARD_MEMORY is '{wanted}', expected 'end' or 'start': memory is not guarded");
            None
        })
    })
}

/// What a setting asks for; `None` if it is not one of the accepted values.
fn parse(wanted: &str) -> Option<Option<Guard>> {
    match wanted {
        "" | "0" => Some(None),
        "1" | "end" => Some(Some(Guard::End)),
        "2" | "start" => Some(Some(Guard::Start)),
        _ => None,
    }
}

/// A block of host memory next to an inaccessible page.
#[derive(Debug)]
pub struct Guarded {
    _pages: Pages,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the block owns its pages, which may be used from any thread.
unsafe impl Send for Guarded {}
// SAFETY: as above.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// A zeroed block, or `None` if the system refuses. It starts at a multiple of `alignment`, a power of two not
    /// larger than a page; with the end guarded, fewer than `alignment` bytes are between the block and the page.
    pub fn new(len: usize, alignment: usize, side: Guard) -> Option<Guarded> {
        let pages = Pages::new(len)?;
        let start = match side {
            Guard::Start => pages.usable(),
            Guard::End => {
                let slack = pages.usable_len() - len;
                pages.usable().wrapping_add(slack - slack % alignment)
            }
        };
        Some(Guarded { start: NonNull::new(start)?, len, _pages: pages })
    }

    /// Its first byte.
    pub fn ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same block, filled with [`POISON`].
    pub fn poisoned(self) -> Guarded {
        // SAFETY: the block has `len` bytes, and nobody else has access to it.
        unsafe { self.start.write_bytes(POISON, self.len) };
        self
    }
}

impl AsRef<[u8]> for Guarded {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block has `len` initialized bytes, and is written only through its address by its owner.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// The bytes; if memory is guarded, a guarded copy of them.
pub fn guarded(bytes: HostBytes) -> Result<HostBytes> {
    let Some(side) = guard() else { return Ok(bytes) };
    let Some(block) = Guarded::new(bytes.len(), 1, side) else {
        bail!(memory, "the system refused to allocate {} bytes of guarded memory", bytes.len());
    };
    // SAFETY: the block is new and has the same number of bytes.
    unsafe { block.start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(HostBytes::new(block))
}

use pages::Pages;

#[cfg(unix)]
mod pages {
    use memmap2::MmapMut;

    /// Mapped pages between two inaccessible ones.
    #[derive(Debug)]
    pub(super) struct Pages {
        mapping: MmapMut,
        page: usize,
        start: *mut u8,
    }

    impl Pages {
        /// Pages for at least `len` bytes, or `None` if the system refuses.
        pub(super) fn new(len: usize) -> Option<Pages> {
            // SAFETY: this only queries a number.
            let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
            let whole = len.checked_next_multiple_of(page)?.checked_add(2 * page)?;
            let mut mapping = MmapMut::map_anon(whole).ok()?;
            let first = mapping.as_mut_ptr();
            let last = first.wrapping_add(whole - page);
            for guard in [first, last] {
                // SAFETY: both pages are part of the mapping, and nothing refers to them.
                if unsafe { libc::mprotect(guard.cast(), page, libc::PROT_NONE) } != 0 {
                    return None;
                }
            }
            Some(Pages { mapping, page, start: first.wrapping_add(page) })
        }

        /// The first accessible byte.
        pub(super) fn usable(&self) -> *mut u8 {
            self.start
        }

        /// The number of accessible bytes.
        pub(super) fn usable_len(&self) -> usize {
            self.mapping.len() - 2 * self.page
        }
    }
}

#[cfg(not(unix))]
mod pages {
    /// Memory is not guarded on this system.
    #[derive(Debug)]
    pub(super) enum Pages {}

    impl Pages {
        pub(super) fn new(_: usize) -> Option<Pages> {
            None
        }

        pub(super) fn usable(&self) -> *mut u8 {
            match *self {}
        }

        pub(super) fn usable_len(&self) -> usize {
            match *self {}
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        assert_eq!(parse(""), Some(None));
        assert_eq!((parse("1"), parse("end")), (Some(Some(Guard::End)), Some(Some(Guard::End))));
        assert_eq!(parse("start"), Some(Some(Guard::Start)));
        assert_eq!(parse("yes"), None);
    }

    #[test]
    fn blocks_border_on_a_page() {
        for len in [0usize, 1, 12, 4096, 5000] {
            let end = Guarded::new(len, 1, Guard::End).unwrap();
            assert!((end.ptr().addr().get() + len).is_multiple_of(4096) && end.len() == len);
            let lines = Guarded::new(len, 64, Guard::End).unwrap();
            let gap =
                (lines.ptr().addr().get() + len).next_multiple_of(4096) - lines.ptr().addr().get() - len;
            assert!(lines.ptr().addr().get().is_multiple_of(64) && gap < 64);
            let start = Guarded::new(len, 1, Guard::Start).unwrap().poisoned();
            assert!(start.ptr().addr().get().is_multiple_of(4096));
            // SAFETY: the block has that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(start.ptr().as_ptr(), len) };
            assert!(bytes.iter().all(|&byte| byte == POISON));
        }
        assert!(Guarded::new(usize::MAX, 1, Guard::End).is_none());
    }

    /// Reads one byte too far, in a process of its own.
    #[test]
    fn touching_a_guard_is_deadly() {
        const SIDE: &str = "TEST_GUARD_SIDE";
        if let Ok(side) = std::env::var(SIDE) {
            let side = if side == "end" { Guard::End } else { Guard::Start };
            let block = Guarded::new(100, 1, side).unwrap();
            let outside = if side == Guard::End { 100 } else { -1 };
            // SAFETY: this is not safe: the process is meant to crash.
            unsafe { block.ptr().as_ptr().wrapping_offset(outside).read_volatile() };
            return;
        }
        for side in ["end", "start"] {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "guard::tests::touching_a_guard_is_deadly"]).env(SIDE, side);
            let output = child.output().unwrap();
            assert_eq!(output.status.code(), None, "reading past the {side} was survived");
        }
    }
}

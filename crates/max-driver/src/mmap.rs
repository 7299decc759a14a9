//! Files as memory: the modes in which a file is mapped, and the mapping itself.
//!
//! A mapped file must not be changed by others while it is mapped: readers would see old and new bytes in turn, and the
//! system ends a process that reads beyond the end. No check here can prevent that; renaming another file over it is safe.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::ptr::NonNull;
use std::str::FromStr;

use max_core::{Error, Result, bail};
use memmap2::MmapOptions;

use crate::memory::Memory;
use crate::{Access, Device};

/// How a mapped file and the buffer over it share writes; the names are NumPy's, a short and a long one each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmapMode {
    /// `c` or `copyonwrite`, and `r` or `readonly` too: writes stay in memory and the file never changes.
    CopyOnWrite,
    /// `r+` or `readwrite`: writes go to the file, which must exist and be large enough.
    ReadWrite,
    /// `w+` or `write`: the file is created, or emptied and filled with zeros, and writes go to it.
    Write,
}

impl FromStr for MmapMode {
    type Err = Error;

    fn from_str(name: &str) -> Result<MmapMode> {
        match name {
            "c" | "copyonwrite" | "r" | "readonly" => Ok(MmapMode::CopyOnWrite),
            "r+" | "readwrite" => Ok(MmapMode::ReadWrite),
            "w+" | "write" => Ok(MmapMode::Write),
            _ => bail!(
                value,
                "'{name}' is not a mode for mapping a file; expected 'r' or 'readonly', 'r+' or 'readwrite', \
                 'w+' or 'write', 'c' or 'copyonwrite'"
            ),
        }
    }
}

/// Maps `len` bytes of a file, from `offset` on, into host memory.
pub(crate) fn map(path: &Path, mode: MmapMode, offset: u64, len: usize) -> Result<Memory> {
    let shown = path.display();
    let failed =
        |doing: &str, error: std::io::Error| Error::runtime(format!("cannot {doing} '{shown}': {error}"));
    let Some(end) = offset.checked_add(len as u64) else {
        bail!(
            value,
            "cannot map '{shown}': {len} bytes from offset {offset} end beyond what a file can hold"
        );
    };
    let file = open(path, mode).map_err(|error| failed("open", error))?;
    if mode == MmapMode::Write {
        file.set_len(end).map_err(|error| failed("resize", error))?;
    }
    let size = file.metadata().map_err(|error| failed("examine", error))?.len();
    if size < end {
        bail!(
            value,
            "cannot map '{shown}': {len} bytes from offset {offset} need a file of {end} bytes, but it has {size}"
        );
    }

    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    // SAFETY: the file's bytes are only read and written through raw copies, or under the crate's contract.
    let pages = unsafe {
        match mode {
            // Pages that are never written need no memory of their own, so none is reserved for them.
            MmapMode::CopyOnWrite => options.no_reserve_swap().map_copy(&file),
            MmapMode::ReadWrite | MmapMode::Write => options.map_mut(&file),
        }
    };
    // The mapping is moved into its box before its address is taken; only the pages have to stay in place.
    let mut pages = Box::new(pages.map_err(|error| failed("map", error))?);
    let ptr = NonNull::from(&mut pages[..]).cast();
    // SAFETY: the pages have `len` bytes, are readable and writable, and live in the owner.
    Ok(unsafe { Memory::borrowed(ptr, len, Access::ReadWrite, &Device::cpu().default_stream(), pages) })
}

fn open(path: &Path, mode: MmapMode) -> std::io::Result<File> {
    let write = matches!(mode, MmapMode::ReadWrite | MmapMode::Write);
    let create = mode == MmapMode::Write;
    OpenOptions::new().read(true).write(write).create(create).truncate(create).open(path)
}

//! Which memory stays in RAM, and in pages of which size.

/// Asks the system for large pages in memory that will be read from end to end: looking up small ones takes time. The memory
/// must be the caller's own.
pub fn prefer_large_pages(start: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        let (first, last) =
            (start.addr().next_multiple_of(LARGE), start.addr().saturating_add(bytes) & !(LARGE - 1));
        if first < last {
            let start = start.wrapping_add(first - start.addr());
            // SAFETY: this advice changes no content, and has no effect on memory that is not mapped.
            unsafe { libc::madvise(start.cast(), last - first, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Tells the system that bytes of a mapped file are not needed for now, so that their pages can be used for something else;
/// whoever reads them again gets them from the file. Other memory is left alone.
pub fn page_out(bytes: &[u8]) {
    #[cfg(target_os = "linux")]
    if is_mapped_file(bytes) {
        // SAFETY: asks for a number.
        let Some(page) =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|&page| page > 0)
        else {
            return;
        };
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let (first, last) = (start.next_multiple_of(page), end - end % page);
        if first < last {
            // Pages that are the file's own can be forgotten, and then the system keeps the file in memory as long as there
            // is room, for the next one who opens it.
            let is_own = is_as_in_file(first / page..last / page).unwrap_or(false);
            let advice = if is_own { libc::MADV_DONTNEED } else { libc::MADV_PAGEOUT };
            // SAFETY: the range is inside the bytes, and this advice changes no content.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, advice) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Whether none of the pages of a mapped file were written to, as far as the mapping is private.
#[cfg(target_os = "linux")]
fn is_as_in_file(pages: std::ops::Range<usize>) -> std::io::Result<bool> {
    use std::os::unix::fs::FileExt;
    // An entry of eight bytes for each page. Written pages are in memory or swapped out, and not those of a file.
    const IN_MEMORY: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const OF_FILE: u64 = 1 << 61;
    let map = std::fs::File::open("/proc/self/pagemap")?;
    let mut entries = vec![0; 8 * pages.len()];
    map.read_exact_at(&mut entries, 8 * pages.start as u64)?;
    let mut entries = entries.as_chunks().0.iter().map(|entry| u64::from_ne_bytes(*entry));
    Ok(entries.all(|entry| entry & OF_FILE != 0 || entry & (IN_MEMORY | SWAPPED) == 0))
}

/// Whether bytes are in one mapping of a file.
#[cfg(target_os = "linux")]
fn is_mapped_file(bytes: &[u8]) -> bool {
    let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let mut fields = line.split_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-'));
        let inode = fields.nth(3);
        let number = |text| usize::from_str_radix(text, 16).ok();
        let range = range.and_then(|(first, last)| Some((number(first)?, number(last)?)));
        range.is_some_and(|(first, last)| first <= start && end <= last)
            && inode.is_some_and(|inode| inode != "0")
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn large_pages_change_nothing() {
        let mut memory = vec![1u8; 9 << 20];
        prefer_large_pages(memory.as_mut_ptr(), memory.len());
        assert!(memory.iter().all(|&byte| byte == 1));
        prefer_large_pages(memory.as_mut_ptr(), 10);
        prefer_large_pages(std::ptr::null_mut(), 0);
    }

    #[test]
    fn mapped_files_keep_their_bytes() {
        let path = std::env::temp_dir().join(format!("max-resident-{}", std::process::id()));
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        // SAFETY: nobody else has the file.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        assert!(is_mapped_file(&map) && map.iter().all(|&byte| byte == 7));
        let pages = |bytes: &[u8]| bytes.as_ptr().addr() / 4096..(bytes.as_ptr().addr() + bytes.len()) / 4096;
        assert!(is_as_in_file(pages(&map)).unwrap());
        page_out(&map[5..]);
        assert!(map.iter().all(|&byte| byte == 7));
        // SAFETY: as above.
        let mut written = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.unwrap();
        assert!(written.iter().all(|&byte| byte == 7) && is_as_in_file(pages(&written)).unwrap());
        page_out(&written);
        written[5000] = 8;
        assert!(!is_as_in_file(pages(&written)).unwrap());
        page_out(&written);
        assert!(written.iter().enumerate().all(|(at, &byte)| byte == if at == 5000 { 8 } else { 7 }));
        std::fs::remove_file(&path).unwrap();
        let heap = vec![3u8; 1 << 20];
        assert!(!is_mapped_file(&heap));
        page_out(&heap);
        assert!(heap.iter().all(|&byte| byte == 3));
    }
}

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
        const PAGE: usize = 4096;
        let (start, end) = (bytes.as_ptr() as usize, bytes.as_ptr() as usize + bytes.len());
        let (first, last) = (start.next_multiple_of(PAGE), end - end % PAGE);
        if first < last {
            // SAFETY: the range is inside the bytes, and this advice changes no content.
            unsafe { libc::madvise(first as *mut libc::c_void, last - first, libc::MADV_PAGEOUT) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
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
        page_out(&map[5..]);
        assert!(map.iter().all(|&byte| byte == 7));
        std::fs::remove_file(&path).unwrap();
        let heap = vec![3u8; 1 << 20];
        assert!(!is_mapped_file(&heap));
        page_out(&heap);
        assert!(heap.iter().all(|&byte| byte == 3));
    }
}

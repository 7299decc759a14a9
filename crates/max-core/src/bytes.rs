//! Host bytes with an owner: a vector, a memory-mapped file, an array of another library.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A shared, immutable range of host bytes together with whatever keeps it alive.
#[derive(Clone)]
pub struct HostBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl HostBytes {
    /// All bytes of an owner.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(owner);
        let len = (*owner).as_ref().len();
        HostBytes { owner, start: 0, len }
    }

    /// The elements of a vector, without a copy.
    pub fn from_vec<T: bytemuck::Pod + Send + Sync>(elements: Vec<T>) -> Self {
        struct Elements<T>(Vec<T>);
        impl<T: bytemuck::Pod> AsRef<[u8]> for Elements<T> {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        HostBytes::new(Elements(elements))
    }

    /// A part of these bytes with the same owner, or `None` if the range is out of bounds.
    pub fn slice(&self, start: usize, len: usize) -> Option<HostBytes> {
        (start.checked_add(len)? <= self.len).then(|| HostBytes {
            owner: self.owner.clone(),
            start: self.start + start,
            len,
        })
    }
}

impl Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..][..self.len]
    }
}

impl fmt::Debug for HostBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBytes({} bytes)", self.len)
    }
}

impl PartialEq for HostBytes {
    fn eq(&self, other: &HostBytes) -> bool {
        self.len == other.len && (std::ptr::eq(self.as_ptr(), other.as_ptr()) || **self == **other)
    }
}

impl Eq for HostBytes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_check_their_range() {
        let bytes = HostBytes::from_vec(vec![1u16, 2, 3]);
        let tail = bytes.slice(2, 4).unwrap();
        assert_eq!(tail.as_ptr(), bytes[2..].as_ptr());
        assert_eq!(*tail.slice(2, 2).unwrap(), 3u16.to_ne_bytes());
        assert!(bytes.slice(4, 3).is_none() && bytes.slice(usize::MAX, 2).is_none());
    }
}

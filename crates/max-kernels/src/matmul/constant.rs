//! Memory that never changes: kernels may keep copies of it that are packed as they like it, once for all programs and
//! threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use max_core::kernel::Access;
use max_core::{DType, HostBytes};

use crate::scratch::{Line, Lines};

/// Bytes that never change, with their packed copies.
#[derive(Debug)]
pub struct Constant {
    bytes: HostBytes,
    copies: RwLock<Vec<Arc<Packed>>>,
}

/// Where a matrix is in the bytes of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    dtype: DType,
    offset: i64,
    strides: [i64; 2],
    size: [i64; 2],
    /// The dtype of the left operand, on which the packed form depends too.
    left: DType,
}

impl Place {
    /// The matrix of an access, with `size` rows and columns.
    pub(super) fn new(access: &Access<i64>, size: [i64; 2], left: DType) -> Place {
        let [.., down, along] = access.strides[..] else { unreachable!("a matrix has two strides") };
        Place { dtype: access.dtype, offset: access.offset, strides: [down, along], size, left }
    }
}

/// A packed copy of a matrix.
#[derive(Debug)]
struct Packed {
    key: Key,
    /// Keeps the bytes alive, so that no others can have its key.
    _bytes: HostBytes,
    lines: OnceLock<Option<Lines>>,
}

/// What is packed: the address and the length of the bytes, and the matrix in them.
type Key = (usize, usize, Place);

/// The copies in use.
static ALL: Mutex<Option<HashMap<Key, Weak<Packed>>>> = Mutex::new(None);

impl Constant {
    /// Bytes that never change.
    pub fn new(bytes: HostBytes) -> Constant {
        Constant { bytes, copies: RwLock::default() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &HostBytes {
        &self.bytes
    }

    /// A packed matrix, in `lines` cache lines that `fill` writes when it is first wanted; `None` if it has not been
    /// wanted so far, or memory is short. It lives as long as the constant.
    pub(super) fn packed(
        &self,
        place: Place,
        wanted: bool,
        lines: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Option<*const u8> {
        let copy = self.copy(place);
        let packed =
            if wanted { Some(copy.lines.get_or_init(|| pack(lines, fill))) } else { copy.lines.get() };
        packed?.as_ref().map(Lines::ptr)
    }

    /// The copy of a matrix, which may not be packed yet.
    fn copy(&self, place: Place) -> Arc<Packed> {
        let same = |copy: &&Arc<Packed>| copy.key.2 == place;
        let known = self.copies.read().unwrap_or_else(PoisonError::into_inner).iter().find(same).cloned();
        known.unwrap_or_else(|| {
            let copy = Packed::of(&self.bytes, place);
            self.copies.write().unwrap_or_else(PoisonError::into_inner).push(copy.clone());
            copy
        })
    }

    /// The bytes of the packed copies.
    pub fn packed_bytes(&self) -> usize {
        let copies = self.copies.read().unwrap_or_else(PoisonError::into_inner);
        copies.iter().filter_map(|copy| copy.lines.get()?.as_ref()).map(Lines::bytes).sum()
    }
}

impl Packed {
    fn of(bytes: &HostBytes, place: Place) -> Arc<Packed> {
        let key = (bytes.as_ptr() as usize, bytes.len(), place);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let copy = Arc::new(Packed { key, _bytes: bytes.clone(), lines: OnceLock::new() });
        all.insert(key, Arc::downgrade(&copy));
        copy
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // Another copy with the same key may have been added meanwhile.
        if let Some(all) = all.as_mut()
            && all.get(&self.key).is_some_and(|known| known.strong_count() == 0)
        {
            all.remove(&self.key);
        }
    }
}

fn pack(lines: usize, fill: impl FnOnce(*mut u8)) -> Option<Lines> {
    if available().is_some_and(|available| lines.saturating_mul(size_of::<Line>()) > available / 2) {
        return None;
    }
    let mut packed = Lines::new(lines)?;
    fill(packed.ptr_mut());
    Some(packed)
}

/// The bytes of memory available to programs, if the system reports them.
fn available() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use max_core::kernel::Slot;

    use super::*;

    #[test]
    fn copies_are_shared_while_they_live() {
        let bytes = HostBytes::from_vec(vec![1f32; 6]);
        let place = |strides: [i64; 2], size| {
            let (slot, dtype) = (Slot(0), DType::Float32);
            Place::new(&Access { slot, dtype, offset: 0, strides: strides.to_vec() }, size, dtype)
        };
        let (down, along) = (place([3, 1], [2, 3]), place([1, 3], [3, 2]));
        let (a, b) = (Constant::new(bytes.clone()), Constant::new(bytes));
        assert_eq!(a.packed(down, false, 1, |_| unreachable!()), None);
        // SAFETY: there is one line.
        let packed = a.packed(down, true, 1, |to| unsafe { to.write_bytes(7, 64) }).unwrap();
        assert_eq!(b.packed(down, true, 1, |_| unreachable!()), Some(packed));
        assert_eq!(b.packed(along, false, 1, |_| unreachable!()), None);
        assert_eq!((a.packed_bytes(), b.packed_bytes()), (64, 64));
        let key = b.copy(down).key;
        drop((a, b));
        assert!(ALL.lock().unwrap().as_ref().is_some_and(|all| !all.contains_key(&key)));
    }

    #[test]
    fn memory_is_known_on_linux() {
        assert_eq!(available().is_some(), cfg!(target_os = "linux"));
    }
}

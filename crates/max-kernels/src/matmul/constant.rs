//! Constant right operands: packed once, when a kernel first needs them, for all programs and threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use max_core::kernel::Access;
use max_core::{DType, HostBytes};

use crate::scratch::{Line, Lines};

/// A right operand that never changes.
#[derive(Debug)]
pub struct Constant {
    key: Key,
    /// Keeps the operand alive, so that no other one can have its key.
    _bytes: HostBytes,
    packed: OnceLock<Option<Lines>>,
}

/// What is packed: the address of the bytes, and the layout of the matrix in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    bytes: (usize, usize),
    dtype: DType,
    offset: i64,
    strides: [i64; 2],
    size: [i64; 2],
}

/// The constants in use.
static ALL: Mutex<Option<HashMap<Key, Weak<Constant>>>> = Mutex::new(None);

impl Constant {
    /// The matrix of an access, with `size` rows and columns.
    pub(super) fn new(bytes: HostBytes, access: &Access<i64>, size: [i64; 2]) -> Arc<Constant> {
        let rank = access.strides.len();
        let key = Key {
            bytes: (bytes.as_ptr() as usize, bytes.len()),
            dtype: access.dtype,
            offset: access.offset,
            strides: [access.strides[rank - 2], access.strides[rank - 1]],
            size,
        };
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let constant = Arc::new(Constant { key, _bytes: bytes, packed: OnceLock::new() });
        all.insert(key, Arc::downgrade(&constant));
        constant
    }

    /// The packed operand, in `lines` cache lines that `fill` writes when it is first wanted; `None` if it has not been
    /// wanted so far, or memory is short.
    pub(super) fn packed(&self, wanted: bool, lines: usize, fill: impl FnOnce(*mut u8)) -> Option<*const u8> {
        let packed =
            if wanted { Some(self.packed.get_or_init(|| pack(lines, fill))) } else { self.packed.get() };
        packed?.as_ref().map(Lines::ptr)
    }

    /// The bytes of the packed copy.
    pub fn packed_bytes(&self) -> usize {
        self.packed.get().and_then(Option::as_ref).map_or(0, Lines::bytes)
    }
}

impl Drop for Constant {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // Another constant with the same key may have been added meanwhile.
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
    fn constants_are_shared_while_they_live() {
        let bytes = HostBytes::from_vec(vec![1f32; 6]);
        let access = |strides: [i64; 2]| Access {
            slot: Slot(0),
            dtype: DType::Float32,
            offset: 0,
            strides: strides.to_vec(),
        };
        let a = Constant::new(bytes.clone(), &access([3, 1]), [2, 3]);
        let b = Constant::new(bytes.clone(), &access([3, 1]), [2, 3]);
        let c = Constant::new(bytes.clone(), &access([1, 3]), [3, 2]);
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c));
        assert_eq!(a.packed(false, 1, |_| unreachable!()), None);
        // SAFETY: there is one line.
        let packed = a.packed(true, 1, |to| unsafe { to.write_bytes(7, 64) }).unwrap();
        assert_eq!(b.packed(true, 1, |_| unreachable!()), Some(packed));
        assert_eq!((b.packed_bytes(), c.packed_bytes()), (64, 0));
        let key = a.key;
        drop((a, b));
        assert!(ALL.lock().unwrap().as_ref().is_some_and(|all| !all.contains_key(&key)));
    }

    #[test]
    fn memory_is_known_on_linux() {
        assert_eq!(available().is_some(), cfg!(target_os = "linux"));
    }
}

//! Memory that never changes: kernels may keep copies of it that are packed as they like it, once for all programs and
//! threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use max_core::kernel::Access;
use max_core::quantization::Storage;
use max_core::{DType, HostBytes};
use max_driver::resident::{page_out, prefer_large_pages};

use crate::scratch::{Line, Lines};

/// Bytes that never change, with their packed copies.
#[derive(Debug)]
pub struct Constant {
    bytes: HostBytes,
    copies: RwLock<Vec<Arc<Packed>>>,
}

/// Where a matrix is in the bytes of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    dtype: DType,
    offset: i64,
    strides: [i64; 2],
    size: [i64; 2],
    /// How many such matrices there are, and the distance between them.
    matrices: [i64; 2],
    packing: Packing,
}

/// What the packed form of a matrix depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Packing {
    /// The dtype of the left operand.
    Matmul(DType),
    /// How its rows are stored.
    Quantized(Storage),
}

impl Place {
    /// The matrix of an access, with `size` rows and columns.
    pub(super) fn new(access: &Access<i64>, size: [i64; 2], left: DType) -> Place {
        let [.., down, along] = access.strides[..] else { unreachable!("a matrix has two strides") };
        let (dtype, offset, matrices) = (access.dtype, access.offset, [1, 0]);
        Place { dtype, offset, strides: [down, along], size, matrices, packing: Packing::Matmul(left) }
    }

    /// Quantized matrices of an access, one or more, with `size` rows and columns.
    pub(crate) fn quantized(
        access: &Access<i64>,
        matrices: Option<i64>,
        size: [i64; 2],
        storage: Storage,
    ) -> Place {
        let matrices = matrices.map_or([1, 0], |count| [count, access.strides[0]]);
        Place { matrices, packing: Packing::Quantized(storage), ..Place::new(access, size, access.dtype) }
    }
}

/// A packed copy of a matrix.
#[derive(Debug)]
struct Packed {
    key: Key,
    /// Keeps the bytes alive, so that no others can have its key.
    _bytes: [HostBytes; 2],
    lines: OnceLock<Option<Lines>>,
}

/// What is packed: the address and the length of the bytes, and the matrix in them; the same for its scales, if they are
/// packed with it.
type Key = (Part, Option<Part>);
type Part = (usize, usize, Place);

fn part(bytes: &HostBytes, place: Place) -> Part {
    (bytes.as_ptr() as usize, bytes.len(), place)
}

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
        let copy = self.copy(place, None);
        if wanted { self.pack(&copy, lines, fill) } else { copy.lines.get()?.as_ref().map(Lines::ptr) }
    }

    /// As [`Constant::packed`], for matrices whose scales may be in another constant, and that are always wanted.
    pub(crate) fn packed_with(
        &self,
        place: Place,
        scales: Option<(&Constant, Place)>,
        lines: usize,
        fill: impl FnOnce(*mut u8),
    ) -> Option<*const u8> {
        self.pack(&self.copy(place, scales), lines, fill)
    }

    /// The lines of a copy, packed if they were not.
    fn pack(&self, copy: &Packed, lines: usize, fill: impl FnOnce(*mut u8)) -> Option<*const u8> {
        let fill = |to: *mut u8| {
            fill(to);
            // Whatever multiplies by them reads the packed form from now on.
            page_out(&self.bytes);
        };
        copy.lines.get_or_init(|| pack(lines, fill)).as_ref().map(Lines::ptr)
    }

    /// The copy of a matrix, which may not be packed yet.
    fn copy(&self, place: Place, scales: Option<(&Constant, Place)>) -> Arc<Packed> {
        let others = scales.map(|(constant, place)| part(&constant.bytes, place));
        let same = |copy: &&Arc<Packed>| copy.key.0.2 == place && copy.key.1 == others;
        let known = self.copies.read().unwrap_or_else(PoisonError::into_inner).iter().find(same).cloned();
        known.unwrap_or_else(|| {
            let scales = scales.map(|(constant, place)| (&constant.bytes, place));
            let copy = Packed::of(&self.bytes, place, scales);
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
    fn of(bytes: &HostBytes, place: Place, scales: Option<(&HostBytes, Place)>) -> Arc<Packed> {
        let key = (part(bytes, place), scales.map(|(bytes, place)| part(bytes, place)));
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let kept = [bytes, scales.map_or(bytes, |(bytes, _)| bytes)].map(HostBytes::clone);
        let copy = Arc::new(Packed { key, _bytes: kept, lines: OnceLock::new() });
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
    prefer_large_pages(packed.ptr_mut(), lines.saturating_mul(size_of::<Line>()));
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
        let key = b.copy(down, None).key;
        drop((a, b));
        assert!(ALL.lock().unwrap().as_ref().is_some_and(|all| !all.contains_key(&key)));
    }

    #[test]
    fn memory_is_known_on_linux() {
        assert_eq!(available().is_some(), cfg!(target_os = "linux"));
    }
}

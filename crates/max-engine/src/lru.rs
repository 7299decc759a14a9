//! A small LRU cache that is searched starting with its most recently used entry.

/// At most `MOST` entries, the most recently used first.
#[derive(Debug)]
pub(crate) struct Lru<T, const MOST: usize>(Vec<T>);

impl<T, const MOST: usize> Lru<T, MOST> {
    /// An empty cache.
    pub(crate) const fn new() -> Self {
        Lru(Vec::new())
    }

    /// The first entry that matches, which becomes the most recently used.
    pub(crate) fn find(&mut self, wanted: impl FnMut(&T) -> bool) -> Option<&T> {
        let at = self.0.iter().position(wanted)?;
        self.0[..=at].rotate_right(1);
        self.0.first()
    }

    /// Adds an entry as the most recently used. The evicted entry is returned, so that callers can drop it after they
    /// have released their lock.
    #[must_use = "what is evicted should be dropped outside of locks"]
    pub(crate) fn insert(&mut self, entry: T) -> Option<T> {
        let evicted = if self.0.len() == MOST { self.evict() } else { None };
        self.0.insert(0, entry);
        evicted
    }

    /// Removes the least recently used entry.
    pub(crate) fn evict(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// The entries, the most recently used first.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T, const MOST: usize> Default for Lru<T, MOST> {
    fn default() -> Self {
        Lru::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_evicted_and_the_order_of_the_others_stays() {
        let mut lru = Lru::<u32, 3>::new();
        assert_eq!([1, 2, 3].map(|entry| lru.insert(entry)), [None; 3]);
        assert_eq!(lru.find(|&entry| entry == 1), Some(&1));
        assert_eq!(lru.iter().collect::<Vec<_>>(), [&1, &3, &2]);
        assert_eq!(lru.find(|&entry| entry == 9), None);
        assert_eq!(lru.insert(4), Some(2));
        // The entry that was hit stays while others come and go.
        for entry in 5..20 {
            assert!(lru.find(|&entry| entry == 1).is_some());
            assert_ne!(lru.insert(entry), Some(1));
        }
        assert_eq!(lru.iter().collect::<Vec<_>>(), [&19, &1, &18]);
        assert_eq!((lru.len(), lru.evict()), (3, Some(18)));
    }
}

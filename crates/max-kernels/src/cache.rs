//! The cache sizes of this machine, which decide block sizes but never the order of sums.

use std::sync::OnceLock;

/// Cache sizes in bytes; `second` is per core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caches {
    pub(crate) second: usize,
    pub(crate) last: usize,
}

impl Caches {
    /// A lower bound for most machines.
    const USUAL: Caches = Caches { second: 512 << 10, last: 8 << 20 };

    /// The sizes of this machine, as far as the system tells.
    pub(crate) fn get() -> Caches {
        static FOUND: OnceLock<Caches> = OnceLock::new();
        *FOUND.get_or_init(|| Caches::from_levels(&levels()))
    }

    fn from_levels(levels: &[(u32, usize)]) -> Caches {
        let size =
            |level: u32| levels.iter().find(|(l, size)| *l == level && *size > 0).map(|(_, size)| *size);
        let second = size(2).unwrap_or(Caches::USUAL.second);
        Caches { second, last: size(4).or(size(3)).unwrap_or(Caches::USUAL.last.max(second)) }
    }
}

/// The data caches of the first core with their levels, as Linux lists them.
fn levels() -> Vec<(u32, usize)> {
    let read = |index: u32, name: &str| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).ok()
    };
    (0..8)
        .map_while(|index| Some((index, read(index, "level")?.trim().parse().ok()?)))
        .filter(|(index, _)| read(*index, "type").is_some_and(|kind| kind.trim() != "Instruction"))
        .filter_map(|(index, level)| Some((level, parse(read(index, "size")?.trim())?)))
        .collect()
}

/// Parses a size such as `32K` or `1M`.
fn parse(size: &str) -> Option<usize> {
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(
            [parse("32K"), parse("1M"), parse("7"), parse("x"), parse("1T")],
            [Some(32768), Some(1 << 20), Some(7), None, None]
        );
        let caches = Caches::from_levels(&[(1, 32 << 10), (2, 1 << 20), (3, 32 << 20)]);
        assert_eq!((caches.second, caches.last), (1 << 20, 32 << 20));
        let unknown = Caches::from_levels(&[]);
        assert_eq!((unknown.second, unknown.last), (Caches::USUAL.second, Caches::USUAL.last));
        assert!(Caches::get().second <= Caches::get().last);
    }
}

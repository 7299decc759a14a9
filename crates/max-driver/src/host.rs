//! The host as a device: its pool, and what its system files say about it.

use std::collections::BTreeMap;

use max_core::Number;

use crate::pool::Pool;

/// The pool of host memory.
pub(crate) static POOL: Pool = Pool::new(KEPT_BYTES);

/// How much a pool of host memory keeps for reuse: enough for the outputs of most models, and too little to be missed.
pub(crate) const KEPT_BYTES: usize = 256 << 20;

/// The name of the processor, or at least of its architecture.
pub(crate) fn model_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    field(&text, "model name").unwrap_or(std::env::consts::ARCH).to_owned()
}

/// The total memory in bytes, if the system tells.
pub(crate) fn total_memory() -> Option<usize> {
    bytes(&meminfo(), "MemTotal")
}

/// The statistics of a device whose memory is in a pool on the host: see `Device::stats`.
pub(crate) fn stats(pool: &Pool) -> BTreeMap<String, Number> {
    let text = meminfo();
    let entries = [
        ("bytes_in_use", Some(pool.bytes_in_use())),
        ("bytes_pooled", Some(pool.bytes_held())),
        ("total_memory", bytes(&text, "MemTotal")),
        ("free_memory", bytes(&text, "MemAvailable")),
    ];
    let known = entries.into_iter().filter_map(|(name, bytes)| Some((name, bytes?)));
    known.map(|(name, bytes)| (name.to_owned(), Number::Int(bytes as i128))).collect()
}

fn meminfo() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// A size that is given in units of 1024 bytes.
fn bytes(text: &str, name: &str) -> Option<usize> {
    field(text, name)?.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotal:  16 kB\nMemAvailable: 8 kB\nmodel name\t: Some CPU @ 2.0: fast\n";
        assert_eq!(field(text, "MemAvailable"), Some("8 kB"));
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2.0: fast"));
        assert_eq!(field(text, "Mem"), None);
        assert_eq!(bytes(text, "MemTotal"), Some(16 << 10));
        assert_eq!(bytes("MemTotal: 99999999999999999999 kB\n", "MemTotal"), None);
    }
}

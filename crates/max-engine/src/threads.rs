//! The default number of threads of a session.

use std::collections::BTreeSet;

/// The physical cores available to this process: hardware threads of a core share its vector units, so one per core is best.
pub(crate) fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    let siblings = |cpu: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(cpu.ok()?.path().join("topology/thread_siblings_list")).ok()
    };
    let cpus = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten();
    let cores: BTreeSet<String> = cpus.filter_map(siblings).collect();
    if cores.is_empty() { available } else { cores.len().min(available) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn there_is_a_core() {
        assert!(super::physical_cores() >= 1);
    }
}

//! Hashes that are stable across processes and versions, for file names and checksums.

/// The hash of a list of byte strings, including their boundaries. Different seeds give independent hashes.
pub(crate) fn digest(seed: u128, parts: &[&[u8]]) -> u128 {
    let mut state = mix(seed ^ parts.len() as u128);
    for part in parts {
        state = mix(state ^ part.len() as u128);
        for chunk in part.chunks(16) {
            let mut block = [0; 16];
            block[..chunk.len()].copy_from_slice(chunk);
            state = mix(state ^ u128::from_le_bytes(block));
        }
    }
    mix(state)
}

/// A bijection after which each bit depends on all bits of `state`: multiplying spreads bits upwards, folding the upper
/// half onto the lower brings them back down.
fn mix(state: u128) -> u128 {
    let state = (state ^ (state >> 65)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    (state ^ (state >> 61)).wrapping_mul(0xda94_2042_e4dd_58b5_2360_ed05_1fc6_5da5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn different_inputs_have_different_hashes() {
        let texts: Vec<String> = (0..1000).map(|n| format!("kernel {n}")).collect();
        let hashes: HashSet<u128> = texts.iter().map(|text| digest(0, &[text.as_bytes()])).collect();
        assert_eq!(hashes.len(), texts.len());
        let splits: [&[&[u8]]; 5] = [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[b"abc", b""], &[b"abc\0"]];
        let hashes: HashSet<u128> = splits.iter().map(|parts| digest(0, parts)).collect();
        assert_eq!(hashes.len(), splits.len());
        assert_ne!(digest(0, &[b"abc"]), digest(1, &[b"abc"]));
    }

    #[test]
    fn one_bit_changes_half_of_the_hash() {
        let text = [7u8; 64];
        let hash = digest(0, &[&text]);
        for bit in 0..text.len() * 8 {
            let mut other = text;
            other[bit / 8] ^= 1 << (bit % 8);
            let changed = (digest(0, &[&other]) ^ hash).count_ones();
            assert!((32..=96).contains(&changed), "bit {bit} changes {changed} bits");
        }
    }
}

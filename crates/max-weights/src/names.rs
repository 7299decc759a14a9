//! Names that are similar to others, for errors about names that do not exist.

/// How many comparisons of names an error is worth.
pub const MOST_COMPARISONS: usize = 40_000;

/// How many similar names an error lists.
const MOST_LISTED: usize = 3;

/// The most similar of some names, best first: they have the same ending after a dot, or few letters differ.
pub fn similar<'a>(name: &str, others: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = name.len() / 3 + 1;
    let near = others.into_iter().take(MOST_COMPARISONS).filter_map(|other| {
        let ends = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|rest| rest.ends_with('.'));
        let ending = ends(other, name) || ends(name, other);
        let distance = if ending { 1 } else { distance(name, other, limit)? };
        Some((distance, other))
    });
    let mut near: Vec<_> = near.collect();
    near.sort_unstable();
    // Names that are much less similar than the best one would only distract from it.
    let most = near.first().map_or(0, |(best, _)| 2 * best);
    near.into_iter()
        .filter(|&(distance, _)| distance <= most)
        .map(|(_, other)| other)
        .take(MOST_LISTED)
        .collect()
}

/// How many letters must be inserted, removed or replaced, if it is not more than a limit.
fn distance(a: &str, b: &str, limit: usize) -> Option<usize> {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
        // No number of a later row is smaller than all of this one.
        if row.iter().all(|&distance| distance > limit) {
            return None;
        }
    }
    row.last().copied().filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_come_first() {
        let names = ["model.norm.weight", "model.norm.wieght", "text.norm.weight", "head.bias", "x"];
        assert_eq!(similar("norm.weight", names), ["model.norm.weight", "text.norm.weight"]);
        assert_eq!(similar("model.norm.weigh", names), ["model.norm.weight"]);
        assert_eq!(similar("mlp.up", names), [""; 0]);
        assert_eq!(similar("", ["a", "bcd"]), ["a"]);
    }

    #[test]
    fn distances_are_bounded() {
        assert_eq!(distance("kitten", "sitting", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("", "", 0), Some(0));
        assert_eq!(distance("ab", "abcdef", 2), None);
    }
}

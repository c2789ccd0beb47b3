//! "Did you mean": the known word nearest to an unknown one.

/// Longest word that is compared; typing slips happen in short ones.
const WORD_MAX: usize = 64;

/// The nearest of `known` by edit distance, if it is near: at most a third of the word changed.
pub(crate) fn of<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_MAX {
        return None;
    }
    let lower = word.to_lowercase();
    let distances = known.into_iter().map(|other| (distance(&lower, other), other));
    let (near, other) = distances.min_by_key(|(distance, _)| *distance)?;
    (near <= lower.chars().count().max(other.len()).div_ceil(3)).then_some(other)
}

/// Insertions, deletions, changes and swaps of neighbours that turn one word into the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let best = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped { best.min(rows[i - 2][j - 2] + 1) } else { best }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word() {
        let known = ["max_memory", "path", "kind", "limits"];
        let near = |word| of(word, known);
        assert_eq!(near("max_memroy"), Some("max_memory"));
        assert_eq!(near("maxmemory"), Some("max_memory"));
        assert_eq!(near("Path"), Some("path"));
        assert_eq!(near("limit"), Some("limits"));
        assert_eq!(near("colour"), None);
        assert_eq!(near(&"x".repeat(100_000)), None);
    }
}

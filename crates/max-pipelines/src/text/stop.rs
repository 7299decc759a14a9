//! What ends an answer: tokens, and texts that may begin in one token and end in another.

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended the sequence with this token.
    EndOfSequence(u32),
    /// This token of `stop_token_ids` was chosen.
    StopToken(u32),
    /// This text of `stop` appeared.
    StopString(String),
    /// There are `max_new_tokens`, or the context is full.
    Length,
    /// The request was cancelled.
    Cancelled,
}

impl FinishReason {
    /// The reason in one word, as in answers of servers: `stop`, `length` or `cancelled`.
    pub fn as_str(&self) -> &'static str {
        match self {
            FinishReason::EndOfSequence(_) | FinishReason::StopToken(_) | FinishReason::StopString(_) => {
                "stop"
            }
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }

    /// The documented status of a generation that ended so.
    pub fn status(&self) -> &'static str {
        match self {
            FinishReason::Length => "maximum_length",
            FinishReason::Cancelled => "cancelled",
            _ => "end_of_sequence",
        }
    }
}

/// Finds stop strings in a text that comes in pieces, whatever the pieces are.
///
/// What may be the beginning of a stop string is held back until it is known to be none. The match that ends first
/// counts, and of those that end at the same place the longest.
///
/// ```
/// # use max_pipelines::text::stop::StopStrings;
/// let mut stops = StopStrings::new(["</s>", "User:"]);
/// assert_eq!(stops.push("Hello <"), (String::from("Hello "), None));
/// assert_eq!(stops.push("b> </"), (String::from("<b> "), None));
/// assert_eq!(stops.push("s> more"), (String::new(), Some("</s>")));
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// What was held back: the longest beginning of a pattern that the text ends with.
    held: String,
    found: Option<usize>,
}

/// A stop string with the failure function of Knuth, Morris and Pratt: each byte is looked at a bounded number of times on
/// average, however the string repeats itself.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    /// For each prefix that ends with this byte: the length of its longest proper prefix that is also its suffix.
    failure: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: String) -> Pattern {
        let bytes = text.as_bytes();
        let mut failure = vec![0; bytes.len()];
        let mut matched = 0;
        for at in 1..bytes.len() {
            while matched > 0 && bytes[at] != bytes[matched] {
                matched = failure[matched - 1];
            }
            if bytes[at] == bytes[matched] {
                matched += 1;
            }
            failure[at] = matched;
        }
        Pattern { text, failure, matched: 0 }
    }

    /// Takes the next byte; whether the text now ends with the pattern.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.failure[self.matched - 1];
        }
        if bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == bytes.len()
    }
}

impl StopStrings {
    /// Looks for these texts; empty ones are left out.
    pub fn new<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> StopStrings {
        let texts = texts.into_iter().map(Into::into).filter(|text| !text.is_empty());
        StopStrings { patterns: texts.map(Pattern::new).collect(), ..StopStrings::default() }
    }

    /// Takes the next piece of text. Gives what can be shown now, and the stop string if the text has come to one; after
    /// that, nothing more is shown.
    pub fn push(&mut self, piece: &str) -> (String, Option<&str>) {
        if let Some(found) = self.found {
            return (String::new(), Some(&self.patterns[found].text));
        }
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            let mut longest = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                if pattern.advance(byte) {
                    longest = longest.max(Some((pattern.text.len(), index)));
                }
            }
            if let Some((length, index)) = longest {
                let mut shown = self.finish() + &piece[..=at];
                shown.truncate(shown.len() - length);
                self.found = Some(index);
                return (shown, Some(&self.patterns[index].text));
            }
        }
        let mut shown = self.finish() + piece;
        let kept = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        self.held = shown.split_off(shown.len() - kept);
        (shown, None)
    }

    /// What was held back, for a text that ended otherwise.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All that is shown of a text in pieces, and the stop string that ended it.
    fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let mut stops = StopStrings::new(stops.iter().copied());
        let mut all = String::new();
        for piece in pieces {
            let (shown, found) = stops.push(piece);
            all += &shown;
            if let Some(found) = found {
                return (all, Some(found.to_owned()));
            }
        }
        (all + &stops.finish(), None)
    }

    #[test]
    fn a_stop_string_may_span_pieces() {
        let (shown, found) = run(&["\n\nUser:"], ["Fine.\n", "\n", "Us", "er", ": Hi"]);
        assert_eq!((shown.as_str(), found.as_deref()), ("Fine.", Some("\n\nUser:")));
    }

    #[test]
    fn what_only_looks_like_one_is_shown() {
        let mut stops = StopStrings::new(["aab"]);
        assert_eq!(stops.push("xaa"), ("x".into(), None));
        // Of three, the first can no longer be part of a match.
        assert_eq!(stops.push("a"), ("a".into(), None));
        assert_eq!(stops.push("c"), ("aac".into(), None));
        assert_eq!(stops.push("a"), (String::new(), None));
        assert_eq!(stops.finish(), "a");
    }

    #[test]
    fn the_match_that_ends_first_counts() {
        assert_eq!(run(&["abcde", "cd"], ["abcde"]), ("ab".into(), Some("cd".into())));
        assert_eq!(run(&["d", "bcd"], ["abcd"]), ("a".into(), Some("bcd".into())));
        assert_eq!(run(&[], ["any", "thing"]), ("anything".into(), None));
    }

    #[test]
    fn characters_stay_whole() {
        // Both begin with the same bytes.
        let (shown, found) = run(&["é!"], ["caf", "è", "é", "é", "!", "x"]);
        assert_eq!((shown.as_str(), found.as_deref()), ("cafèé", Some("é!")));
    }

    #[test]
    fn nothing_is_shown_after_the_end() {
        let mut stops = StopStrings::new(["."]);
        assert_eq!(stops.push("a.b."), ("a".into(), Some(".")));
        assert_eq!(stops.push("more"), (String::new(), Some(".")));
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn reasons_have_words() {
        assert_eq!(FinishReason::EndOfSequence(2).as_str(), "stop");
        assert_eq!(FinishReason::Length.as_str(), "length");
        assert_eq!(FinishReason::Cancelled.status(), "cancelled");
    }

    /// The end of the first match to end, and the length of the longest one there.
    fn expected(text: &str, stops: &[String]) -> Option<(usize, usize)> {
        (1..=text.len()).find_map(|end| {
            let ending = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            ending.map(String::len).max().map(|length| (end, length))
        })
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            text in "[abé]{0,40}", stops in prop::collection::vec("[abé]{1,5}", 0..4), cuts in prop::collection::vec(0_usize..40, 0..10),
        ) {
            let mut bounds = cuts.into_iter().filter(|&at| text.is_char_boundary(at)).collect::<Vec<_>>();
            bounds.extend([0, text.len()]);
            bounds.sort();
            let stops_ref = stops.iter().map(String::as_str).collect::<Vec<_>>();
            let (shown, found) = run(&stops_ref, bounds.windows(2).map(|pair| &text[pair[0]..pair[1]]));
            match expected(&text, &stops) {
                Some((end, length)) => {
                    prop_assert_eq!(shown, &text[..end - length]);
                    prop_assert_eq!(found.map(|stop| stop.len()), Some(length));
                }
                None => prop_assert_eq!((shown, found), (text, None)),
            }
        }
    }
}

//! How well a model predicts a text.

use max_core::{Result, bail};

use crate::generator::TextGenerator;

/// How well a model predicts a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TextLikelihood {
    /// The log probabilities of the tokens, each after those before it in its window.
    pub log_probabilities: Vec<f64>,
    /// The most tokens of a window.
    pub window: usize,
    /// How far a window is from the next one.
    pub stride: usize,
}

impl TextLikelihood {
    /// The exponential of the mean negative log probability: among so many equally probable tokens the model would be as unsure.
    pub fn perplexity(&self) -> f64 {
        libm::exp(-self.sum() / self.log_probabilities.len().max(1) as f64)
    }

    /// The log probability of the whole text.
    pub fn sum(&self) -> f64 {
        self.log_probabilities.iter().sum()
    }
}

impl TextGenerator {
    /// How well the model predicts a text.
    ///
    /// A text that is longer than the context is read in windows of that length. Each begins `stride` tokens after the one
    /// before it (half a window if nothing is said), with the tokens that the model wants before every text, and only what
    /// the window before has not seen counts. So every token counts once, and all but those of the first window have at least
    /// `window - stride` tokens before them. A token that begins a text without any before it cannot be predicted and does
    /// not count.
    ///
    /// A function is told how many tokens of how many are done, and may end the work with an error.
    ///
    /// ```
    /// let generator = max_pipelines::TextGenerator::load_default()?;
    /// let story = "Once upon a time, there was a little fox named Mia.";
    /// let nonsense = "Time a upon once, fox little a was there Mia named.";
    /// let perplexity = |text| Ok(generator.likelihood(text, None, &mut |_, _| Ok(()))?.perplexity());
    /// assert!(10.0 * perplexity(story)? < perplexity(nonsense)?);
    /// # Ok::<(), max_core::Error>(())
    /// ```
    pub fn likelihood(
        &self,
        text: &str,
        stride: Option<usize>,
        each: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<TextLikelihood> {
        let (before, tokens) = (self.tokenizer().before(), self.tokenizer().encode(text, false)?);
        let window = self.model().config().max_length;
        // The first token of a window has nothing that predicts it.
        let unpredicted = usize::from(before.is_empty());
        let Some(room) = window.checked_sub(before.len()).filter(|room| *room > unpredicted) else {
            bail!(value, "a context of {window} tokens has no room for a text");
        };
        let stride = stride.unwrap_or((window / 2).clamp(1, room - unpredicted));
        if stride == 0 || stride > room - unpredicted {
            bail!(value, "the stride is {stride}; expected 1 to {}", room - unpredicted);
        }
        if tokens.len() <= unpredicted {
            bail!(value, "a text of {} tokens has none that could be predicted", tokens.len());
        }
        let mut found = Vec::with_capacity(tokens.len());
        let mut sequence = self.sequence();
        let (mut start, mut done) = (0, unpredicted);
        while done < tokens.len() {
            let end = tokens.len().min(start + room);
            let all = [before, &tokens[start..end]].concat();
            found.extend(sequence.log_probabilities(&all, before.len() + done - start, &mut |count| {
                each(done + count, tokens.len())
            })?);
            (start, done) = (start + stride, end);
        }
        Ok(TextLikelihood { log_probabilities: found, window, stride })
    }
}

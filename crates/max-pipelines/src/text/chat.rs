//! Chat templates: how a model wants the messages of a conversation as one text.
//!
//! Templates come with models, in the language of Jinja. They are input from outside, so that reading and running them takes
//! bounded time, memory and stack, whatever they say: see `budget`. What published templates use is here, no more; what is
//! here means what it means in Python, down to the last letter.

mod budget;
mod dates;
mod filters;
mod formats;
mod json;
mod machine;
mod methods;
mod operators;
mod parser;
mod syntax;
mod tokens;
mod value;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use max_core::{Error, Result, bail};

use budget::{Fault, Outcome};
use syntax::Template;
use value::Value;

/// The most bytes of a template.
const MOST_SOURCE: usize = 1 << 20;

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: `system`, `user` or `assistant`, or what else a template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A message of someone.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into() }
    }
}

/// A chat template.
///
/// ```
/// # use max_pipelines::text::chat::{ChatMessage, ChatTemplate};
/// let template = ChatTemplate::new(
///     "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}\
///      {% if add_generation_prompt %}<assistant>{% endif %}",
/// )?;
/// let text = template.render(&[ChatMessage::new("user", "Hello!")], true, [])?;
/// assert_eq!(text, "<user>Hello!\n<assistant>");
/// # Ok::<(), max_core::Error>(())
/// ```
pub struct ChatTemplate {
    template: Template,
}

impl ChatTemplate {
    /// A template; an error says where it is not one.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        if source.len() > MOST_SOURCE {
            bail!(value, "the chat template has {} bytes, more than {MOST_SOURCE}", source.len());
        }
        Ok(ChatTemplate { template: parser::parse(source).map_err(wrong)? })
    }

    /// The text of a conversation; with a generation prompt it ends where the answer begins. Templates know some tokens by
    /// name, such as `bos_token`.
    pub fn render<'a>(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        named_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<String> {
        let message = |ChatMessage { role, content }: &ChatMessage| {
            Value::map(vec![
                ("role".into(), role.as_str().into()),
                ("content".into(), content.as_str().into()),
            ])
        };
        let messages = messages.iter().map(message).collect::<Outcome<_>>().and_then(Value::list);
        let mut variables: HashMap<Arc<str>, Value> = HashMap::from([
            ("messages".into(), messages.map_err(wrong)?),
            ("add_generation_prompt".into(), Value::Bool(add_generation_prompt)),
            // Transformers passes these to every template, and tokens only if there are some.
            ("tools".into(), Value::None),
            ("documents".into(), Value::None),
        ]);
        variables.extend(named_tokens.into_iter().map(|(name, token)| (name.into(), token.into())));
        self.render_at(variables, SystemTime::now())
    }

    /// The text for some variables at a time.
    fn render_at(&self, variables: HashMap<Arc<str>, Value>, now: SystemTime) -> Result<String> {
        machine::render(&self.template, variables, now).map_err(wrong)
    }
}

/// What is wrong with a template.
fn wrong(Fault { message, line }: Fault) -> Error {
    let place = line.map_or(String::new(), |line| format!(" in line {line}"));
    Error::value(format!("the chat template failed{place}: {message}"))
}

#[cfg(test)]
mod tests;

//! Chat templates: how a model wants the messages of a conversation as one text.
//!
//! Templates come with models, so that they are input from outside: the number of their instructions, the depth of their calls
//! and the size of their output are bounded.

mod dates;
mod json;

use std::io::{self, Write};
use std::time::SystemTime;

use max_core::{Error, Result, bail};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, context};

/// The most instructions of a template.
const FUEL: u64 = 5_000_000;

/// The most bytes of what it writes.
const MOST_OUTPUT: usize = 64 << 20;

/// The depth of calls of macros.
const DEPTH: usize = 64;

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
/// let text = template.render(&[ChatMessage::new("user", "Hello!")], true, None, None)?;
/// assert_eq!(text, "<user>Hello!\n<assistant>");
/// # Ok::<(), max_core::Error>(())
/// ```
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// A template; an error says where it is not one.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        ChatTemplate::at(source, SystemTime::now())
    }

    /// A template at a time, which it may ask for.
    fn at(source: &str, now: SystemTime) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| wrong(&error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(DEPTH);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", move |format: String| dates::formatted(&format, now));
        environment.add_filter("tojson", |value: Value, options: Kwargs| {
            let indent = options.get::<Option<usize>>("indent")?;
            // What else Python's function takes changes nothing that templates use.
            let _ =
                (options.get::<Option<Value>>("ensure_ascii")?, options.get::<Option<Value>>("separators")?);
            options.assert_all_used()?;
            json::text(&value, indent).map(Value::from_safe_string)
        });
        environment
            .add_template_owned("chat_template", without_marks(source))
            .map_err(|error| wrong(&error))?;
        Ok(ChatTemplate { environment })
    }

    /// The text of a conversation; with a generation prompt it ends where the answer begins.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<String> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|ChatMessage { role, content }| context! { role => role.as_str(), content => content.as_str() })
            .collect();
        let context = context! {
            messages,
            add_generation_prompt,
            bos_token => bos_token.unwrap_or_default(),
            eos_token => eos_token.unwrap_or_default(),
        };
        let mut output = Bounded(Vec::new());
        let template = self.environment.get_template("chat_template").map_err(|error| wrong(&error))?;
        template.render_captured_to(context, &mut output).map_err(|error| wrong(&error))?;
        match String::from_utf8(output.0) {
            Ok(text) => Ok(text),
            Err(_) => bail!(value, "the chat template wrote no valid UTF-8"),
        }
    }
}

/// A template without the marks of what an assistant says, `{% generation %}`, which matter for training only.
fn without_marks(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        rest = after;
        let Some((tag, _)) = after.split_once("%}") else { continue };
        let instead = match tag.trim_matches(['-', '+']).trim() {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        // The marks keep their white space control.
        let sign = |sign: Option<char>| {
            sign.filter(|sign| ['-', '+'].contains(sign)).map_or(String::new(), String::from)
        };
        let (first, last) = (sign(tag.chars().next()), sign(tag.chars().next_back()));
        text.push_str(&format!("{first} {instead} {last}"));
        rest = &after[tag.len()..];
    }
    text.push_str(rest);
    text
}

/// What is wrong with a template.
fn wrong(error: &minijinja::Error) -> Error {
    let place = error.line().map_or(String::new(), |line| format!(" in line {line}"));
    let message = match error.kind() {
        ErrorKind::OutOfFuel => format!("it takes more than {FUEL} steps"),
        ErrorKind::WriteFailure => format!("it writes more than {} MB", MOST_OUTPUT >> 20),
        kind => error.detail().map_or_else(|| kind.to_string(), str::to_string),
    };
    Error::value(format!("the chat template failed{place}: {message}"))
}

/// Output up to a size.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MOST_OUTPUT {
            return Err(io::Error::other("the output is too large"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use super::*;

fn message(source: &str) -> String {
    let rendered =
        ChatTemplate::new(source).and_then(|t| t.render(&[ChatMessage::new("user", "x")], true, None, None));
    rendered.unwrap_err().message().to_string()
}

#[test]
fn templates_give_what_transformers_gives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/templates");
    let goldens: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("goldens.json")).unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    let (bos, eos) = (text(&goldens["bos_token"]), text(&goldens["eos_token"]));
    // The time of the goldens.
    let now = UNIX_EPOCH + Duration::from_secs(22_338 * 86_400 + 61_509);
    let mut count = 0;
    for case in goldens["cases"].as_array().unwrap() {
        if case.get("tools").is_some() || case.get("error").is_some() || case.get("variables").is_some() {
            continue;
        }
        let messages = case["messages"].as_array().unwrap();
        if messages
            .iter()
            .any(|message| message.as_object().unwrap().len() != 2 || !message["content"].is_string())
        {
            continue;
        }
        let messages: Vec<_> =
            messages.iter().map(|m| ChatMessage::new(text(&m["role"]), text(&m["content"]))).collect();
        let name = text(&case["template"]);
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        let template = ChatTemplate::at(&source, now).unwrap();
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let found = template.render(&messages, prompt, Some(&bos), Some(&eos)).unwrap();
        assert_eq!(found, text(&case["text"]), "{name}");
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn errors_name_the_line() {
    assert!(
        message("a\n{% if %}").starts_with("the chat template failed in line 2"),
        "{}",
        message("a\n{% if %}")
    );
    assert!(message("{{ raise_exception('roles must alternate') }}").ends_with("roles must alternate"));
    assert!(message("{{ 1 / 0 }}").contains("failed in line 1"));
}

#[test]
fn endless_templates_end() {
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{{ b }}{% endfor %}{% endfor %}";
    let text = message(endless);
    assert!(text.contains("steps") || text.contains("MB"), "{text}");
    let deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(message(deep).contains("failed"));
}

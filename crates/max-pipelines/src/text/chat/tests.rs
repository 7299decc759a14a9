use std::fmt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::*;
use crate::{DecoderOptions, Prompt, TextGenerator};

/// A value of JSON, whose maps keep their order.
struct Ordered(Value);

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ordered, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::None)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(Value::Int(value as i64))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Int(value))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Float(value))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(text.into())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(Ordered(item)) = seq.next_element()? {
                    items.push(item);
                }
                Value::list(items).map_err(|fault| A::Error::custom(fault.message))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((key, Ordered(value))) = map.next_entry::<String, Ordered>()? {
                    entries.push((key.as_str().into(), value));
                }
                Value::map(entries).map_err(|fault| A::Error::custom(fault.message))
            }
        }
        deserializer.deserialize_any(Any).map(Ordered)
    }
}

/// Variables by their names.
fn named(map: &Value) -> HashMap<Arc<str>, Value> {
    let Value::Map(map) = map else { panic!("{map:?}") };
    map.entries.iter().map(|(name, value)| (name.as_text().unwrap().clone(), value.clone())).collect()
}

/// What a template writes for variables, at the time of the goldens.
fn rendered(source: &str, variables: HashMap<Arc<str>, Value>) -> max_core::Result<String> {
    let now = UNIX_EPOCH + Duration::from_secs(22_338 * 86_400 + 61_509);
    ChatTemplate::new(source)?.render_at(variables, now)
}

fn with_examples(source: &str) -> max_core::Result<String> {
    let Ordered(variables) =
        serde_json::from_str(r#"{"x": "abc", "list": [3, 1, 2], "map": {"b": 1, "a": 2}}"#).unwrap();
    rendered(source, named(&variables))
}

fn text(source: &str) -> String {
    with_examples(source).unwrap()
}

fn message(source: &str) -> String {
    with_examples(source).unwrap_err().message().to_string()
}

#[test]
fn templates_give_what_transformers_gives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/templates");
    let goldens = std::fs::read(folder.join("goldens.json")).unwrap();
    let Ordered(goldens) = serde_json::from_slice(&goldens).unwrap();
    let goldens = named(&goldens);
    let Value::List(cases) = &goldens["cases"] else { panic!("cases are a list") };
    for case in &cases.items {
        let mut case = named(case);
        let mut take = |key: &str| case.remove(key);
        let name = take("template").unwrap();
        let name = name.as_text().unwrap();
        let (expected, error) = (take("text"), take("error"));
        let mut variables = take("variables").map_or_else(HashMap::new, |map| named(&map));
        for token in ["bos_token", "eos_token"] {
            variables.insert(token.into(), goldens[token].clone());
        }
        variables.extend(case);
        let source = std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap();
        match (rendered(&source, variables), error) {
            (Ok(found), None) => assert_eq!(found, **expected.unwrap().as_text().unwrap(), "{name}"),
            (Err(found), Some(error)) => {
                assert!(found.message().ends_with(&**error.as_text().unwrap()), "{name}: {found}")
            }
            (found, error) => panic!("{name}: {found:?} instead of {error:?}"),
        }
    }
    assert!(cases.items.len() >= 25, "{}", cases.items.len());
}

#[test]
fn messages_are_rendered() {
    let template = ChatTemplate::new(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}: {{ m['content'] }}]{% endfor %}{{ eos_token }}\
         {{ '>' if add_generation_prompt }}",
    );
    let messages = [ChatMessage::new("user", "Hi"), ChatMessage::new("assistant", "Hello")];
    let found = template.unwrap().render(&messages, true, [("bos_token", "<s>")]).unwrap();
    assert_eq!(found, "<s>[user: Hi][assistant: Hello]>");
    let template = ChatTemplate::new(
        "{{ tools is defined }} {{ tools is none }} {{ documents is none }} {{ bos_token is defined }} \
         {{ eos_token is defined }}{{ eos_token }}",
    );
    let found = template.unwrap().render(&messages, true, [("bos_token", "<s>")]).unwrap();
    assert_eq!(found, "True True True True False");
}

#[test]
fn a_template_that_is_none_matters_to_conversations_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/decoders/llama3");
    let folder = std::env::temp_dir().join(format!("max-template-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(source.join(name), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("tokenizer_config.json"), r#"{"chat_template": "a\n{% for %}"}"#).unwrap();
    let generator = TextGenerator::load(folder.to_str().unwrap(), &DecoderOptions::default()).unwrap();
    assert!(generator.has_chat_template());
    assert!(!generator.tokens(&Prompt::Text("river".into())).unwrap().is_empty());
    for _ in 0..2 {
        let error = generator.tokens(&Prompt::Chat(vec![ChatMessage::new("user", "Hi")])).unwrap_err();
        assert!(error.message().starts_with("the chat template failed in line 2"), "{error}");
    }
    drop(generator);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn expressions_mean_what_they_mean_in_python() {
    for (source, expected) in [
        (
            "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
            "3 -4 2 3.5 64 4",
        ),
        (
            "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ not 1 == 2 }} {{ 1 == 1.0 }} {{ true == 1 }}",
            "True False True True True",
        ),
        (
            "{{ 2 * 3 ~ 4 }} {{ 'a' 'b' ~ none ~ 1.0 ~ [1, 'x', {'k': 1e16}] }}",
            "64 abNone1.0[1, 'x', {'k': 1e+16}]",
        ),
        (
            "{{ x[::-1] }} {{ x[1:] }} {{ x[-2:] }} {{ x[:-5] }}| {{ list[5:0:-2] }} {{ x[7] }}|",
            "cba bc bc | [2] |",
        ),
        (
            "{{ x.upper().lower().title() ~ x.find('c') ~ x.split('b')[-1] ~ 'a.b'.replace('.', '!') }}",
            "Abc2ca!b",
        ),
        (
            "{{ 'a,b,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ 'a b c'.rsplit(' ', 1)[0] }}",
            "['a', 'b,c'] ['a', 'b'] a b",
        ),
        (
            "{{ 'xxabxx'.strip('x') ~ 'xxab'.lstrip('x') ~ ' z '.rstrip() ~ '|'.join(['p', 'q']) }}",
            "abab zp|q",
        ),
        (
            "{{ map.get('z', 5) }} {{ map.b }} {{ map['a'] }} {{ map.keys() | list }} {% for k, v in map | dictsort %}{{ k }}{{ v }}{% endfor %}",
            "5 1 2 ['b', 'a'] a2b1",
        ),
        (
            "{{ list | sort | join('<') }} {{ list | max }} {{ list | sum }} {{ list | length }} {{ list | first }}",
            "1<2<3 3 6 3 3",
        ),
        (
            "{{ u is defined }} {{ x is not none }} {{ list is iterable }} {{ 4 is divisibleby 2 }} {{ u }}|",
            "False True True True |",
        ),
        (
            "{{ u | default('d') }} {{ '' | default('d', true) }} {{ 'b' in x }} {{ 'q' not in map }}",
            "d d True True",
        ),
        (
            "{{ 'a\\nb' | indent(2) }} {{ 'ab' | capitalize }} {{ '3' | int + 1 }} {{ 2.55 | round(1) }}",
            "a\n  b Ab 4 2.5",
        ),
        (
            "{{ {'a': [1, {}], 'é\"': none} | tojson }} {{ [1] | tojson(indent=1) }}",
            "{\"a\": [1, {}], \"é\\\"\": null} [\n 1\n]",
        ),
        (
            "{{ range(1, 7, 2) | list }} {{ '%s-%.1f%%' % ('a', 2) }} {{ '{}{b}{{'.format(1, b=2) }}",
            "[1, 3, 5] a-2.0% 12{",
        ),
        (
            "{{ ' a  b  '.split(none, 1) }} {{ ' a  b  c '.split(none, 1) }} {{ ' a  b '.split(none, 0) }} {{ '  '.split() }}",
            "['a', 'b  '] ['a', 'b  c '] ['a  b '] []",
        ),
        (
            "{{ (-9223372036854775807 - 1) % -1 }} {{ 2 ** -1 }} {{ 0 ** 0 }} {{ 10.0 ** -400 }}",
            "0 0.5 1 0.0",
        ),
        (
            "{{ '\\033' == '\\x1b' }} {{ '\\0\\1' == '\\x00\\x01' }} {{ '\\101\\1012\\400\\9' }}",
            "True True AA2Ā\\9",
        ),
        (
            "{{ dict([('a', 1), ['b', 2]], c=3) }} {{ dict({'a': 1}, a=2) }} {{ dict(['ab']) }} {{ dict([]) }}",
            "{'a': 1, 'b': 2, 'c': 3} {'a': 2} {'a': 'b'} {}",
        ),
        ("{{ namespace([('a', 1)], c=2).a }} {{ namespace(map).b }}", "1 1"),
        (
            "{{ 'abc' | first }} {{ 'abc' | last }} {{ '' | first }}| {{ 'abc' | reverse }} {{ map | reverse | list }}",
            "a c | cba ['a', 'b']",
        ),
        ("{{ ('ab' * 10000000) | first }}{{ ('ab' * 10000000) | last }}", "ab"),
        (
            "{{ -7.5 // 2 }} {{ 7.5 % -2 }} {{ -1e-20 % 3.0 }} {{ 6.0 // -3 }} {{ -6.0 % 3 }} {{ 6.0 % -3 }}",
            "-4.0 -0.5 3.0 -2.0 0.0 -0.0",
        ),
        (
            "{{ 'a b  c '.rsplit(none, 1) }} {{ 'a\\x1cb\\x0bc'.splitlines() }}",
            "['a b', 'c'] ['a', 'b', 'c']",
        ),
        ("{{ ['\\x9f\\xa0', '\\u200b', '\\U0001f600', 'é'] }}", "['\\x9f\\xa0', '\\u200b', '😀', 'é']"),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn tuples_and_generators_are_no_lists() {
    for (source, expected) in [
        (
            "{{ () }} {{ (1,) }} {{ (1, 'a')[::-1] }} {{ (1,) + (2,) }} {{ (1, 2) * 2 }}",
            "() (1,) ('a', 1) (1, 2) (1, 2, 1, 2)",
        ),
        ("{{ map.items() | list }} {{ map | dictsort }}", "[('b', 1), ('a', 2)] [('a', 2), ('b', 1)]"),
        (
            "{{ (1, 2) == [1, 2] }} {{ (1, 2) == (1, 2) }} {{ (1, 2) < (1, 3) }} {{ [[2], [1, 3], [1]] | sort }}",
            "False True True [[1], [1, 3], [2]]",
        ),
        ("{{ '%s' % [1, 2] }} {{ (1, [2]) | tojson }}", "[1, 2] [1, [2]]"),
        ("{{ 'yes' if [] | map('upper') else 'no' }} {{ (list | map('string'))[0] }}|", "yes |"),
        ("{{ [] | map('upper') is iterable }} {{ [] | map('upper') is sequence }}", "True False"),
        ("{{ list | reverse | list }} {{ list | select('odd') | join('-') }}", "[2, 1, 3] 3-1"),
        // The methods of a map hide what it has under their names, but not in brackets.
        (
            "{{ {'items': 1}.items is callable }} {{ {'items': 1}['items'] }} {{ {'a': 1}['get'] is callable }}",
            "True 1 True",
        ),
        ("{{ [{'keys': 2}] | map(attribute='keys') | list }}", "[2]"),
        ("{{ 'abc'[true] }} {{ '中a b'.title() }}", "b 中A B"),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
    for (source, expected) in [
        ("{{ [1] + (2,) }}", "a list and a tuple cannot be operands"),
        ("{{ list | map('string') | length }}", "a generator has no length"),
        ("{{ '%s%s' % [1, 2] }}", "more places than there are values"),
        ("{{ [1, 'a'] | sort }}", "have no order"),
    ] {
        let message = message(source);
        assert!(message.contains(expected), "{source}: {message}");
    }
}

#[test]
fn filters_are_those_of_jinja() {
    for (source, expected) in [
        (
            "{{ 42 | round }} {{ true | round }} {{ 42 | round(1) }} {{ 42 | round(0, 'floor') }} {{ 2.5 | round }} {{ 7.1 | round(0, 'ceil') }}",
            "42 1 42 42.0 2.0 8.0",
        ),
        (
            "{{ [[1, 'p'], [2, 'q'], [2, 'r'], [1, 's']] | max(attribute=0) }} {{ [[1, 'p'], [2, 'q'], [1, 's']] | min(attribute='0') }}",
            "[2, 'q'] [1, 'p']",
        ),
        (
            "{{ ['b', 'A', 'a'] | max(true) }} {{ ['b', 'A', 'a'] | min }} {{ list | max(attribute=none) }}",
            "b A 3",
        ),
        (
            "{{ ['B', 'b', 'a', 'A'] | sort(true) }} {{ ['B', 'b', 'a', 'A'] | sort(false, true) }} {{ [1.5, 1, true] | sort(reverse=true) }}",
            "['B', 'b', 'a', 'A'] ['A', 'B', 'a', 'b'] [1.5, 1, True]",
        ),
        (
            "{% for k, v in map | dictsort(reverse=true) %}{{ k }}{{ v }}{% endfor %} {% for k, v in {'a': 2, 'b': 2, 'c': 1} | dictsort(false, 'value', true) %}{{ k }}{{ v }}{% endfor %}",
            "b1a2 a2b2c1",
        ),
        (
            "{{ {'é': '😀\\u2028\\x7f\\x01\\n', 'b': 1} | tojson(true) }}",
            r#"{"\u00e9": "\ud83d\ude00\u2028\u007f\u0001\n", "b": 1}"#,
        ),
        (
            "{{ {'z': 1, 'b': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }}",
            r#"{"b": {"c": 2, "d": 1}, "z": 1}"#,
        ),
        (
            "{{ {2: 1, 10: 2, true: 3, 1.5: 4} | tojson(false, none, none, true) }}",
            r#"{"true": 3, "1.5": 4, "2": 1, "10": 2}"#,
        ),
        ("{{ [1, [2], {}] | tojson(false, 2) }}", "[\n  1,\n  [\n    2\n  ],\n  {}\n]"),
        ("{{ [1, [2]] | tojson(indent='--') }}", "[\n--1,\n--[\n----2\n--]\n]"),
        ("{{ [1] | tojson(indent=20) }}{{ [1] | tojson(indent=0) }}", "[\n                    1\n][\n1\n]"),
        (
            "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }} {{ [1e400, -1e400] | tojson }}",
            r#"{"b":1,"a":2} [Infinity, -Infinity]"#,
        ),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn formats_are_those_of_python() {
    for (source, expected) in [
        (
            "{{ '%.3s|%3s|%5s|%-5s|%05s|%5.1s|%.0s|' % ('abcdef', 'abcd', 'é', 'é', 'a', 'ab', 'ab') }}",
            "abc|abcd|    é|é    |    a|    a||",
        ),
        ("{{ '%r|%5r|%.2r' % ('q', none, 'abc') }}", "'q'| None|'a"),
        (
            "{{ '%5d|%-5d|%05d|%-05d|%+d|% d|%+05d|% 05d' % (42, 42, -42, 5, 5, 5, 5, 5) }}",
            "   42|42   |-0042|5    |+5| 5|+0005| 0005",
        ),
        (
            "{{ '%.3d|%05.3d|%.20d|%i|%d|%d' % (5, 5, 5, 3.9, -0.5, true) }}",
            "005|00005|00000000000000000005|3|0|1",
        ),
        ("{{ '%x|%X|%08x|%o|%5x|' % (255, 255, -255, 8, 10) }}", "ff|FF|-00000ff|10|    a|"),
        (
            "{{ '%5.1f|%-8.2f|%08.2f|%.0f|%.f|%f' % (3.14159, -2.5, -2.5, 2.5, 3.5, 1) }}",
            "  3.1|-2.50   |-0002.50|2|4|1.000000",
        ),
        (
            "{{ '%+.1f|%05f|%f|%f|%05f' % (1, 1e999, -1e999, -0.0, 1e999 - 1e999) }}",
            "+1.0|00inf|-inf|-0.000000|00nan",
        ),
        (
            "{{ '%d' % 1e25 }} {{ '%%|%s' % 1 }} {{ '%5.1f|%s' | format(2, 'a') }}",
            "10000000000000000905969664 %|1   2.0|a",
        ),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn statements_have_their_scopes() {
    for (source, expected) in [
        ("{% set a = 1 %}{% for i in [1, 2] %}{% set a = i %}{{ a }}{% endfor %}{{ a }}", "121"),
        ("{% if true %}{% set a = 2 %}{% endif %}{{ a }}", "2"),
        (
            "{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
            "4",
        ),
        (
            "{% macro f(a, b='-') %}{{ a ~ b ~ i }}{% endmacro %}{% for i in [1] %}{{ f(i, b=2) ~ f(3) }}{% endfor %}",
            "123-",
        ),
        (
            "{% macro f(a, b, c=0) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ [f][0](1, *[2, 3]) ~ f(*list) }}",
            "123312",
        ),
        ("{% set t %}a{{ x }}{% endset %}{{ t | upper }}{% filter upper %}b{% endfilter %}", "AABCB"),
        ("{% for k, v in map.items() if v < 2 %}{{ k }}{{ v }}{% else %}none{% endfor %}", "b1"),
        (
            "{% for i in [] %}{% else %}empty{% endfor %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
            "empty3",
        ),
        (
            "{% for i in list %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{{ ',' if not loop.last }}{% endfor %}",
            "1a,2b,3a",
        ),
        (
            "{% for i in list %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}",
            "32",
        ),
        ("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% generation %}{{ b }}{% endgeneration %}", "122"),
        ("  {% if true %}  \n  a\n  {%- endif %}\n {# c #}\nb{{- 1 -}}  \n c\n", "  \n  ab1c"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n  {%+ if true %}d{% endif +%}\ne", "a\n  b\nc\n  d\ne"),
        ("{% for i in [] %}{% else %}{% set x = 1 %}{{ x }}{% endfor %}{{ x }}", "1abc"),
        ("{% for i in list %}{% set z %}{{ i }}{% break %}{% endset %}{{ i }}{% endfor %}{{ z }}-", "-"),
        (
            "{% for i in list %}{% filter upper %}a{{ i }}{% if i == 1 %}{% continue %}{% endif %}{% endfilter %}{% endfor %}",
            "A3A2",
        ),
        (
            "{% for i in [0] %}{{ loop.foo is defined }}{{ loop.foo }}{% for j in [0] %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}{% endfor %}",
            "False10",
        ),
        (
            "{% if true %}{% macro f() %}{{ x }}{% endmacro %}{% endif %}{% for i in [0] %}{{ f() }}{% endfor %}",
            "abc",
        ),
        (
            "{% raw %}{{ a }} {% if %} {# c #}{% raw %}{% endraw %}{{ 1 }}",
            "{{ a }} {% if %} {# c #}{% raw %}1",
        ),
        (
            "a  \n  {% raw %}  \n  {{ a }}\n  {% endraw %}  \nb{% raw %}\nc{% endraw %}\nd",
            "a  \n  \n  {{ a }}\n  \nb\ncd",
        ),
        ("a  \n  {%- raw -%}  \n  {{ a }}\n  {%- endraw -%}  \nb", "a{{ a }}b"),
        (
            "{% raw %}a\n  {%+ endraw +%}\n{%raw%}{%endraw%}{% raw %}{% endraw x %}{% endraw %}",
            "a\n  \n{% endraw x %}",
        ),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn errors_name_the_line() {
    for (source, expected) in [
        ("a\n{% if %}", "the chat template failed in line 2: a value was expected, not the end of the tag"),
        (
            "\n\n{{ raise_exception('roles must alternate') }}",
            "the chat template failed in line 3: roles must alternate",
        ),
        ("{{ 1 / 0 }}", "in line 1: a number is divided by zero"),
        ("{% for a in x %}", "'{% endfor %}' is missing"),
        ("{{ a.b.c }}", "what has no value has no 'b' either"),
        ("{{ 'a' + 1 }}", "a text and a number cannot be operands"),
        ("{{ x | nothing }}", "filter 'nothing': there is no such filter"),
        ("{{ x.nothing() }}", "method 'nothing': a text has no such method"),
        ("{{ x is nothing }}", "test 'nothing': there is no such test"),
        ("{{ nothing() }}", "there is no function 'nothing'"),
        ("{{ x | trim(1, 2) }}", "it takes at most 1 arguments, not 2"),
        ("{% include 'a' %}", "the tag 'include' has no meaning here"),
        ("{{ 9223372036854775807 + 1 }}", "a number does not fit 64 bits"),
        ("{{ 'a }}", "a text is never closed"),
        ("{{ x ! }}", "'!' has no meaning in a tag"),
        ("{# a", "a comment is never closed"),
        ("{% set x.a = 1 %}", "'x' is no namespace"),
        ("{% macro f(a, a) %}{% endmacro %}", "the macro 'f' has two parameters 'a'"),
        ("{{ f(a=1, a=2) }}", "there are two arguments 'a'"),
        ("{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}", "its argument 'a' is passed twice"),
        ("{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "it has no argument 'b'"),
        ("{% for i in x %}{% macro f() %}{% endmacro %}{% endfor %}", "the macro 'f' is defined in a loop"),
        (
            "{% for i in x %}{% else %}{% macro f() %}{% endmacro %}{% endfor %}",
            "the macro 'f' is defined in a loop",
        ),
        ("{% with %}{% if x %}{% macro f() %}{% endmacro %}{% endif %}{% endwith %}", "or another block"),
        (
            "{% macro f() %}{% macro g() %}{% endmacro %}{% endmacro %}",
            "the macro 'g' is defined in a loop, a macro",
        ),
        ("{% set a %}{% macro f() %}{% endmacro %}{% endset %}", "or another block"),
        ("{% filter upper %}{% macro f() %}{% endmacro %}{% endfilter %}", "or another block"),
        ("a{% break %}b", "'break' is outside of a loop"),
        ("{% for i in x %}{% else %}{% continue %}{% endfor %}", "'continue' is outside of a loop"),
        ("{% macro f() %}{% break %}{% endmacro %}", "'break' is outside of a loop"),
        ("{{ u | int }}", "what has no value is no number"),
        ("{{ 'a' in namespace(a=1) }}", "a namespace has no items"),
        ("{% raw %}a{% if %}", "'{% endraw %}' is missing"),
        ("{{ 0 ** -1 }}", "a power is no number"),
        ("{{ (-8) ** 0.5 }}", "a power is no number"),
        ("{{ 10.0 ** 400 }}", "a power is no number, or does not fit 64 bits"),
        ("{{ (-9223372036854775807 - 1) // -1 }}", "a number does not fit 64 bits"),
        ("{{ dict([1]) }}", "function 'dict': a number has no items"),
        ("{{ dict([(1, 2, 3)]) }}", "a pair was expected, not 3 values"),
        ("{{ dict(map, map) }}", "it takes at most 1 argument without a name, not 2"),
        ("{{ 42 | round(0, 'up') }}", "its method is 'common', 'ceil' or 'floor'"),
        ("{{ map | dictsort(by='both') }}", "it sorts by 'key' or by 'value'"),
        ("{{ {1: 1, 'a': 2} | tojson(sort_keys=true) }}", "a text and a number have no order"),
        ("{{ '%5%' % 1 }}", "'%%', which has no meaning"),
        ("{{ '%#x' % 1 }}", "'%#', which has no meaning"),
        ("{{ '%-' % 1 }}", "a format ends within a place"),
        ("{{ '%100d' % 1 }}", "a width or a precision of more than 99"),
        ("{{ '%.99999999999999999999f' % 1 }}", "a width or a precision of more than 99"),
        ("{{ '%x' % 1.5 }}", "an integer was expected, not a number"),
        ("{{ '%d' % 1e999 }}", "an integer was expected, not a number"),
        ("{{ '%d' % '5' }}", "an integer was expected, not a text"),
        ("{{ '%f' % '5' }}", "a number was expected, not a text"),
        ("{{ '{:.2f}'.format(1) }}", "more than a number or a name in '{:.2f}'"),
        ("{{ '{!r}'.format(1) }}", "more than a number or a name in '{!r}'"),
        ("{{ '{a.b}'.format(a=map) }}", "more than a number or a name in '{a.b}'"),
        ("{{ '{0[b]}'.format(map) }}", "more than a number or a name in '{0[b]}'"),
    ] {
        let message = message(source);
        assert!(message.contains(expected), "{source}: {message}");
    }
    let long = "a".repeat(MOST_SOURCE + 1);
    assert!(ChatTemplate::new(&long).err().unwrap().message().contains("more than 1048576"));
}

/// A statement again and again, on a namespace with a text and a list.
fn repeated(statement: &str) -> String {
    format!(
        "{{% macro twice(s) %}}{{{{ s }}}}{{{{ s }}}}{{% endmacro %}}\
         {{% set n = namespace(s='ab', l=[1, 2], k='') %}}{{% for a in range(1000) %}}{{% for b in range(1000) %}}\
         {statement}{{% endfor %}}{{% endfor %}}{{{{ n.s }}}}"
    )
}

#[test]
fn no_template_grows_or_runs_without_end() {
    let memory = "makes more than 128 MB of text and lists";
    let depth = "nested deeper than";
    for (statement, expected) in [
        // Texts that double.
        ("{% set n.s = n.s ~ n.s %}", memory),
        ("{% set n.s = n.s + n.s %}", memory),
        ("{% set n.s = n.s * 3 %}", memory),
        ("{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}", memory),
        ("{% set n.s = n.s ~ n.s | upper %}", memory),
        ("{% set n.s = twice(n.s) %}", memory),
        ("{% set n.s = [n.s, n.s] | join(n.s) %}", memory),
        ("{% set n.s = n.s.join([n.s, n.s, n.s]) %}", memory),
        ("{% set n.s = n.s.replace('a', n.s) %}", memory),
        ("{% set n.s = n.s | replace('', n.s) %}", memory),
        ("{% set n.s = '{0}{0}'.format(n.s) %}", memory),
        ("{% set n.s = '%s%s' | format(n.s, n.s) %}", memory),
        ("{% set n.s = '%s%s' % (n.s, n.s) %}", memory),
        ("{% set n.s = n.s | tojson | tojson %}", "more than"),
        ("{% set n.s = (n.s ~ 'é') | tojson(true) ~ n.s %}", "more than"),
        ("{% set n.s = [n.s] | tojson(indent=n.s) %}", "more than"),
        ("{% set n.s = [1] | tojson(indent=9000000000000000000) %}", memory),
        ("{% set n.l = [n.l, {'b': n.s, 'a': n.l}] | tojson(sort_keys=true) %}", "more than"),
        ("{% set n.s = '%99.99s%-99s' % (n.s, n.s) %}{% set n.s = '%s%s' % (n.s, n.s) %}", memory),
        ("{% set n.s = [n.s, n.s] | string %}", memory),
        ("{% set n.s = ('\\n' ~ n.s) | indent(1000000) %}", memory),
        ("{% set n.s = n.s | indent(n.s, true) %}", memory),
        ("{% filter replace('a', n.s) %}{{ n.s }}{% set n.s = n.s ~ 'aa' %}{% endfilter %}", memory),
        ("{{ n.s }}{% set n.s = n.s ~ n.s %}", memory),
        // Single steps that would be large.
        ("{% set n.s = 'ab' * 9000000000000000000 %}", memory),
        ("{% set n.l = n.l * 9000000000000000000 %}", memory),
        ("{% set n.s = 'a\\nb' | indent(9000000000000000000) %}", memory),
        ("{% set n.s = range(9000000000000000000) %}", "more than 100000"),
        // Lists that double, as they are or only if they are written.
        ("{% set n.l = n.l + n.l %}", memory),
        ("{% set n.l = (n.l ~ n.l) | list %}", "more than"),
        ("{% set n.l = n.l | map('string') | join | list %}{% set n.l = n.l + n.l %}", "more than"),
        ("{% set n.l = [n.l, n.l] %}", depth),
        ("{% set n.l = {'a': n.l} %}", depth),
        ("{% set n.l = [[]] %}{% set n.x = n %}{% set n.l = [n, n] %}", "more than"),
        // What is small, but takes long.
        ("{% for c in range(1000) %}{% endfor %}", "more than"),
        ("{% set n.k = namespace(a=1) %}", "more than"),
        ("{% if n.l | sort == 1 %}{% endif %}", "more than"),
        ("{% if x | upper | lower | title == 1 %}{% endif %}", "more than"),
    ] {
        let message = message(&repeated(statement));
        assert!(message.contains(expected), "{statement}: {message}");
        assert!(message.len() < 1000, "{statement}");
    }
    // Whatever one template tried, the next one works.
    assert_eq!(text("{{ x }}"), "abc");
}

#[test]
fn what_is_looked_for_is_paid_for() {
    // Making a text and looking at it once more leave too few steps for a third time.
    let large = "{% set s = 'a' * 100000000 %}";
    for search in ["find(s)", "rfind(s)", "count(s)", "split(s)", "rsplit(s)", "replace(s, '')"] {
        let message = message(&format!("{large}{{% if s == s %}}{{{{ 'b'.{search} }}}}{{% endif %}}"));
        assert!(message.contains("16 million steps"), "{search}: {message}");
    }
    let message = message(&format!("{large}{{% set n = namespace({{s: 1}}) %}}{{{{ n[s] }}}}"));
    assert!(message.contains("16 million steps"), "{message}");
}

#[test]
fn names_are_paid_for() {
    let named = |count: usize| (0..count).map(|n| format!("a{n}=1")).collect::<Vec<_>>().join(", ");
    // Arguments are copied for each item.
    for (items, filter) in [("range(100000)", "map('format'"), ("[[1, 2]] * 100000", "map('map', 'format'")] {
        let message = message(&format!("{{{{ ({items}) | {filter}, {}) | length }}}}", named(10_000)));
        assert!(message.contains("more than"), "{filter}: {message}");
    }
    // Each argument is compared with each parameter.
    let (parameters, arguments) = (named(10_000), named(9_999));
    let call = format!("{{% macro f(b, {parameters}) %}}{{% endmacro %}}{{{{ f({arguments}) }}}}");
    assert!(message(&call).contains("16 million steps"));
    let call = format!("{{{{ '{}'.format({arguments}) }}}}", "{a9998}".repeat(10_000));
    assert!(message(&call).contains("16 million steps"));
    // Names in templates are short.
    assert_eq!(text(&format!("{{{{ {} }}}}", "a".repeat(1000))), "");
    for source in ["{{ NAME }}", "{{ x.NAME }}", "{{ f(NAME=1) }}", "{% NAME %}", "{{ x | NAME }}"] {
        let message = message(&source.replace("NAME", &"a".repeat(1001)));
        assert!(message.contains("a name has 1001 bytes, more than 1000"), "{source}: {message}");
    }
}

#[test]
fn letters_that_grow_are_paid_for() {
    for grow in ["upper", "lower", "title", "capitalize"] {
        let message = message(&format!("{{{{ ('ΐ' * 25000000) | {grow} | length }}}}"));
        assert!(message.contains("makes more than 128 MB"), "{grow}: {message}");
    }
    assert_eq!(text("{{ ('ΐ' * 2) | upper | length }}"), "6");
}

#[test]
fn messages_are_short() {
    for (source, expected) in [
        ("{{ raise_exception('é' * 100000) }}", "in line 1: ééé"),
        ("{{ [x] | map('é' * 100000) }}", "…': there is no such filter"),
        ("{{ [x] | select('é' * 100000) }}", "…': there is no such test"),
        ("{{ [[[x]]] | map('map', 'map', 'é' * 100000) }}", "…': there is no such filter"),
        ("{{ [map] | map(attribute='c.' ~ 'é' * 100000) }}", "what has no value has no 'éé"),
        ("{{ ('{' ~ ':' * 100000 ~ '}').format(1) }}", "more than a number or a name in '{::"),
    ] {
        let message = message(source);
        assert!(message.contains(expected), "{source}: {message}");
        assert!(message.contains('…') && message.chars().count() < 1100, "{source}: {message}");
    }
}

#[test]
fn shared_values_are_walked_only_so_far() {
    let doubled = "{% set n = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}\
                   {% set n.b = [n.b, n.b] %}{% endfor %}";
    for use_ in
        ["{{ n.a == n.b }}", "{{ n.a in [n.b] }}", "{{ [n.a, n.b] | unique }}", "{{ {n.a: 1, n.b: 2} }}"]
    {
        let message = message(&format!("{doubled}{use_}"));
        assert!(message.contains("16 million steps"), "{use_}: {message}");
    }
    for use_ in ["{{ n.a }}", "{{ n.a | tojson }}", "{{ n.a ~ '' }}", "{{ n.a | string | length }}"] {
        let message = message(&format!("{doubled}{use_}"));
        assert!(message.contains("more than"), "{use_}: {message}");
    }
}

#[test]
fn nothing_is_nested_without_end() {
    let many = 100_000;
    for source in [
        format!("{{{{ {}1{} }}}}", "(".repeat(many), ")".repeat(many)),
        format!("{{{{ {}1{} }}}}", "[".repeat(many), "]".repeat(many)),
        format!("{{{{ {}1 }}}}", "not ".repeat(many)),
        format!("{{{{ {}1 }}}}", "-".repeat(many)),
        format!("{{{{ 1{} }}}}", " if 0 else 1".repeat(many / 2)),
        format!("{{{{ {}1{} }}}}", "{1: ".repeat(many), "}".repeat(many)),
        format!("{{{{ {}1{} }}}}", "x[".repeat(many), "]".repeat(many)),
        format!("{{{{ {}1{} }}}}", "x(".repeat(many), ")".repeat(many)),
        "{% if 1 %}".repeat(many),
        "{% for a in x %}".repeat(many / 2),
        format!("{{% set {}a{} = 1 %}}", "(".repeat(many), ")".repeat(many)),
    ] {
        let message = message(&source);
        assert!(message.contains("nested deeper than 64"), "{message}");
    }
    let calls = "{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}";
    assert!(message(calls).contains("nested deeper than 200"));
    let mapped = format!("{{{{ [x] | map({}'list') }}}}", "'map', ".repeat(300));
    assert!(message(&mapped).contains("nested deeper than 200"));
    // Chains are not nested, however long they are.
    assert_eq!(text(&format!("{{{{ 1{} }}}}", "+1".repeat(many))), (many + 1).to_string());
    assert_eq!(text(&format!("{{{{ x{} }}}}", "|trim".repeat(many))), "abc");
    assert_eq!(text(&format!("{{{{ x{} }}}}", "[0]".repeat(many))), "a");
    assert_eq!(
        text(&format!("{{% if 0 %}}{}{{% else %}}b{{% endif %}}", "{% elif 0 %}a".repeat(many / 2))),
        "b"
    );
}

proptest::proptest! {
    /// Parts of templates in any order are a template or an error.
    #[test]
    fn whatever_a_template_says_it_ends(parts in proptest::collection::vec(0..PARTS.len(), 0..40)) {
        let source: String = parts.iter().map(|&part| PARTS[part]).collect();
        if let Err(error) = with_examples(&source) {
            assert!(error.message().starts_with("the chat template failed"), "{source}: {error}");
        }
    }
}

const PARTS: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    " -%}",
    "{{- ",
    " -}}",
    "{# ",
    " #}",
    "x",
    "list",
    "n",
    "loop.index",
    "if ",
    "else ",
    "elif ",
    "endif ",
    "for a in ",
    "endfor",
    "set a = ",
    "set a",
    "endset",
    "raw",
    "endraw",
    "macro f(a, b=1)",
    "endmacro",
    "f(1)",
    "1",
    "-1",
    "2.5",
    "'t'",
    "'%-5d'",
    "none",
    "true",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    " + ",
    " - ",
    " * ",
    " ~ ",
    " ** ",
    " // ",
    " % ",
    " == ",
    " < ",
    " in ",
    " not ",
    " and ",
    " or ",
    " is ",
    "string ",
    "defined ",
    ".",
    "|",
    "join",
    "map('upper')",
    "tojson",
    "sort",
    "length",
    "indent(2)",
    "split('a')",
    "[::-1]",
    "[1:]",
    "namespace(a=1)",
    "range(3)",
    "é",
    "\n",
    " ",
];

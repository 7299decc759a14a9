use std::fmt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::*;

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
    let found = template.unwrap().render(&messages, true, Some("<s>"), None).unwrap();
    assert_eq!(found, "<s>[user: Hi][assistant: Hello]>");
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
            "{{ range(1, 7, 2) | list }} {{ '%s-%.1f%%' % ['a', 2] }} {{ '{}{b}{{'.format(1, b=2) }}",
            "[1, 3, 5] a-2.0% 12{",
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
        "{{% set n = namespace(s='ab', l=[1, 2], k='') %}}{{% for a in range(1000) %}}{{% for b in range(1000) %}}\
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
        ("{% macro f() %}{{ n.s }}{% endmacro %}{% set n.s = n.s ~ n.s | upper %}", memory),
        ("{% set n.s = [n.s, n.s] | join(n.s) %}", memory),
        ("{% set n.s = n.s.join([n.s, n.s, n.s]) %}", memory),
        ("{% set n.s = n.s.replace('a', n.s) %}", memory),
        ("{% set n.s = n.s | replace('', n.s) %}", memory),
        ("{% set n.s = '{0}{0}'.format(n.s) %}", memory),
        ("{% set n.s = '%s%s' | format(n.s, n.s) %}", memory),
        ("{% set n.s = '%s%s' % [n.s, n.s] %}", memory),
        ("{% set n.s = n.s | tojson | tojson %}", "more than"),
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
    "macro f(a, b=1)",
    "endmacro",
    "f(1)",
    "1",
    "-1",
    "2.5",
    "'t'",
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

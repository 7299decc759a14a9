//! The identities that users rely on, and the laws of the algebra on random expressions.

use proptest::prelude::*;

use super::*;

fn d(text: &str) -> Dim {
    text.parse().unwrap()
}

#[test]
fn canonical_forms_print_as_documented() {
    let cases = [
        ("x - x", "0"),
        ("2*x + 3*x", "x * 5"),
        ("(4*x) // 4", "x"),
        ("(4*x + 8) // 4", "x + 2"),
        ("-x - 4", "(x * -1) + -4"),
        ("b + a", "a + b"),
        ("(a + b) * 2", "(a * 2) + (b * 2)"),
        ("(x // 4) * 4", "(x // 4) * 4"),
        ("x + 4", "x + 4"),
        ("batch*5 + 3 - 3", "batch * 5"),
        ("(a*b + c) * D // D", "(a * b) + c"),
        ("(2*x) // 4", "x // 2"),
        ("x // 2 // 3", "x // 6"),
        ("x % 4 + (x // 4) * 4", "x"),
        ("(x + 5) // 4", "((x + 1) // 4) + 1"),
        ("(2*x + 1) // 4", "x // 2"),
        ("x // -2", "(x * -1) // 2"),
        ("((x*2 + 1) // 3) // 2", "x // 3"),
        ("((b * -2) // 4) // 40", "(b * -1) // 80"),
        ("(x*x + 2*x + 1) // (x + 1)", "x + 1"),
        ("x // (y + 1)", "x // (y + 1)"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 4", "1"),
    ];
    for (text, form) in cases {
        assert_eq!(d(text).to_string(), form, "{text}");
    }
    assert_eq!(format!("{:?}", d("x * 5")), "Dim('x') * Dim(5)");
    assert_eq!(format!("{:?}", d("3")), "Dim(3)");
}

#[test]
fn equality_is_structural() {
    assert_eq!(d("(a + 1) * 2"), d("a * 2 + 2"));
    assert_eq!(d("-x - 4"), d("x + 4").neg().unwrap());
    assert!(matches!(d("x - x"), Dim::Static(0)) && matches!(d("4*x // 4"), Dim::Symbolic(_)));
    assert_eq!(d("a*b + c").parameters().iter().map(|s| &**s).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn errors_name_the_cause() {
    let kind = |text: &str| text.parse::<Dim>().unwrap_err().kind();
    assert_eq!(kind("x // 0"), crate::ErrorKind::ZeroDivision);
    assert_eq!(kind("9223372036854775807 + 1"), crate::ErrorKind::Value);
    assert_eq!(kind("9223372036854775808"), crate::ErrorKind::Value);
    assert_eq!(kind("x * 9223372036854775807 * 2"), crate::ErrorKind::Value);
    assert!(Dim::symbolic("1a").unwrap_err().message().contains("Invalid name for symbolic dimension"));
    for bad in ["", "x +", "(x", "x y", "x ^ 2", "*"] {
        assert!(bad.parse::<Dim>().is_err(), "{bad}");
    }
    assert!("(".repeat(100_000).parse::<Dim>().is_err());
    let product = (0..30).map(|i| format!("(a{i} + b{i})")).collect::<Vec<_>>().join(" * ");
    assert!(product.parse::<Dim>().unwrap_err().message().contains("too large"));
    let nested = "y".to_string() + &" % x % y".repeat(40);
    assert!(nested.parse::<Dim>().unwrap_err().message().contains("too large"));
}

#[test]
fn binding_solves_linear_dims() {
    let mut bindings = Bindings::new();
    assert_eq!(d("x * 2 + 1").bind(7, &mut bindings), Ok(true));
    assert_eq!(bindings["x"], 3);
    assert_eq!(d("x + y").bind(10, &mut bindings), Ok(true));
    assert_eq!(bindings["y"], 7);
    assert_eq!(d("z * w").bind(10, &mut bindings), Ok(false));
    assert_eq!(d("x * y // 2").evaluate(&bindings), Ok(10));
    assert!(d("z").evaluate(&bindings).unwrap_err().message().contains("'z'"));
}

#[test]
fn names_are_letters_numbers_and_underscores() {
    for good in ["a", "_", "Z9", "a_b", "aé", "aж", "a中", "a٣", "a½", "aⅷ", "aª"] {
        assert!(Dim::symbolic(good).is_ok(), "{good:?}");
    }
    for bad in ["", "1", "é", "½", "a b", "a-b", "a\n", "\na", "a\u{203f}", "a\u{200d}"] {
        let error = Dim::symbolic(bad).unwrap_err();
        assert!(error.message().contains("Invalid name for symbolic dimension"), "{bad:?}");
    }
}

#[test]
fn substitution_is_simultaneous() {
    let swap = |name: &str| Some(if name == "a" { d("b") } else { d("a") });
    assert_eq!(d("a * 2 + b").substitute(&swap), Ok(d("b * 2 + a")));
    let zero = |name: &str| (name == "b").then_some(Dim::Static(0));
    assert_eq!(d("a // b").substitute(&zero).unwrap_err().kind(), crate::ErrorKind::ZeroDivision);
    let most = |_: &str| Some(Dim::Static(i64::MAX));
    assert_eq!(d("a + 1").substitute(&most).unwrap_err().kind(), crate::ErrorKind::Value);
}

#[test]
fn dims_differ_only_if_they_do_for_all_sizes() {
    let differs = |a: &str, b: &str| d(a).differs(&d(b));
    assert!(differs("3", "4") && differs("a", "a + 1") && differs("a // 2", "a // 2 - 1"));
    assert!(!differs("3", "3") && !differs("a", "3") && !differs("a", "b") && !differs("a", "a * 2"));
}

/// Random expressions as text with a direct evaluation to compare with.
fn expression() -> impl Strategy<Value = String> {
    let leaf =
        prop_oneof![Just("x".to_string()), Just("y".to_string()), (-9i64..10).prop_map(|n| n.to_string())];
    leaf.prop_recursive(4, 24, 2, |inner| {
        (inner.clone(), prop_oneof![Just("+"), Just("-"), Just("*"), Just("//"), Just("%")], inner)
            .prop_map(|(a, op, b)| format!("({a} {op} {b})"))
    })
}

/// Evaluates text without normalizing: substitutes numbers first, then parses.
fn direct(text: &str, x: i64, y: i64) -> Result<i64> {
    let text = text.replace('x', &format!("({x})")).replace('y', &format!("({y})"));
    text.parse::<Dim>().map(|d| d.as_static().unwrap())
}

proptest! {
    #[test]
    fn normalizing_keeps_the_value(text in expression(), x in 0i64..50, y in 0i64..50) {
        let bindings = Bindings::from([("x".into(), x), ("y".into(), y)]);
        if let (Ok(expected), Ok(dim)) = (direct(&text, x, y), text.parse::<Dim>())
            && let Ok(value) = dim.evaluate(&bindings)
        {
            prop_assert_eq!(value, expected, "{} became {}", text, dim);
        }
    }

    #[test]
    fn printing_leads_back(text in expression()) {
        if let Ok(dim) = text.parse::<Dim>() {
            prop_assert_eq!(dim.to_string().parse::<Dim>().unwrap(), dim);
        }
    }

    #[test]
    fn laws(a in expression(), b in expression(), c in expression()) {
        if let (Ok(a), Ok(b), Ok(c)) = (a.parse::<Dim>(), b.parse::<Dim>(), c.parse::<Dim>()) {
            prop_assert_eq!(a.add(&b).ok(), b.add(&a).ok());
            prop_assert_eq!(a.mul(&b).ok(), b.mul(&a).ok());
            if let (Ok(bc), Ok(ab), Ok(ac)) = (b.add(&c), a.mul(&b), a.mul(&c))
                && let (Ok(left), Ok(right)) = (a.mul(&bc), ab.add(&ac))
            {
                prop_assert_eq!(left, right);
            }
            prop_assert_eq!(a.sub(&a).unwrap(), Dim::Static(0));
        }
    }
}

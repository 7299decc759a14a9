//! Which values belong to which weights, and what is wrong if they do not fit.

use max_core::{DType, Dim, Error, QuantizationEncoding, Result, Shape, TensorType};
use max_weights::names::{MOST_COMPARISONS, similar};

/// A weight of a model.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type.
    pub ty: &'a TensorType,
    /// How its elements are encoded.
    pub encoding: Option<QuantizationEncoding>,
    /// The alignment it needs, if different from that of its dtype.
    pub align: Option<usize>,
}

/// A value for a weight.
#[derive(Clone, Debug)]
pub struct Given<'a> {
    /// The name it was given under.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub shape: &'a [usize],
    /// How its elements are encoded.
    pub encoding: Option<QuantizationEncoding>,
    /// Where its data is.
    pub address: usize,
}

/// How strictly values must fit.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Whether missing and unexpected names are errors.
    pub strict: bool,
    /// Whether an encoded value may have another encoding than its weight, and so another type.
    pub override_encoding: bool,
    /// The alignment of all weights, if it is not their own.
    pub alignment: Option<usize>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules { strict: true, override_encoding: false, alignment: None }
    }
}

/// For each weight the number of its value, `None` if it is missing and that is no error. An error names everything that
/// does not fit.
pub fn match_weights(expected: &[Expected], given: &[Given], rules: Rules) -> Result<Vec<Option<usize>>> {
    let mut order: Vec<usize> = (0..given.len()).collect();
    order.sort_by_key(|&at| given[at].name);
    let find = |name: &str| order.binary_search_by(|&at| given[at].name.cmp(name)).ok().map(|at| order[at]);
    let found: Vec<Option<usize>> = expected.iter().map(|weight| find(weight.name)).collect();
    let mut complaints = Vec::new();
    if rules.strict {
        let mut used = vec![false; given.len()];
        found.iter().flatten().for_each(|&at| used[at] = true);
        let names = expected.iter().zip(&found).filter(|(_, found)| found.is_none());
        let missing: Vec<&str> = names.map(|(weight, _)| weight.name).collect();
        let unexpected: Vec<&str> = order.iter().filter(|&&at| !used[at]).map(|&at| given[at].name).collect();
        if !missing.is_empty() {
            complaints.push(format!("Missing required weights: {}", listed(&missing, &unexpected)));
        }
        if !unexpected.is_empty() {
            complaints.push(format!("Unexpected keys in state_dict: {}", listed(&unexpected, &[])));
        }
    }
    for (weight, value) in expected.iter().zip(&found) {
        if let Some(at) = value {
            complaints.extend(check(weight, &given[*at], rules));
        }
    }
    if complaints.is_empty() { Ok(found) } else { Err(Error::value(complaints.join("\n"))) }
}

/// What is wrong with a value.
fn check(weight: &Expected, value: &Given, rules: Rules) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = weight.name;
    let encoding =
        |encoding: Option<QuantizationEncoding>| encoding.map_or("none", |encoding| encoding.name());
    let differs = value.encoding.is_some() && value.encoding != weight.encoding;
    if differs && !rules.override_encoding {
        wrong.push(format!(
            "Weight '{name}' has another quantization encoding: expected {}, got {}",
            encoding(weight.encoding),
            encoding(value.encoding)
        ));
    }
    if !differs {
        let fits = weight.ty.shape.rank() == value.shape.len()
            && weight.ty.shape.iter().zip(value.shape).all(|(dim, &size)| match dim {
                Dim::Static(expected) => usize::try_from(*expected) == Ok(size),
                _ => true,
            });
        if !fits {
            let got = Shape::from(value.shape.iter().map(|&size| Dim::from(size)).collect::<Vec<_>>());
            wrong.push(format!("Weight '{name}' has another shape: expected {}, got {got}", weight.ty.shape));
        }
        if weight.ty.dtype != value.dtype {
            wrong.push(format!(
                "Weight '{name}' has another dtype: expected {}, got {}",
                weight.ty.dtype, value.dtype
            ));
        }
    }
    let align = rules.alignment.or(weight.align).unwrap_or(value.dtype.align()).max(1);
    if !value.address.is_multiple_of(align) {
        wrong.push(format!(
            "Found unaligned weight '{name}': its data is not at a multiple of {align} bytes; copy it, or allow it with \
             weight_alignment=1"
        ));
    }
    wrong
}

/// Names in a sentence, with similar ones among others.
fn listed(names: &[&str], others: &[&str]) -> String {
    let suggest = names.len().saturating_mul(others.len()) <= MOST_COMPARISONS;
    let nearest = |name| {
        suggest.then(|| similar(name, others.iter().copied())).and_then(|found| found.first().copied())
    };
    let listed = names.iter().map(|name| match nearest(name) {
        Some(other) => format!("'{name}' (did you mean '{other}'?)"),
        None => format!("'{name}'"),
    });
    listed.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use max_core::DeviceRef;

    use super::*;

    fn message(expected: &[(&str, &[i64])], given: &[(&str, DType, &[usize])], rules: Rules) -> String {
        let types: Vec<_> = expected
            .iter()
            .map(|(_, shape)| TensorType::new(DType::Float32, shape.to_vec(), DeviceRef::CPU))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .zip(&types)
            .map(|(&(name, _), ty)| Expected { name, ty, encoding: None, align: None })
            .collect();
        let given: Vec<_> = given
            .iter()
            .map(|&(name, dtype, shape)| Given { name, dtype, shape, encoding: None, address: 4 })
            .collect();
        match match_weights(&expected, &given, rules) {
            Ok(found) => format!("{found:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn values_are_found_by_name() {
        let given: &[_] = &[("b", DType::Float32, &[2usize][..]), ("a", DType::Float32, &[3, 1])];
        assert_eq!(message(&[("a", &[3, 1]), ("b", &[2])], given, Rules::default()), "[Some(1), Some(0)]");
        let loose = Rules { strict: false, ..Rules::default() };
        assert_eq!(message(&[("c", &[3]), ("b", &[2])], given, loose), "[None, Some(0)]");
    }

    #[test]
    fn an_error_names_all_that_is_wrong() {
        let given: &[_] = &[
            ("layers.0.wieght", DType::Float32, &[2usize, 3][..]),
            ("layers.1.weight", DType::Float32, &[3, 2]),
            ("layers.1.bias", DType::Float16, &[3]),
            ("model.head.weight", DType::Float32, &[4]),
        ];
        let expected: &[_] = &[
            ("layers.0.weight", &[2i64, 3][..]),
            ("layers.1.weight", &[2, 3]),
            ("layers.1.bias", &[3]),
            ("head.weight", &[4]),
            ("norm.scale", &[1]),
        ];
        let text = message(expected, given, Rules::default());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[0],
            "Missing required weights: 'layers.0.weight' (did you mean 'layers.0.wieght'?), 'head.weight' (did you mean \
             'model.head.weight'?), 'norm.scale'"
        );
        assert_eq!(lines[1], "Unexpected keys in state_dict: 'layers.0.wieght', 'model.head.weight'");
        assert_eq!(lines[2], "Weight 'layers.1.weight' has another shape: expected [2, 3], got [3, 2]");
        assert_eq!(lines[3], "Weight 'layers.1.bias' has another dtype: expected float32, got float16");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn alignment_is_checked() {
        let unaligned = Rules { alignment: Some(64), ..Rules::default() };
        let given: &[_] = &[("a", DType::Float32, &[1usize][..])];
        assert!(message(&[("a", &[1])], given, unaligned).contains("Found unaligned weight 'a'"));
        assert_eq!(message(&[("a", &[1])], given, Rules { alignment: Some(1), ..unaligned }), "[Some(0)]");
    }
}

//! Checks of pictures: that they are well-formed, and that everything is in its place.

use std::collections::BTreeMap;

use max_engine::Model;
use max_graph::OpId;

/// An element of a picture.
#[derive(Debug, Default)]
pub struct Element {
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    pub text: String,
    parent: usize,
}

impl Element {
    fn number(&self, name: &str) -> f64 {
        self.attributes[name].parse().unwrap()
    }

    pub fn is(&self, class: &str) -> bool {
        self.attributes.get("class").is_some_and(|classes| classes.split(' ').any(|own| own == class))
    }
}

/// A box, and the element it belongs to.
struct Rect<'a> {
    of: &'a Element,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Rect<'_> {
    fn meets(&self, other: &Rect) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn holds(&self, other: &Rect) -> bool {
        self.left <= other.left
            && other.right <= self.right
            && self.top <= other.top
            && other.bottom <= self.bottom
    }

    fn op(&self) -> Option<OpId> {
        self.of.attributes.get("data-op").map(|id| OpId(id.parse().unwrap()))
    }
}

/// Draws a model and checks the picture, except for the selection that is shown of a large graph. Returns its elements.
pub fn check(model: &Model) -> Vec<Element> {
    let svg = model.picture();
    assert_eq!(svg, model.picture(), "the same model, the same picture");
    let elements = parse(&svg);
    let (nodes, kernels) = (rects(&elements, "node"), rects(&elements, "kernel"));
    for (number, node) in nodes.iter().enumerate() {
        for other in &nodes[..number] {
            assert!(!node.meets(other), "{:?} is on {:?}", node.of, other.of);
        }
    }
    for (number, kernel) in kernels.iter().enumerate() {
        assert!(!kernels[..number].iter().any(|other| kernel.meets(other)), "{:?}", kernel.of);
    }
    for node in &nodes {
        let inside = kernels.iter().find(|kernel| kernel.meets(node));
        let number = inside.map(|kernel| kernel.of.attributes["data-kernel"].parse::<usize>().unwrap());
        assert!(inside.is_none_or(|kernel| kernel.holds(node)), "{:?} is on an edge", node.of);
        belongs(model, node, number);
    }
    texts_fit(&elements, &nodes);
    elements
}

/// Checks that a node may be where it is, in a kernel or outside.
fn belongs(model: &Model, node: &Rect, kernel: Option<usize>) {
    let program = model.program();
    let Some(op) = node.op() else {
        assert_eq!(node.of.is("copy"), kernel.is_some(), "{:?}", node.of);
        return;
    };
    let computed = program.steps.iter().any(|step| step.ops.contains(&op));
    match kernel {
        None => assert!(!computed || node.of.is("whole"), "{:?} is computed by a kernel", node.of),
        Some(kernel) if computed => assert!(program.steps[kernel].ops.contains(&op), "{:?}", node.of),
        Some(kernel) => {
            // A view or a literal, on its way to an op of the kernel.
            let mut reached = program.source.op(op).results.clone();
            for &later in &program.source.block.ops {
                if program.source.op(later).operands.iter().any(|operand| reached.contains(operand)) {
                    if program.steps[kernel].ops.contains(&later) {
                        return;
                    }
                    reached.extend(&program.source.op(later).results);
                }
            }
            panic!("{:?} has no reader in kernel {kernel}", node.of);
        }
    }
}

/// Every op is shown, and no op twice.
pub fn shows_all_ops(model: &Model, elements: &[Element]) {
    let mut shown: Vec<u32> = rects(elements, "node").iter().filter_map(Rect::op).map(|op| op.0).collect();
    let mut ops: Vec<u32> = model.program().source.block.ops.iter().map(|op| op.0).collect();
    shown.sort();
    ops.sort();
    assert_eq!(shown, ops);
    let kernels = elements.iter().filter(|element| element.is("kernel")).count();
    assert_eq!(kernels, model.program().steps.len());
}

fn rects<'a>(elements: &'a [Element], class: &str) -> Vec<Rect<'a>> {
    let rects = elements.iter().filter(|element| element.name == "rect");
    let rects = rects.filter(|rect| elements[rect.parent].is(class));
    let rect = |rect: &'a Element| {
        let (left, top) = (rect.number("x"), rect.number("y"));
        let (right, bottom) = (left + rect.number("width"), top + rect.number("height"));
        Rect { of: &elements[rect.parent], left, top, right, bottom }
    };
    rects.map(rect).collect()
}

/// The texts of nodes fit inside them, in a font of ordinary width.
fn texts_fit(elements: &[Element], nodes: &[Rect]) {
    let mut ends: Vec<(usize, f64, f64)> = Vec::new();
    for element in elements.iter().filter(|element| element.name == "text") {
        let size = if element.is("detail") { 11.0 } else { 12.0 };
        let end = element.number("x") + 0.61 * size * element.text.chars().count() as f64;
        ends.push((element.parent, element.number("x"), end));
    }
    for node in nodes {
        let own = |(parent, ..): &&(usize, f64, f64)| std::ptr::eq(&elements[*parent], node.of);
        let mut from = node.left;
        for (_, start, end) in ends.iter().filter(own) {
            assert!(from < *start && *end < node.right, "{:?}", node.of);
            from = *end;
        }
    }
}

/// The elements of a document; only drawing elements are allowed in it.
pub fn parse(svg: &str) -> Vec<Element> {
    const ELEMENTS: [&str; 7] = ["svg", "title", "style", "rect", "text", "g", "path"];
    assert!(!svg.chars().any(|c| c.is_control() && c != '\n'), "control characters");
    let mut elements: Vec<Element> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut rest = svg;
    while let Some(at) = rest.find('<') {
        let text = unescape(&rest[..at]);
        match open.last() {
            Some(&element) => elements[element].text += text.trim_matches('\n'),
            None => assert!(text.trim().is_empty() && elements.is_empty(), "text outside"),
        }
        let end = at + rest[at..].find('>').expect("an open tag");
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().map(|element| elements[element].name.clone()).as_deref(), Some(name));
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(ELEMENTS.contains(&name), "<{name}>");
        let attributes = parse_attributes(attributes);
        let parent = open.last().copied().unwrap_or(0);
        elements.push(Element { name: name.into(), attributes, text: String::new(), parent });
        if !closed {
            open.push(elements.len() - 1);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    elements
}

fn parse_attributes(mut text: &str) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let (value, rest) = rest.split_once('"').expect("a closed value");
        let name = name.trim();
        assert!(!name.starts_with("on") && !name.contains("href") && name != "style", "{name}");
        assert!(name.chars().all(|c| c.is_ascii_alphabetic() || c == '-' || c == 'B'), "{name}");
        assert_eq!(attributes.insert(name.to_string(), unescape(value)), None);
        text = rest;
    }
    assert!(text.trim().is_empty(), "{text}");
    attributes
}

fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut parts = text.split('&');
    plain += parts.next().unwrap_or_default();
    for part in parts {
        let (entity, rest) = part.split_once(';').expect("an entity");
        let entities = [("amp", '&'), ("lt", '<'), ("gt", '>'), ("quot", '"'), ("#39", '\'')];
        plain.push(entities.iter().find(|known| known.0 == entity).expect("a known entity").1);
        plain += rest;
    }
    plain
}

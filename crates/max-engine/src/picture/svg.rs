//! A positioned scene as an SVG document. It has no scripts, loads nothing, and follows the reader's preference for light
//! or dark. Its text comes from outside: it is cleaned, truncated and escaped here, and nowhere else.

use std::fmt::Write;

use super::arrange::{Arranged, Rect};
use super::scene::{Class, Node, Scene};

/// The height of a node.
pub(super) const NODE_HEIGHT: f64 = 26.0;
/// The character widths of names, details and titles, in a monospaced font.
const NAME: f64 = 7.4;
const DETAIL: f64 = 6.8;
const TITLE: f64 = 6.8;
const HEADING: f64 = 8.8;
/// The space between the text of a node and its edges, and between its texts.
const PADDING: f64 = 11.0;
const BETWEEN: f64 = 8.0;
/// The most characters shown of names, details, headings and hints.
const LONGEST_NAME: usize = 44;
const LONGEST_DETAIL: usize = 52;
const LONGEST_HEADING: usize = 80;
const LONGEST_HINT: usize = 2_000;
/// The margin of a picture, and the space above it for its heading.
const MARGIN: f64 = 24.0;
const ABOVE: f64 = 58.0;

/// The styles shared by light and dark.
const STYLE: &str = "
.mp text{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}
.mp .wire{fill:none;stroke-width:1.2}
.mp .node text,.mp .head,.mp .title{font-weight:600}
.mp .head{font-size:14px}
.mp .note,.mp .title,.mp .node .detail{font-size:11px}
.mp .node .detail,.mp .view text,.mp .copy text{font-weight:400}
.mp .view rect,.mp .copy rect{stroke-dasharray:4 3}
";

/// The colours, in light and in dark. Later rows win. A kernel kind without a row merely has no colour.
const COLOURS: [(&str, &str, &str, &str); 22] = [
    (".mp .bg", "fill", "#ffffff", "#151922"),
    (".mp text", "fill", "#1d2433", "#e6e9f0"),
    (".mp .wire", "stroke", "#8b94a8", "#7d89a3"),
    (".mp .tip", "fill", "#8b94a8", "#7d89a3"),
    (".mp rect", "stroke", "#b4bccc", "#4c566b"),
    (".mp .bg", "stroke", "none", "none"),
    (".mp .kernel rect", "fill", "#eceef2", "#2a2f3a"),
    (".mp .node rect", "fill", "#ffffff", "#262d3b"),
    (".mp .view rect,.mp .copy rect", "fill", "#fafbfc", "#1a1f2a"),
    (".mp .input rect,.mp .output rect", "fill", "#dff2e3", "#1f3d2b"),
    (".mp .weight rect", "fill", "#ece5fb", "#352c50"),
    (".mp .constant rect", "fill", "#f8f2d8", "#3d3820"),
    (".mp .loop>rect", "fill", "#e2edfc", "#1b2c49"),
    (".mp .matmul>rect", "fill", "#fde8d4", "#46301c"),
    (".mp .attention>rect", "fill", "#f4e2f8", "#3f2549"),
    (".mp .conv2d>rect", "fill", "#d8f3ef", "#163d39"),
    (".mp .gather>rect", "fill", "#e6f4d5", "#2b3d19"),
    (".mp .print>rect", "fill", "#e6e8ee", "#323846"),
    (".mp .note", "fill", "#68728a", "#98a2b8"),
    (".mp .title", "fill", "#56607a", "#aab4ca"),
    (".mp .node .detail", "fill", "#68728a", "#98a2b8"),
    (".mp .view text,.mp .copy text", "fill", "#68728a", "#98a2b8"),
];

/// The style sheet.
fn style() -> String {
    let rules = |colour: fn(&(&str, &str, &'static str, &'static str)) -> &'static str| -> String {
        COLOURS.iter().map(|row| format!("{}{{{}:{}}}\n", row.0, row.1, colour(row))).collect()
    };
    let (light, dark) = (rules(|row| row.2), rules(|row| row.3));
    format!("{STYLE}{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n")
}

/// How wide a node is.
pub(super) fn node_width(node: &Node) -> f64 {
    let name = columns(&shorten(&node.name, LONGEST_NAME)) * NAME;
    let detail = columns(&shorten(&node.detail, LONGEST_DETAIL)) * DETAIL;
    let between = if detail > 0.0 { BETWEEN } else { 0.0 };
    (name + between + detail + 2.0 * PADDING).ceil()
}

/// How wide the title of a kernel is.
pub(super) fn title_width(title: &str) -> f64 {
    (columns(title) * TITLE).ceil()
}

/// The document.
pub(super) fn document(heading: &str, summary: &str, scene: &Scene, places: &Arranged) -> String {
    let heading = shorten(heading, LONGEST_HEADING);
    let notes: Vec<&str> = std::iter::once(summary).chain(scene.notes.iter().map(String::as_str)).collect();
    let notes = notes.join("; ");
    let texts = (columns(&heading) * HEADING).max(columns(&notes) * DETAIL);
    let width = (places.width.max(texts) + 2.0 * MARGIN).ceil();
    let height = (places.height + ABOVE + MARGIN).ceil();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"mp\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n"
    );
    let _ = writeln!(svg, "<title>{}</title>\n<style>{}</style>", escape(&heading), style());
    let _ = writeln!(svg, "<rect class=\"bg\" width=\"{width}\" height=\"{height}\"/>");
    let _ = writeln!(svg, "<text class=\"head\" x=\"{MARGIN}\" y=\"26\">{}</text>", escape(&heading));
    let _ = writeln!(svg, "<text class=\"note\" x=\"{MARGIN}\" y=\"43\">{}</text>", escape(&notes));
    let _ = writeln!(svg, "<g transform=\"translate({MARGIN} {ABOVE})\">");
    for (number, (kernel, place)) in scene.kernels.iter().zip(&places.kernels).enumerate() {
        let (kind, hint, rect) = (kernel.kind, hint(&kernel.hint), rect(place, 9.0));
        let (x, y, title) = (place.x + 12.0, place.y + 19.0, escape(&kernel.title));
        let _ = write!(svg, "<g class=\"kernel {kind}\" data-kernel=\"{number}\">{hint}{rect}");
        let _ = write!(svg, "<text class=\"title\" x=\"{x}\" y=\"{y}\">{title}</text>");
        svg.push_str("</g>\n");
    }
    for (points, arrow) in &places.strands {
        strand(&mut svg, points, *arrow);
    }
    for (node, place) in scene.nodes.iter().zip(&places.nodes) {
        draw(&mut svg, node, place);
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

fn draw(svg: &mut String, node: &Node, place: &Rect) {
    let (class, round) = match node.class {
        Class::Input => ("input", 13.0),
        Class::Weight => ("weight", 5.0),
        Class::Constant => ("constant", 13.0),
        Class::Op => ("op", 5.0),
        Class::View => ("view", 5.0),
        Class::Copy => ("copy", 5.0),
        Class::Output => ("output", 13.0),
        Class::Kernel(kind) => (kind, 7.0),
    };
    let whole = if matches!(node.class, Class::Kernel(_)) { "whole " } else { "" };
    let _ = write!(svg, "<g class=\"node {whole}{class}\"");
    if let Some(op) = node.op {
        let _ = write!(svg, " data-op=\"{}\"", op.0);
    }
    let (x, y) = (place.x + PADDING, place.y + 17.0);
    let name = escape(&shorten(&node.name, LONGEST_NAME));
    let (hint, rect) = (hint(&full_text(node)), rect(place, round));
    let _ = write!(svg, ">{hint}{rect}<text x=\"{x}\" y=\"{y}\">{name}</text>");
    if !node.detail.is_empty() {
        let detail = shorten(&node.detail, LONGEST_DETAIL);
        let x = place.x + place.width - PADDING - (columns(&detail) * DETAIL).floor();
        let _ = write!(svg, "<text class=\"detail\" x=\"{x}\" y=\"{y}\">{}</text>", escape(&detail));
    }
    svg.push_str("</g>\n");
}

/// The tooltip of a node: all text that did not fit, and its hint.
fn full_text(node: &Node) -> String {
    let mut lines = Vec::new();
    if columns(&node.name) > LONGEST_NAME as f64 || columns(&node.detail) > LONGEST_DETAIL as f64 {
        lines.push(format!("{} {}", node.name, node.detail));
    }
    if !node.hint.is_empty() {
        lines.push(node.hint.clone());
    }
    lines.join("\n")
}

fn rect(place: &Rect, round: f64) -> String {
    let Rect { x, y, width, height } = place;
    format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"{round}\"/>")
}

fn hint(text: &str) -> String {
    match text.is_empty() {
        true => String::new(),
        false => format!("<title>{}</title>", escape(&cut(text.trim_end(), LONGEST_HINT))),
    }
}

/// Draws a piece of a wire, and the arrow at its end.
fn strand(svg: &mut String, points: &[(f64, f64)], arrow: bool) {
    let [(x, y), rest @ ..] = points else { return };
    let _ = write!(svg, "<path class=\"wire\" d=\"M{x} {y}");
    let (mut x, mut y) = (*x, *y);
    for (place, &(to_x, to_y)) in rest.iter().enumerate() {
        let last = arrow && place + 1 == rest.len();
        let end = if last { to_y - 5.0 } else { to_y };
        if x == to_x {
            let _ = write!(svg, "V{end}");
        } else {
            let middle = (y + end) / 2.0;
            let _ = write!(svg, "C{x} {middle} {to_x} {middle} {to_x} {end}");
        }
        (x, y) = (to_x, to_y);
    }
    svg.push_str("\"/>\n");
    if arrow {
        let _ = writeln!(svg, "<path class=\"tip\" d=\"M{x} {y}l-3.5 -7h7z\"/>");
    }
}

/// How many columns a text takes.
fn columns(text: &str) -> f64 {
    // Beyond the alphabets of Europe and the Near East, characters may be twice as wide.
    text.chars()
        .map(|c| if ('\u{1100}'..='\u{1fff}').contains(&c) || c >= '\u{2e80}' { 2.0 } else { 1.0 })
        .sum()
}

/// A text in one line of at most this many columns: the beginning and the end of a long one.
pub(super) fn shorten(text: &str, most: usize) -> String {
    let clean: Vec<char> =
        text.chars().take(1 << 16).map(|c| if c == '\n' { ' ' } else { printable(c) }).collect();
    let most = most as f64;
    let width = |c: &char| columns(c.encode_utf8(&mut [0; 4]));
    if clean.iter().map(width).sum::<f64>() <= most {
        return clean.into_iter().collect();
    }
    let fitting = |room: f64, widths: &mut dyn Iterator<Item = f64>| {
        let mut sum = 0.0;
        widths
            .take_while(|width| {
                sum += width;
                sum <= room
            })
            .count()
    };
    let head = fitting((most * 0.6).floor(), &mut clean.iter().map(width));
    let tail = fitting(most - 1.0 - (most * 0.6).floor(), &mut clean.iter().rev().map(width));
    clean[..head].iter().chain(&['…']).chain(&clean[clean.len() - tail..]).collect()
}

/// The first characters of a multi-line text.
fn cut(text: &str, most: usize) -> String {
    let mut cut: String = text.chars().take(most).map(|c| if c == '\n' { c } else { printable(c) }).collect();
    if text.chars().nth(most).is_some() {
        cut.push('…');
    }
    cut
}

/// The character, unless XML forbids it or it changes how others are displayed.
fn printable(c: char) -> char {
    match c {
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            '\u{fffd}'
        }
        '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// A text escaped for XML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

//! Where everything in a scene goes: ops inside their kernels first, then kernels and what is outside of them.
//!
//! A value enters or leaves a kernel through a port on its edge, where the inner and the outer layout meet.

use std::collections::BTreeMap;

use super::layered::{Item, Port, Row, Spacing, Strand, Wire, layered};
use super::scene::{self, Scene};
use super::svg::{NODE_HEIGHT, node_width, title_width};

/// A position and a size.
#[derive(Clone, Copy, Default)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A scene with positions.
pub(super) struct Arranged {
    pub(super) nodes: Vec<Rect>,
    pub(super) kernels: Vec<Rect>,
    /// Pieces of wires, and whether they end in an arrow.
    pub(super) strands: Vec<(Vec<(f64, f64)>, bool)>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// The space between the edge of a kernel and its contents.
const PADDING: f64 = 14.0;
/// The height of the title of a kernel.
const TITLE: f64 = 24.0;
const INSIDE: Spacing =
    Spacing { first: TITLE, below_first: 14.0, between: 24.0, above_last: PADDING, column: 18.0 };
const OUTSIDE: Spacing =
    Spacing { first: 0.0, below_first: 0.0, between: 44.0, above_last: 0.0, column: 26.0 };

/// Items and wires that are laid out together.
#[derive(Default)]
struct Plane {
    items: Vec<Item>,
    wires: Vec<Wire>,
}

impl Plane {
    fn add(&mut self, width: f64, height: f64, row: Row) -> usize {
        self.items.push(Item { width, height, row });
        self.items.len() - 1
    }

    /// A port on its edge.
    fn port(&mut self, row: Row) -> Port {
        Port { item: self.add(0.0, 0.0, row), offset: 0.0, aim: 0.0 }
    }
}

/// A kernel after its layout.
struct Inside {
    at: Vec<(f64, f64)>,
    strands: Vec<Strand>,
    shift: f64,
    width: f64,
    height: f64,
}

/// A wire between planes: the kernel and port, or the node, at each end.
struct Crossing {
    from: End,
    to: Vec<End>,
}

enum End {
    Node(scene::Port),
    Kernel(usize, Port),
}

/// Positions everything in a scene.
pub(super) fn arrange(scene: &Scene) -> Arranged {
    let mut planes: Vec<Plane> = scene.kernels.iter().map(|_| Plane::default()).collect();
    let widths: Vec<f64> = scene.nodes.iter().map(node_width).collect();
    // The item of each node, in its kernel or outside.
    let mut outside = Plane::default();
    let mut items = vec![0; scene.nodes.len()];
    for (number, node) in scene.nodes.iter().enumerate() {
        if let Some(kernel) = node.kernel {
            items[number] = planes[kernel].add(widths[number], NODE_HEIGHT, Row::Free);
        }
    }
    let port = |port: scene::Port, items: &[usize]| {
        let offset = widths[port.node] * (port.place + 1) as f64 / (port.count + 1) as f64;
        Port { item: items[port.node], offset: offset.round(), aim: widths[port.node] / 2.0 }
    };
    let crossings = enter_kernels(scene, &mut planes, |end| port(end, &items));
    let insides: Vec<Inside> = planes
        .iter()
        .zip(&scene.kernels)
        .map(|(plane, kernel)| lay_inside(plane, title_width(&kernel.title)))
        .collect();
    for inside in &insides {
        outside.add(inside.width, inside.height, Row::Free);
    }
    for (number, node) in scene.nodes.iter().enumerate() {
        if node.kernel.is_none() {
            items[number] = outside.add(widths[number], NODE_HEIGHT, Row::Free);
        }
    }
    let end = |end: &End| match end {
        End::Node(node) => port(*node, &items),
        End::Kernel(kernel, own) => {
            let inside = &insides[*kernel];
            let offset = inside.shift + inside.at[own.item].0;
            Port { item: *kernel, offset, aim: offset }
        }
    };
    let lead =
        |crossing: &Crossing| Wire { from: end(&crossing.from), to: crossing.to.iter().map(end).collect() };
    outside.wires = crossings.iter().map(lead).collect();
    let whole = layered(&outside.items, &outside.wires, &OUTSIDE);

    let kernels: Vec<Rect> = insides
        .iter()
        .zip(&whole.at)
        .map(|(inside, &(x, y))| Rect { x, y, width: inside.width, height: inside.height })
        .collect();
    let place = |(number, node): (usize, &scene::Node)| {
        let (x, y) = match node.kernel {
            Some(kernel) => insides[kernel].place(&kernels[kernel], insides[kernel].at[items[number]]),
            None => whole.at[items[number]],
        };
        Rect { x, y, width: widths[number], height: NODE_HEIGHT }
    };
    let nodes = scene.nodes.iter().enumerate().map(place).collect();
    let mut strands: Vec<_> = whole
        .strands
        .into_iter()
        .map(|strand| (strand.points, strand.ends.is_some_and(|item| item >= insides.len())))
        .collect();
    for ((inside, plane), frame) in insides.iter().zip(&planes).zip(&kernels) {
        for strand in &inside.strands {
            let points = strand.points.iter().map(|&point| inside.place(frame, point)).collect();
            strands.push((points, strand.ends.is_some_and(|item| plane.items[item].row == Row::Free)));
        }
    }
    Arranged { nodes, kernels, strands, width: whole.width, height: whole.height }
}

/// Adds to kernels what wires need inside them, and returns the wires between kernels.
fn enter_kernels(scene: &Scene, planes: &mut [Plane], port: impl Fn(scene::Port) -> Port) -> Vec<Crossing> {
    let mut crossings = Vec::new();
    for wire in &scene.wires {
        let home = scene.nodes[wire.from.node].kernel;
        let mut ends: BTreeMap<Option<usize>, Vec<scene::Port>> = BTreeMap::new();
        for &to in &wire.to {
            ends.entry(scene.nodes[to.node].kernel).or_default().push(to);
        }
        let mut within: Vec<Port> = Vec::new();
        let mut away = Vec::new();
        for (kernel, ends) in ends {
            match kernel {
                Some(kernel) if home == Some(kernel) => within.extend(ends.into_iter().map(&port)),
                Some(kernel) => {
                    let from = planes[kernel].port(Row::First);
                    let to = ends.into_iter().map(&port).collect();
                    planes[kernel].wires.push(Wire { from, to });
                    away.push(End::Kernel(kernel, from));
                }
                None => away.extend(ends.into_iter().map(End::Node)),
            }
        }
        let mut from = End::Node(wire.from);
        if let Some(home) = home {
            if !away.is_empty() {
                let exit = planes[home].port(Row::Last);
                within.push(exit);
                from = End::Kernel(home, exit);
            }
            planes[home].wires.push(Wire { from: port(wire.from), to: within });
        }
        if !away.is_empty() {
            crossings.push(Crossing { from, to: away });
        }
    }
    crossings
}

/// Lays out a kernel; values enter it beside its title.
fn lay_inside(plane: &Plane, title: f64) -> Inside {
    let layout = layered(&plane.items, &plane.wires, &INSIDE);
    let entries = plane.items.iter().zip(&layout.at).filter(|(item, _)| item.row == Row::First);
    let leftmost = entries.map(|(_, at)| at.0).fold(f64::INFINITY, f64::min);
    let shift = PADDING.max(PADDING + title + 8.0 - leftmost);
    let exits = plane.items.iter().any(|item| item.row == Row::Last);
    Inside {
        shift,
        width: (shift + layout.width + PADDING).max(title + 2.0 * PADDING),
        height: layout.height + if exits { 0.0 } else { PADDING },
        at: layout.at,
        strands: layout.strands,
    }
}

impl Inside {
    /// Converts a point in a kernel to picture coordinates.
    fn place(&self, frame: &Rect, (x, y): (f64, f64)) -> (f64, f64) {
        (frame.x + self.shift + x, frame.y + y)
    }
}

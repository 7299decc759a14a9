//! What a picture shows of a program: nodes, the kernels they belong to, and the wires between them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use max_compiler::Program;
use max_compiler::program::Origin;
use max_core::kernel::Slot;
use max_graph::{Body, OpId, OpKind, ValueId, text};

use super::homes::{Homes, Root, outputs_of, read_by};

/// Everything that is shown.
#[derive(Default)]
pub(super) struct Scene {
    pub(super) nodes: Vec<Node>,
    /// The kernels whose ops are shown.
    pub(super) kernels: Vec<Frame>,
    pub(super) wires: Vec<Wire>,
    /// What is not shown, in words.
    pub(super) notes: Vec<String>,
}

/// A box with text.
pub(super) struct Node {
    pub(super) class: Class,
    pub(super) name: String,
    /// Usually its type.
    pub(super) detail: String,
    /// The tooltip.
    pub(super) hint: String,
    pub(super) op: Option<OpId>,
    /// The kernel that contains it.
    pub(super) kernel: Option<usize>,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Input,
    Weight,
    Constant,
    Op,
    View,
    Copy,
    Output,
    /// A whole kernel of this kind.
    Kernel(&'static str),
}

/// The box around the ops of one kernel.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) kind: &'static str,
    /// The tooltip.
    pub(super) hint: String,
}

impl Frame {
    fn of(program: &Program, step: usize) -> Frame {
        let (kind, hint) = (program.step_kind(step), program.step_text(step));
        Frame { title: format!("kernel {step}: {kind}"), kind, hint }
    }
}

/// A value from a node to others; ports are numbered from the left.
pub(super) struct Wire {
    pub(super) from: Port,
    pub(super) to: Vec<Port>,
}

/// Port `place` of `count` on an edge of a node.
#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) node: usize,
    pub(super) place: usize,
    pub(super) count: usize,
}

/// With more ops, inputs and outputs, or kernels than this, each kernel is one node.
const MOST_OPS: usize = 400;
/// The most kernels shown, and the most inputs, weights and outputs.
const MOST_KERNELS: usize = 2_000;
/// If many kernels write parts of one value, only this many, the last ones, are connected to its readers.
const MOST_WRITERS: usize = 16;

impl Scene {
    /// What a picture of a program shows.
    pub(super) fn of(program: &Program) -> Scene {
        let block = &program.source.block;
        let size = block.ops.len() + block.arguments.len() + program.outputs.len();
        if size.max(program.steps.len()) <= MOST_OPS {
            Scene::of_ops(program)
        } else {
            Scene::of_kernels(program)
        }
    }

    fn of_ops(program: &Program) -> Scene {
        let body = &program.source;
        let homes = Homes::of(program);
        let kernels = (0..program.steps.len()).map(|number| Frame::of(program, number)).collect();
        let mut scene = Scene { kernels, ..Scene::default() };
        let mut wires = Wires::default();
        for (number, &value) in body.block.arguments.iter().enumerate() {
            let node = scene.add(Class::Input, format!("input {number}"), type_of(body, &[value]));
            wires.define(node, &[value]);
        }
        for &id in &body.block.ops {
            let op = body.op(id);
            let node = scene.add_op(body, id, homes.kernel.contains_key(&id));
            scene.nodes[node].kernel = homes.home(id);
            wires.define(node, &op.results);
            for (place, &value) in op.operands.iter().enumerate() {
                wires.ends.insert((id, place), (value, Port { node, place, count: op.operands.len() }));
            }
        }
        let results = body.block.results.as_deref().unwrap_or_default();
        let mut copied = HashMap::new();
        for number in homes.empty(program) {
            let node = scene.add(Class::Copy, "copy".into(), written(program, number));
            scene.nodes[node].kernel = Some(number);
            let step = &program.steps[number];
            let part = step.ops.last().filter(|&op| homes.home(*op).is_some_and(|home| home > number));
            if let Some(&op) = part {
                // It prepares operands, or copies parts of the result, of an op that a later kernel finishes.
                let reads = read_by(program, number);
                let is_read = |&place: &usize| {
                    let value = wires.ends.get(&(op, place)).map(|end| end.0);
                    value.is_some_and(|value| reads.contains(&homes.root(value)))
                };
                let places: Vec<_> = (0..body.op(op).operands.len()).filter(is_read).collect();
                for place in places.into_iter().take(step.writes.len()) {
                    if let Some((value, end)) = wires.ends.remove(&(op, place)) {
                        wires.lead(value, Port::only(node));
                        wires.join(node, end);
                    }
                }
            } else {
                let outputs = outputs_of(program, number);
                let value = outputs.first().and_then(|&output| results.get(output));
                value.into_iter().for_each(|&value| wires.lead(value, Port::only(node)));
                copied.extend(outputs.into_iter().map(|output| (output, node)));
            }
        }
        for (number, &value) in results.iter().enumerate() {
            let node = scene.add(Class::Output, format!("output {number}"), type_of(body, &[value]));
            match copied.get(&number) {
                Some(&copy) => wires.join(copy, Port::only(node)),
                None => wires.lead(value, Port::only(node)),
            }
        }
        scene.wires = wires.finish();
        scene
    }

    fn add(&mut self, class: Class, name: String, detail: String) -> usize {
        let hint = String::new();
        self.nodes.push(Node { class, name, detail, hint, op: None, kernel: None });
        self.nodes.len() - 1
    }

    fn add_op(&mut self, body: &Body, id: OpId, computed: bool) -> usize {
        let op = body.op(id);
        let ty = type_of(body, &op.results);
        let node = match &op.kind {
            OpKind::Constant(c) => match text::numbers(&c.value).filter(|numbers| numbers.len() <= 4) {
                Some(numbers) if c.value.shape().is_empty() => {
                    self.add(Class::Constant, numbers.join(""), ty)
                }
                Some(numbers) => self.add(Class::Constant, format!("[{}]", numbers.join(", ")), ty),
                None => self.add(Class::Constant, "constant".into(), ty),
            },
            OpKind::ConstantExternal(c) => self.add(Class::Weight, c.name.clone(), ty),
            OpKind::Print(p) => self.add(Class::Op, "print".into(), format!("{:?}", p.label)),
            kind if computed => self.add(Class::Op, kind.name().into(), ty),
            kind => self.add(Class::View, kind.name().into(), ty),
        };
        self.nodes[node].op = Some(id);
        if !op.operands.is_empty() {
            self.nodes[node].hint = op.describe(body).trim_start_matches("in ").into();
        }
        node
    }

    /// Each kernel as one node, without views and constants.
    fn of_kernels(program: &Program) -> Scene {
        let mut scene = Scene::default();
        let shown = program.steps.len().min(MOST_KERNELS);
        for (number, step) in program.steps.iter().enumerate().take(shown) {
            let Frame { title, kind, hint } = Frame::of(program, number);
            let ops = if step.ops.len() == 1 { "1 op".into() } else { format!("{} ops", step.ops.len()) };
            let detail = format!("{} ({ops})", program.step_name(number));
            let node = scene.add(Class::Kernel(kind), title, detail);
            scene.nodes[node].hint = hint;
        }
        let mut readers: BTreeMap<Root, Vec<usize>> = BTreeMap::new();
        let mut writers: HashMap<Slot, VecDeque<usize>> = HashMap::new();
        for (number, step) in program.steps.iter().enumerate().take(shown) {
            for slot in step.reads.iter().copied() {
                let mut read = |root| readers.entry(root).or_default().push(number);
                match program.slots[slot.0 as usize].origin {
                    Origin::Input(input) => read(Root::Input(input)),
                    Origin::Weight(weight) => read(Root::Weight(weight)),
                    _ => writers
                        .get(&slot)
                        .into_iter()
                        .flatten()
                        .for_each(|&kernel| read(Root::Kernel(kernel))),
                }
            }
            for slot in step.writes.iter().copied() {
                let writers = writers.entry(slot).or_default();
                writers.push_back(number);
                if writers.len() > MOST_WRITERS {
                    writers.pop_front();
                }
            }
        }
        let mut left_out = program.outputs.len();
        for (slot, info) in program.slots.iter().enumerate() {
            let Origin::Output(output) = info.origin else { continue };
            let Some(writers) = writers.get(&Slot(slot as u32)) else { continue };
            if program.outputs.len() - left_out == MOST_KERNELS {
                break;
            }
            left_out -= 1;
            let node =
                scene.add(Class::Output, format!("output {output}"), program.outputs[output].to_string());
            writers.iter().for_each(|&kernel| readers.entry(Root::Kernel(kernel)).or_default().push(node));
        }
        let mut outside = 0;
        for (root, mut to) in readers {
            let from = match root {
                Root::Kernel(kernel) => kernel,
                Root::None => continue,
                _ if outside == MOST_KERNELS => {
                    left_out += 1;
                    continue;
                }
                Root::Input(input) => {
                    outside += 1;
                    scene.add(Class::Input, format!("input {input}"), program.inputs[input].to_string())
                }
                Root::Weight(weight) => {
                    outside += 1;
                    let (name, ty) = &program.weights[weight];
                    scene.add(Class::Weight, name.clone(), ty.to_string())
                }
            };
            to.dedup();
            scene.wires.push(Wire { from: Port::only(from), to: to.into_iter().map(Port::only).collect() });
        }
        scene.notes.push("each kernel is one node; views and constants are not shown".into());
        if program.steps.len() > shown {
            scene.notes.push(format!("{} more kernels are left out", program.steps.len() - shown));
        }
        if left_out > 0 {
            scene.notes.push(format!("{left_out} inputs, weights and outputs are left out"));
        }
        scene
    }
}

impl Port {
    fn only(node: usize) -> Port {
        Port { node, place: 0, count: 1 }
    }
}

/// Wires by the values they carry.
#[derive(Default)]
struct Wires {
    wires: Vec<Wire>,
    of: HashMap<ValueId, usize>,
    /// The operands of ops, and the port each leads to.
    ends: BTreeMap<(OpId, usize), (ValueId, Port)>,
}

impl Wires {
    fn define(&mut self, node: usize, values: &[ValueId]) {
        for (place, &value) in values.iter().enumerate() {
            self.of.insert(value, self.wires.len());
            let from = Port { node, place, count: values.len() };
            self.wires.push(Wire { from, to: Vec::new() });
        }
    }

    fn lead(&mut self, value: ValueId, to: Port) {
        if let Some(&wire) = self.of.get(&value) {
            self.wires[wire].to.push(to);
        }
    }

    fn join(&mut self, from: usize, to: Port) {
        self.wires.push(Wire { from: Port::only(from), to: vec![to] });
    }

    fn finish(mut self) -> Vec<Wire> {
        for (value, end) in std::mem::take(&mut self.ends).into_values() {
            self.lead(value, end);
        }
        self.wires.retain(|wire| !wire.to.is_empty());
        self.wires
    }
}

/// The types of values as text.
fn type_of(body: &Body, values: &[ValueId]) -> String {
    body.types_of(values).map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ")
}

/// The types of what a step writes as text.
pub(super) fn written(program: &Program, step: usize) -> String {
    let mut slots = program.steps[step].writes.clone();
    slots.sort_by_key(|slot| slot.0);
    slots.dedup();
    let infos = slots.iter().map(|slot| &program.slots[slot.0 as usize]);
    infos.map(|info| format!("{}{}", info.dtype, info.shape)).collect::<Vec<_>>().join(", ")
}

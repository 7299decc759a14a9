//! Which kernel of a program each op is shown in, and where values come from.

use std::collections::HashMap;

use max_compiler::Program;
use max_compiler::program::Origin;
use max_graph::ir::Op;
use max_graph::{Body, OpId, OpKind, ValueId};

/// Where a value comes from, looking through views.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Root {
    Input(usize),
    Weight(usize),
    Kernel(usize),
    None,
}

/// Which kernel each op is shown in.
///
/// An op may have work in several kernels: a concat is computed in place by the kernels of its operands, operands are
/// copied for an op that needs them contiguous, results for outputs. It is shown in the last one before all its readers.
pub(super) struct Homes {
    /// The kernel of each op that has one.
    pub(super) kernel: HashMap<OpId, usize>,
    /// The kernel that a view or a number is only used in, between two of its ops.
    inside: HashMap<OpId, usize>,
    makers: HashMap<ValueId, OpId>,
    roots: HashMap<ValueId, Root>,
}

impl Homes {
    pub(super) fn of(program: &Program) -> Homes {
        let body = &program.source;
        let mut kernels: HashMap<OpId, Vec<usize>> = HashMap::new();
        for (number, step) in program.steps.iter().enumerate() {
            step.ops.iter().for_each(|&op| kernels.entry(op).or_default().push(number));
        }
        // The first kernel that needs each value.
        let mut needed: HashMap<ValueId, usize> = HashMap::new();
        let results = body.block.results.as_deref().unwrap_or_default();
        let mut last_writer = HashMap::new();
        for number in 0..program.steps.len() {
            last_writer.extend(outputs_of(program, number).into_iter().map(|output| (output, number)));
        }
        for (output, value) in results.iter().enumerate() {
            if let Some(&writer) = last_writer.get(&output) {
                let first = needed.entry(*value).or_insert(writer);
                *first = writer.min(*first);
            }
        }
        let mut homes = Homes {
            kernel: HashMap::new(),
            inside: HashMap::new(),
            makers: HashMap::new(),
            roots: HashMap::new(),
        };
        for &id in body.block.ops.iter().rev() {
            let op = body.op(id);
            homes.makers.extend(op.results.iter().map(|&result| (result, id)));
            let mut reader = op.results.iter().filter_map(|result| needed.get(result)).copied().min();
            if let Some(kernels) = kernels.get(&id) {
                let before = |&&kernel: &&usize| reader.is_none_or(|reader| kernel <= reader);
                if let Some(&home) = kernels.iter().rev().find(before).or(kernels.first()) {
                    homes.kernel.insert(id, home);
                    reader = Some(home);
                }
            }
            for &value in reader.iter().flat_map(|_| &op.operands) {
                let first = needed.entry(value).or_insert(usize::MAX);
                *first = (*first).min(reader.unwrap_or(usize::MAX));
            }
        }
        homes.find_roots(body);
        homes.look_inside(body);
        homes
    }

    /// Finds what is only used inside a kernel: views between two of its ops, and numbers.
    fn look_inside(&mut self, body: &Body) {
        let mut level: HashMap<ValueId, usize> = HashMap::new();
        for &id in &body.block.ops {
            let op = body.op(id);
            let above = op.operands.iter().filter_map(|operand| level.get(operand)).copied().max();
            if let Some(own) = self.kernel.get(&id).copied().or(above) {
                level.extend(op.results.iter().map(|&result| (result, own)));
            }
        }
        // Numbers that an output or more than one kernel reads are outside.
        let outside = body.block.results.iter().flatten();
        let mut shared: Vec<OpId> = outside.filter_map(|value| self.makers.get(value)).copied().collect();
        for &id in body.block.ops.iter().rev() {
            let home = self.home(id);
            for &value in &body.op(id).operands {
                let Some(&maker) = self.makers.get(&value) else { continue };
                if self.kernel.contains_key(&maker) {
                    continue;
                }
                let number = is_number(body.op(maker));
                match home {
                    Some(home) if number || level.get(&value) == Some(&home) => {
                        let inside = *self.inside.entry(maker).or_insert(home);
                        shared.extend((inside != home).then_some(maker));
                    }
                    _ => shared.extend(number.then_some(maker)),
                }
            }
        }
        shared.iter().filter(|&&op| is_number(body.op(op))).for_each(|op| {
            self.inside.remove(op);
        });
    }

    /// The kernel an op is shown in, if any.
    pub(super) fn home(&self, op: OpId) -> Option<usize> {
        self.kernel.get(&op).or(self.inside.get(&op)).copied()
    }

    /// The kernels that no op is shown in.
    pub(super) fn empty(&self, program: &Program) -> Vec<usize> {
        let mut empty = vec![true; program.steps.len()];
        self.kernel.values().for_each(|&kernel| empty[kernel] = false);
        (0..program.steps.len()).filter(|&kernel| empty[kernel]).collect()
    }

    fn find_roots(&mut self, body: &Body) {
        let inputs = body.block.arguments.iter().enumerate();
        self.roots.extend(inputs.map(|(number, &value)| (value, Root::Input(number))));
        let mut weights = 0..;
        for &id in &body.block.ops {
            let op = body.op(id);
            let weight = matches!(op.kind, OpKind::ConstantExternal(_)).then(|| weights.next()).flatten();
            let root = match (self.kernel.get(&id), op.operands.first()) {
                (Some(&kernel), _) => Root::Kernel(kernel),
                (None, Some(&operand)) => self.root(operand),
                (None, None) => weight.map_or(Root::None, Root::Weight),
            };
            self.roots.extend(op.results.iter().map(|&result| (result, root)));
        }
    }

    /// Where a value comes from.
    pub(super) fn root(&self, value: ValueId) -> Root {
        self.roots.get(&value).copied().unwrap_or(Root::None)
    }
}

/// Whether an op is a one-element constant, which becomes part of the code that uses it.
fn is_number(op: &Op) -> bool {
    matches!(&op.kind, OpKind::Constant(c) if c.value.num_elements() == 1)
}

/// The outputs that a step writes.
pub(super) fn outputs_of(program: &Program, step: usize) -> Vec<usize> {
    let origins = program.steps[step].writes.iter().map(|slot| &program.slots[slot.0 as usize].origin);
    origins
        .filter_map(|origin| if let Origin::Output(output) = origin { Some(*output) } else { None })
        .collect()
}

/// Where the values that a step reads come from.
pub(super) fn read_by(program: &Program, step: usize) -> Vec<Root> {
    let mut roots = Vec::new();
    for slot in program.steps[step].reads.iter().copied() {
        match &program.slots[slot.0 as usize].origin {
            Origin::Input(input) => roots.push(Root::Input(*input)),
            Origin::Weight(weight) => roots.push(Root::Weight(*weight)),
            Origin::Constant(_) => roots.push(Root::None),
            Origin::Output(_) | Origin::Temporary(_) => {
                let writes = |&earlier: &usize| program.steps[earlier].writes.contains(&slot);
                roots.extend((0..step).filter(writes).map(Root::Kernel));
            }
        }
    }
    roots
}

//! Ops that run regions: each region becomes a program of its own, and the op a step that runs it on memory of the caller.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use max_core::{DType, DeviceRef, Result, Type, bail};
use max_graph::ir::Op;
use max_graph::{OpId, OpKind, Region, ValueId};

use super::group::{Group, Work};
use super::{Lowering, NodeId, Options, Source, lower};
use crate::program::{Control, Nested, Program};

/// The regions that have been lowered so far, so that each becomes one program.
pub(crate) struct Regions {
    pub(super) options: Options,
    /// By address; the region is kept so that no other can have its address.
    known: HashMap<usize, (Region, Arc<Program>)>,
    /// How many regions the current body is inside.
    depth: usize,
}

impl Regions {
    pub(crate) fn new(options: Options) -> Regions {
        Regions { options, known: HashMap::new(), depth: 0 }
    }

    fn program(&mut self, region: &Region) -> Result<Arc<Program>> {
        if let Some((_, program)) = self.known.get(&region.address()) {
            return Ok(program.clone());
        }
        self.depth += 1;
        let program = Arc::new(lower(region.body().clone(), self)?);
        self.depth -= 1;
        self.known.insert(region.address(), (region.clone(), program.clone()));
        Ok(program)
    }
}

impl Lowering<'_> {
    /// The number of a region's program.
    fn region(&mut self, region: &Region) -> Result<usize> {
        let program = self.regions.program(region)?;
        let known = self.programs.iter().position(|known| Arc::ptr_eq(known, &program));
        Ok(known.unwrap_or_else(|| {
            self.programs.push(program);
            self.programs.len() - 1
        }))
    }

    /// The memory of results is allocated before a region runs, so their sizes must be known by then.
    fn check_sizes(&self, op: &Op) -> Result<()> {
        let body = self.body;
        let Some(first) = op.results.first().filter(|_| self.regions.depth == 0) else { return Ok(()) };
        let symbols = |ty: &Type| ty.array().map_or(vec![], |(_, shape)| shape.parameters());
        let known: HashSet<_> =
            (0..first.0).flat_map(|value| symbols(body.type_of(ValueId(value)))).collect();
        for ty in body.types_of(&op.results) {
            if let Some(unknown) = symbols(ty).iter().find(|symbol| !known.contains(*symbol)) {
                bail!(
                    not_implemented,
                    "the result {ty} of {} has the dim '{unknown}', which is not known before it runs",
                    op.kind.name()
                );
            }
        }
        Ok(())
    }

    pub(super) fn nested(&mut self, id: OpId, op: &Op, regions: &[Region]) -> Result<()> {
        self.check_sizes(op)?;
        let programs = regions.iter().map(|region| self.region(region)).collect::<Result<Vec<_>>>()?;
        let writes = regions.iter().any(|region| region.effects().writes);
        let mut operands = op.operands.iter();
        let flag = match (&op.kind, operands.clone().next()) {
            (OpKind::Cond(_) | OpKind::While(_), Some(&flag)) => {
                operands.next();
                Some(self.whole(id, flag, DeviceRef::CPU)?)
            }
            _ => None,
        };
        let body = self.body;
        let is_buffer = |value: &&ValueId| matches!(body.type_of(**value), Type::Buffer(_));
        let buffers: Vec<ValueId> = operands.clone().filter(is_buffer).copied().collect();
        let written = if writes { &buffers[..] } else { &[] };
        let mut inputs = Vec::new();
        for value in operands {
            inputs.push(match is_buffer(&value) {
                true => {
                    self.pass(*value)?;
                    self.buffer_node(*value)?
                }
                false => {
                    let device = self.device(*value)?;
                    let whole = self.whole(id, *value, device)?;
                    self.part_from(written, whole)?
                }
            });
        }
        for &buffer in written {
            self.before_write(buffer)?;
        }
        let number = self.groups.len();
        let mut outputs = self.results(op)?;
        let control = match (&op.kind, flag, &programs[..]) {
            (OpKind::Call(_), None, &[region]) => Control::Call(region),
            (OpKind::Cond(_), Some(flag), &[then, otherwise]) => {
                Control::Cond { flag, regions: [then, otherwise] }
            }
            (OpKind::While(_), Some(flag), &[region]) => {
                let mut spare = self.results(op)?;
                for flags in [&mut outputs, &mut spare] {
                    flags.push(self.add_node(DeviceRef::CPU, DType::Bool, &[], Source::Group(number, None)));
                }
                Control::While { flag, region, spare }
            }
            _ => bail!(internal, "{} with {} regions", op.kind.name(), programs.len()),
        };
        let device =
            op.results.first().or(op.operands.last()).and_then(|&value| self.body.type_of(value).device());
        let written = written.iter().map(|&buffer| self.new_version(buffer, number));
        let written: Vec<NodeId> = written.collect::<Result<_>>()?;
        let nested = Nested { control, inputs, outputs, written };
        for &node in nested.reads() {
            self.read(number, node);
        }
        for &node in nested.writes() {
            self.nodes[node.0 as usize].stored = true;
        }
        let results = nested.outputs.clone();
        self.groups.push(Group::new(device.unwrap_or(DeviceRef::CPU), Work::Nested(nested), &[]));
        self.note(number, id);
        for (&value, node) in op.results.iter().zip(results) {
            self.define(value, node)?;
        }
        Ok(())
    }
}

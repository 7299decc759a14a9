//! Matmuls of one left operand become one step: the projections of a layer are a single launch, whichever weights they
//! have and whatever follows each of them, and nothing is copied.

use max_core::kernel::{Kernel, Matmuls, QMatmul};
use max_core::{Dim, Result, bail};

use super::finish::Parts;
use super::group::{Group, Work};
use super::{Node, NodeId, Source};

/// The most matmuls in a step: all of their results are in memory at the same time.
const MOST: usize = 8;

/// The groups whose work is done in the step of each group: for most groups only its own. A matmul moves to the step of
/// an earlier one if only loops are between them, so that its result does not occupy memory for long before it is needed.
pub(super) fn together(parts: &Parts) -> Vec<Vec<usize>> {
    let mut steps: Vec<Vec<usize>> = Vec::with_capacity(parts.groups.len());
    let mut segments = parts.segments.iter().map(|(_, first)| *first).peekable();
    let mut fences = parts.fences.iter().copied().peekable();
    let mut open: Option<usize> = None;
    for (number, group) in parts.groups.iter().enumerate() {
        // A step belongs to one segment.
        while segments.next_if(|&first| first <= number).is_some() {
            open = None;
        }
        while fences.next_if(|&first| first <= number).is_some() {
            open = None;
        }
        let mut own = vec![number];
        match (&group.work, open) {
            (Work::Kernel(Kernel::Matmul(_) | Kernel::QMatmul(_)), Some(leader))
                if steps[leader].len() < MOST && joins(parts, leader, group) =>
            {
                steps[leader].append(&mut own);
            }
            (Work::Kernel(Kernel::Matmul(_) | Kernel::QMatmul(_)), _) => open = parts.fuse.then_some(number),
            (Work::Kernel(Kernel::Loop(_)) | Work::Print(..) | Work::Transfer { .. }, _) => {}
            (Work::Kernel(_) | Work::Nested(_) | Work::Collective { .. } | Work::Custom(_), _) => open = None,
        }
        steps.push(own);
    }
    steps
}

/// Whether a matmul has the left operand of another, and everything else that it reads is there before that one runs.
fn joins(parts: &Parts, leader: usize, group: &Group) -> bool {
    let other = &parts.groups[leader];
    let (Work::Kernel(kernel), Work::Kernel(first)) = (&group.work, &other.work) else { return false };
    let alike = match (kernel, first) {
        (Kernel::Matmul(k), Kernel::Matmul(first)) => {
            (&k.lhs, &k.batch, &k.m, k.rhs.dtype) == (&first.lhs, &first.batch, &first.m, first.rhs.dtype)
        }
        (Kernel::QMatmul(k), Kernel::QMatmul(first)) => {
            let integers = |k: &QMatmul<Dim, NodeId>| k.all.iter().all(|p| p.storage.is_integers());
            (&k.lhs, &k.batch, &k.m, &k.experts, integers(k))
                == (&first.lhs, &first.batch, &first.m, &first.experts, integers(first))
        }
        _ => false,
    };
    let is_there = |read: &NodeId| {
        let Node { source, .. } = &parts.nodes[read.0 as usize];
        !matches!(source, Source::Group(writer, _) if *writer >= leader)
    };
    let loads = group.ending.accesses.iter().map(|access| &access.slot);
    // What changes a buffer stays where it is: others may have to read it before.
    let is_buffer = |node: &NodeId| parts.nodes[node.0 as usize].buffer.is_some();
    let writes_buffer = group.stores.iter().any(|(place, _)| is_buffer(&place.slot))
        || group.regs.iter().any(|(node, _)| {
            parts.nodes[node.0 as usize].home.as_ref().is_some_and(|(home, _)| is_buffer(home))
        });
    group.device == other.device && !writes_buffer && alike && kernel.reads().chain(loads).all(is_there)
}

/// The kernels of groups that share a step as one, if there are any.
pub(super) fn launched(mut kernels: Vec<Kernel<Dim, NodeId>>) -> Result<Option<Kernel<Dim, NodeId>>> {
    if kernels.len() <= 1 {
        return Ok(kernels.pop());
    }
    let mut all = kernels.into_iter();
    Ok(match all.next() {
        Some(Kernel::QMatmul(mut first)) => {
            for kernel in all {
                let Kernel::QMatmul(k) = kernel else { bail!(internal, "a {} shares a step", kernel.kind()) };
                first.all.extend(k.all);
            }
            Some(first.into())
        }
        first => {
            let matmul = |kernel| match kernel {
                Kernel::Matmul(k) => Ok(k),
                other => bail!(internal, "a {} shares a step", other.kind()),
            };
            let all = first.into_iter().chain(all).map(matmul).collect::<Result<_>>()?;
            Some(Matmuls { all }.into())
        }
    })
}

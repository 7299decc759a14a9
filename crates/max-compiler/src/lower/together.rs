//! Matmuls of one left operand become one step: the projections of a layer are a single launch, whichever weights they
//! have and whatever follows each of them, and nothing is copied.

use max_core::kernel::Kernel;
use max_core::{Result, bail};

use super::finish::Parts;
use super::group::{Group, Use, Work};
use super::{Node, Source};
use crate::program;

/// The most matmuls in a step: all of their results are in memory at the same time.
const MOST: usize = 8;

/// The groups whose work is done in the step of each group: for most groups only its own. A matmul moves to the step of
/// an earlier one if only loops are between them, so that its result does not occupy memory for long before it is needed.
pub(super) fn together(parts: &Parts) -> Vec<Vec<usize>> {
    let mut steps: Vec<Vec<usize>> = Vec::with_capacity(parts.groups.len());
    let mut segments = parts.segments.iter().map(|(_, first)| *first).peekable();
    let mut open: Option<usize> = None;
    for (number, group) in parts.groups.iter().enumerate() {
        // A step belongs to one segment.
        while segments.next_if(|&first| first <= number).is_some() {
            open = None;
        }
        let mut own = vec![number];
        match (&group.work, open) {
            (Work::Matmul { .. }, Some(leader))
                if steps[leader].len() < MOST && joins(parts, leader, group) =>
            {
                steps[leader].append(&mut own);
            }
            // On a GPU every matmul is a launch, or several.
            (Work::Matmul { .. }, _) => open = (parts.fuse && group.device.is_cpu()).then_some(number),
            (Work::Attention { .. } | Work::Conv2d { .. }, _) => open = None,
            (Work::Loop | Work::Gather { .. } | Work::Print(..) | Work::Transfer { .. }, _) => {}
        }
        steps.push(own);
    }
    steps
}

/// Whether a matmul has the left operand of another, and everything else that it reads is there before that one runs.
fn joins(parts: &Parts, leader: usize, group: &Group) -> bool {
    let other = &parts.groups[leader];
    let (Work::Matmul { lhs, rhs, .. }, Work::Matmul { lhs: other_lhs, .. }) = (&group.work, &other.work)
    else {
        return false;
    };
    let is_there = |read: &Use| {
        let Node { source, .. } = &parts.nodes[read.node.0 as usize];
        !matches!(source, Source::Group(writer, _) if *writer >= leader)
    };
    let rows = |group: &Group| group.space.len() - 1;
    group.device == other.device
        && lhs == other_lhs
        && group.space[..rows(group)] == other.space[..rows(other)]
        && std::iter::once(rhs).chain(&group.uses).all(is_there)
}

/// The work of groups as that of one step, if there is any: several matmuls are launched together.
pub(super) fn launched(mut works: Vec<program::Work>) -> Result<Option<program::Work>> {
    if works.len() <= 1 {
        return Ok(works.pop());
    }
    let matmul = |work| match work {
        program::Work::Kernel(kernel) => match *kernel {
            Kernel::Matmul(k) => Ok(k),
            other => bail!(internal, "a {} shares a step", other.kind()),
        },
        work => bail!(internal, "{work:?} shares a step"),
    };
    let all = works.into_iter().map(matmul).collect::<Result<_>>()?;
    Ok(Some(program::Work::Kernel(Box::new(Kernel::Matmuls(all)))))
}

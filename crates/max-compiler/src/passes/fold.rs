//! Constant folding: ops on constants are computed once, at compile time.

use max_core::{Bindings, Result, Type};
use max_graph::op::Run;
use max_graph::ops::constant::Constant;
use max_graph::properties::{Effects, Folding};
use max_graph::{Body, HostTensor, OpId, OpKind, ValueId};

use super::rewrite::{Builder, rebuild};

/// Results of up to this many bytes are folded even if they are larger than the operands.
const SMALL: usize = 64 << 10;

/// The most bytes of operands for ops that do a lot of work per element.
const MODEST: usize = 1 << 20;

/// All results in one graph take at most this many bytes plus twice the bytes of its constants.
const TOTAL: usize = 64 << 20;

/// Evaluates ops whose operands are constants. Ops that fail are kept, to fail at run time.
pub fn fold(body: &Body) -> Result<Body> {
    fold_where(body, |folding| match folding {
        Folding::Exactly | Folding::Approximately => true,
        Folding::Never => false,
    })
}

/// Like [`fold`], but only where that gives the same bits as a kernel.
pub fn fold_exactly(body: &Body) -> Result<Body> {
    fold_where(body, |folding| folding == Folding::Exactly)
}

fn fold_where(body: &Body, may: fn(Folding) -> bool) -> Result<Body> {
    let constants = body.ops().map(|op| match &op.kind {
        OpKind::Constant(constant) => constant.value.bytes().len(),
        _ => 0,
    });
    let mut room = constants.fold(TOTAL, |room, bytes| room.saturating_add(bytes.saturating_mul(2)));
    rebuild(body, |b, _, op| {
        let properties = b.properties(b.op(op));
        let may = may(properties.folding) && properties.effects == Effects::NONE;
        if may { fold_op(b, op, properties.heavy, &mut room) } else { None }
    })
}

fn fold_op(b: &mut Builder, id: OpId, heavy: bool, room: &mut usize) -> Option<Vec<ValueId>> {
    let op = b.op(id);
    let operands = op.operands.iter().map(|&v| b.constant(v).cloned()).collect::<Option<Vec<_>>>()?;
    let expected = op.results.iter().map(|&v| sizes(b.type_of(v))).collect::<Option<Vec<_>>>()?;
    let devices = op.results.iter().map(|&v| b.type_of(v).device()).collect::<Option<Vec<_>>>()?;
    let given: usize = operands.iter().map(|t| t.bytes().len()).sum();
    let made = expected.iter().try_fold(0usize, |sum, (_, bytes)| sum.checked_add(*bytes))?;
    let modest = if heavy { given <= MODEST && made <= SMALL } else { made <= SMALL || made <= given };
    *room = room.checked_sub(made).filter(|_| modest)?;
    let results = op.kind.eval(&operands, &Run { bindings: &Bindings::new(), environment: &() }).ok()?;
    let as_promised = |(result, (shape, bytes)): (&HostTensor, &(Vec<usize>, usize))| {
        result.shape() == shape && result.bytes().len() == *bytes
    };
    if results.len() != expected.len() || !results.iter().zip(&expected).all(as_promised) {
        return None;
    }
    b.spare();
    results.into_iter().zip(devices).map(|(value, device)| b.push(Constant { value, device }, [])).collect()
}

/// The sizes of a tensor without symbols, and its bytes.
fn sizes(ty: &Type) -> Option<(Vec<usize>, usize)> {
    let (dtype, shape) = ty.array()?;
    let sizes = shape.evaluate(&Bindings::new()).ok()?;
    let bytes = max_graph::host::byte_count(dtype, &sizes).ok()?;
    Some((sizes, bytes))
}

//! Collectives: what devices compute together, each with a part of the data.

use crate::DType;

/// What a collective computes, from one tensor per device to one tensor per device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// All tensors, joined along an axis, on every device.
    AllGather,
    /// The sum of all tensors, on every device.
    AllReduceSum,
    /// The sum of all tensors, cut along an axis into one part per device.
    ReduceScatterSum,
    /// The one tensor there is, on every device.
    Broadcast,
}

impl Collective {
    /// All of them.
    pub const ALL: [Collective; 4] = [
        Collective::AllGather,
        Collective::AllReduceSum,
        Collective::ReduceScatterSum,
        Collective::Broadcast,
    ];

    /// The name in the IR.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllGather => "allgather",
            Collective::AllReduceSum => "allreduce_sum",
            Collective::ReduceScatterSum => "reducescatter_sum",
            Collective::Broadcast => "broadcast",
        }
    }

    /// Whether it adds elements.
    pub fn sums(self) -> bool {
        matches!(self, Collective::AllReduceSum | Collective::ReduceScatterSum)
    }
}

/// NCCL's number for the dtype of elements that it can add; `None` if it cannot.
pub fn nccl_number(dtype: DType) -> Option<i32> {
    Some(match dtype {
        DType::Int8 => 0,
        DType::UInt8 => 1,
        DType::Int32 => 2,
        DType::UInt32 => 3,
        DType::Int64 => 4,
        DType::UInt64 => 5,
        DType::Float16 => 6,
        DType::Float32 => 7,
        DType::Float64 => 8,
        DType::BFloat16 => 9,
        _ => return None,
    })
}

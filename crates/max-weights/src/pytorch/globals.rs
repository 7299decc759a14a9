//! What a state dict may name: the only things outside itself that a pickle can mean here.

use max_core::DType;

/// A function or type of Python that means something in a state dict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    /// Makes an empty dict.
    Dict,
    /// Makes a tensor of a storage, an offset, sizes and strides.
    Tensor,
    /// The same; a dtype follows.
    TypedTensor,
    /// Makes a parameter of a tensor.
    Parameter,
    /// Makes a shape of sizes.
    Size,
    /// Makes something that has no tensors: a device, bytes.
    Other,
    /// A storage of elements.
    Storage(DType),
    /// A storage of bytes.
    Bytes,
    /// A dtype.
    DType(DType),
}

/// The thing with a name in a module; none for everything that is not on this list.
pub(super) fn find(module: &[u8], name: &[u8]) -> Option<Global> {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let (module, name) = (text(module)?, text(name)?);
    match (module, name) {
        ("collections", "OrderedDict") => Some(Global::Dict),
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(Global::Tensor),
        ("torch._utils", "_rebuild_tensor_v3") => Some(Global::TypedTensor),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Global::Parameter),
        ("torch", "Size") => Some(Global::Size),
        ("torch", "device") | ("_codecs", "encode") => Some(Global::Other),
        ("torch" | "torch.storage", "UntypedStorage") => Some(Global::Bytes),
        ("torch" | "torch.cuda", _) if name.ends_with("Storage") => {
            STORAGES.iter().find(|(known, _)| *known == name).map(|&(_, dtype)| Global::Storage(dtype))
        }
        ("torch", _) => name.parse().ok().filter(|dtype| DTYPES.contains(dtype)).map(Global::DType),
        _ => None,
    }
}

const STORAGES: &[(&str, DType)] = &[
    ("BoolStorage", DType::Bool),
    ("ByteStorage", DType::UInt8),
    ("CharStorage", DType::Int8),
    ("ShortStorage", DType::Int16),
    ("IntStorage", DType::Int32),
    ("LongStorage", DType::Int64),
    ("HalfStorage", DType::Float16),
    ("BFloat16Storage", DType::BFloat16),
    ("FloatStorage", DType::Float32),
    ("DoubleStorage", DType::Float64),
];

/// The dtypes that have the same name and the same bytes in PyTorch.
const DTYPES: &[DType] = &[
    DType::Bool,
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
    DType::Float8E4M3FN,
    DType::Float8E4M3FNUZ,
    DType::Float8E5M2,
    DType::Float8E5M2FNUZ,
    DType::Float8E8M0FNU,
    DType::Float16,
    DType::BFloat16,
    DType::Float32,
    DType::Float64,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_else_has_a_meaning() {
        let find = |module: &str, name: &str| find(module.as_bytes(), name.as_bytes());
        assert_eq!(find("torch", "BFloat16Storage"), Some(Global::Storage(DType::BFloat16)));
        assert_eq!(find("torch", "float8_e4m3fn"), Some(Global::DType(DType::Float8E4M3FN)));
        let others = [
            ("os", "system"),
            ("builtins", "eval"),
            ("torch", "load"),
            ("torch", "float4_e2m1fn"),
            ("torch", "ComplexFloatStorage"),
            ("torch.storage", "_load_from_bytes"),
            ("collections", "Counter"),
            ("", ""),
        ];
        for (module, name) in others {
            assert_eq!(find(module, name), None, "{module}.{name}");
        }
    }
}

//! Decoding of quantized weights.

use max_core::quantization::Format;
use max_core::{DType, Dim, QuantizationEncoding, Result, TensorType, Type, bail};

use crate::attr::op_struct;
use crate::graph::record_one;
use crate::host::HostTensor;
use crate::op::{Operation, Run};
use crate::operand::Operand;
use crate::ops::rebind::assert_dim;
use crate::ops::tensors;
use crate::properties::{Effects, Folding, Form, Properties, Signature};
use crate::registry::op_fns;
use crate::value::TensorValue;

op_struct! {
    /// The elements of blocks, which are whole along the last axis.
    Dequantize = "dequantize" { encoding: QuantizationEncoding }
}

op_fns! {
    /// Decodes blocks of quantized elements, whose bytes are along the last axis, to float32.
    ///
    /// The size of that axis must be a multiple of the block size; one that is not known is checked at run time.
    pub fn dequantize(encoding: QuantizationEncoding, quantized: Operand) -> TensorValue {
        let x = quantized.tensor()?;
        let op = Dequantize { encoding };
        let Some(last) = x.shape().last() else {
            bail!(value, "dequantize needs at least one axis; got a scalar");
        };
        let block = op.format()?.bytes;
        let whole = last.floor_div(&block.into())?.mul(&block.into())?;
        let axis = x.rank() - 1;
        let message = format!("the last dimension of quantized is not divisible by the block size ({block})");
        record_one(op, [&assert_dim(x, axis, whole, &message)?])
    }
}

impl Dequantize {
    /// The format of the blocks.
    pub fn format(&self) -> Result<&'static Format> {
        match self.encoding.blocks() {
            Some(format) => Ok(format),
            None => bail!(value, "unsupported quantization encoding {}: it has no blocks", self.encoding),
        }
    }
}

impl Operation for Dequantize {
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>> {
        let [x] = tensors(operands)?;
        let format = self.format()?;
        if x.dtype != DType::UInt8 {
            bail!(type_, "dequantize needs the bytes of blocks as uint8; got {}", x.dtype);
        }
        let Some((last, outer)) = x.shape.split_last() else {
            bail!(value, "dequantize needs at least one axis; got a scalar");
        };
        let block = Dim::from(format.bytes);
        let blocks = last.floor_div(&block)?;
        if blocks.mul(&block)? != *last {
            match last.as_static() {
                Some(size) => bail!(value, "last dimension ({size}) not divisible by block size ({block})"),
                None => bail!(
                    type_,
                    "dequantize only supported with static last dimension, or one that is a multiple of the block size \
                     ({block}); got {last}"
                ),
            }
        }
        let last = blocks.mul(&format.elements.into())?;
        let shape = [outer, &[last]].concat();
        Ok(vec![TensorType { dtype: DType::Float32, ..x.with_shape(shape) }.into()])
    }

    fn properties(&self, _: Signature) -> Properties {
        Properties {
            effects: Effects::NONE,
            checks: false,
            form: Form::Kernel,
            folding: Folding::Exactly,
            heavy: false,
            rounds_operands: false,
        }
    }

    fn eval(&self, operands: &[HostTensor], _: &Run) -> Result<Vec<HostTensor>> {
        let (x, format) = (&operands[0], self.format()?);
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = *last / format.bytes * format.elements;
        }
        Ok(vec![HostTensor::from_vec(shape, self.encoding.dequantize(&x.elements::<u8>()?)?)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;
    use crate::text::{self, Constants};
    use max_core::{DeviceRef, ErrorKind};

    fn of(encoding: QuantizationEncoding, ty: TensorType) -> Result<TensorType> {
        let graph = Graph::new("g", [ty])?;
        let _scope = graph.enter();
        dequantize(encoding, &graph.inputs()[0]).map(|x| x.tensor_type().clone())
    }

    fn bytes<D: Into<Dim>>(shape: impl IntoIterator<Item = D>) -> TensorType {
        TensorType::new(DType::UInt8, shape.into_iter().map(Into::into).collect::<Vec<Dim>>(), DeviceRef::CPU)
    }

    #[test]
    fn types() {
        use QuantizationEncoding::*;
        let shape = |encoding, ty| of(encoding, ty).map(|ty| ty.to_string()).unwrap();
        assert_eq!(shape(Q4_0, bytes([4, 36])), "float32[4, 64]");
        assert_eq!(shape(Q6_K, bytes([210])), "float32[256]");
        assert_eq!(shape(MXFP4, bytes([2, 0, 3, 17])), "float32[2, 0, 3, 32]");
        assert_eq!(shape(Q4_K, bytes([0])), "float32[0]");
        let rows = Dim::from("n").mul(&Dim::Static(36)).unwrap();
        assert_eq!(shape(Q4_0, bytes([Dim::from("b"), rows])), "float32[b, n * 64]");
        // Whether it is a multiple is known at run time.
        assert_eq!(shape(Q8_0, bytes(["b", "n"])), "float32[b, (n // 34) * 32]");
    }

    #[test]
    fn errors() {
        use QuantizationEncoding::*;
        let error = |encoding, ty| of(encoding, ty).unwrap_err();
        let e = error(Q4_K, bytes([4, 36]));
        assert_eq!(e.kind(), ErrorKind::Value);
        assert_eq!(e.message(), "last dimension (36) not divisible by block size (144)");
        assert_eq!(error(Q4_0, bytes::<i64>([])).kind(), ErrorKind::Value);
        assert!(error(GPTQ, bytes([18])).message().contains("unsupported quantization encoding gptq"));
        assert!(error(GPTQ, bytes(["n"])).message().contains("unsupported quantization encoding gptq"));
        let signed = TensorType::new(DType::Int8, [18], DeviceRef::CPU);
        assert_eq!(error(Q4_0, signed).message(), "dequantize needs the bytes of blocks as uint8; got int8");
        // The number of elements must be a size.
        assert!(of(Q4_0, bytes([i64::MAX / 18 * 18])).is_err());
        let text = |ty: &str| {
            let text = format!(
                "graph \"g\"(%0: uint8[{ty}]) {{\n  %1 = dequantize(%0) {{encoding = \"q4_0\"}} : float32[n]\n  return %1\n}}"
            );
            text::parse(&text).map(|body| text::print(&body, Constants::Full)).map_err(|e| e.to_string())
        };
        assert!(text("n").unwrap_err().contains("dequantize only supported with static last dimension"));
    }

    #[test]
    fn text_has_the_name_of_the_encoding() {
        let source = "graph \"g\"(%0: uint8[n, 36]) {\n  %1 = dequantize(%0) {encoding = \"q4_0\"} : float32[n, 64]\n  return %1\n}\n";
        assert_eq!(text::print(&text::parse(source).unwrap(), Constants::Full), source);
        assert!(text::parse(&source.replace("q4_0", "q9")).is_err());
    }
}

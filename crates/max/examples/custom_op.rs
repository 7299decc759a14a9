//! Custom ops in the program that uses them: a Rust function on slices, and a function over other ops, which fuses.

use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::{InferenceSession, custom};
use max::graph::{CustomOp, Graph, KernelLibrary, TensorType, ops};

fn main() -> max::Result<()> {
    let library = KernelLibrary::new();
    library.add(custom::rust("row_norms", "float32[n, k] -> float32[n]", |call: &mut custom::Call| {
        let (x, k) = (call.inputs[0].slice::<f32>()?, call.inputs[0].shape()[1]);
        for (row, norm) in call.outputs[0].slice_mut::<f32>()?.iter_mut().enumerate() {
            *norm = x[row * k..][..k].iter().map(|x| x * x).sum::<f32>().sqrt();
        }
        Ok(())
    })?)?;
    library.add(CustomOp::body("square_plus_one", |x, _| {
        let square = (&x[0] * &x[0])?;
        Ok(vec![(&square + 1.0)?])
    }))?;

    let cpu = CPU();
    let matrix = TensorType::new(DType::Float32, ("n", 2), &cpu);
    let graph = Graph::new("norms", [matrix])?.with_library(&library);
    let scope = graph.enter();
    let vector = TensorType::new(DType::Float32, ["n"], &cpu);
    let norms = ops::custom("row_norms", &cpu, [graph.input(0)?], [vector.clone().into()], ())?;
    let last = ops::custom("square_plus_one", &cpu, [norms[0].tensor()?], [vector.into()], ())?;
    graph.output(last[0].tensor()?)?;
    drop(scope);

    let model = InferenceSession::new([cpu]).load(&graph)?;
    let result = model.execute(&[Buffer::from_slice(&[3.0f32, 4.0, 6.0, 8.0], &[2, 2])?])?;
    assert_eq!(result[0].to_vec::<f32>()?, [26.0, 101.0]);
    println!("{}", result[0]);
    Ok(())
}

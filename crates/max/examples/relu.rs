//! The five-element relu: build a graph, compile it, run it.

use max::driver::{Buffer, CPU};
use max::dtype::DType;
use max::engine::InferenceSession;
use max::graph::{Graph, TensorType, ops};

fn main() -> max::Result<()> {
    // Build the graph
    let cpu = CPU();
    let input_type = TensorType::new(DType::Float32, [5], &cpu);
    let graph = Graph::build("relu_graph", [input_type], |x| ops::relu(&x[0]))?;

    // Compile the graph
    let session = InferenceSession::new([cpu]);
    let model = session.load(&graph)?;

    // Run the computation and inspect results
    let input_data = Buffer::from([1.0f32, -2.0, 3.0, -4.0, 5.0]);
    let result = model.execute(&[input_data])?;
    println!("{}", result[0]);
    Ok(())
}

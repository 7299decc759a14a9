//! What a trace reports about realizations.

use max_core::Result;
use max_tensor::{Reason, Tensor, Trace, functional, functions as F, lazy};

#[test]
fn a_trace_says_when_and_why() -> Result<()> {
    let x = Tensor::from([1.0f32, -2.0, 3.0]);
    F::relu(&x)?;
    let trace = Trace::start();
    F::relu(&x)?;
    let y = functional(|| F::tanh((&x * 3.0)? + &x))?;
    let z = lazy(|| F::exp(&y))?;
    z.to_vec::<f32>()?;
    trace.stop();
    F::relu(&z)?;

    let seen = trace.realizations();
    let reasons: Vec<_> = seen.iter().map(|realization| realization.reason).collect();
    assert_eq!(reasons, [Reason::BareOp, Reason::EndOfRegion, Reason::Read]);
    assert!(!seen[0].compiled && seen[1].compiled);
    assert_eq!((seen[1].ops, seen[1].tensors), (4, 1));
    assert_eq!(seen[1].model.kernel_summaries().len(), 1);
    assert!(seen.iter().all(|realization| {
        realization.location.as_ref().is_some_and(|location| location.file.ends_with("trace.rs"))
    }));

    let text = trace.text();
    assert!(text.contains("1 tensor realized by the end of a region at "), "{text}");
    assert!(text.contains("mul, add, tanh"), "{text}");
    let html = trace.html();
    assert!(html.starts_with("<!DOCTYPE html>") && html.matches("<svg").count() == 3, "{html}");

    let path = std::env::temp_dir().join(format!("max-trace-{}.html", std::process::id()));
    trace.save(&path)?;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), html);
    std::fs::remove_file(&path).unwrap();
    assert!(trace.save("/no/such/folder/trace.html").unwrap_err().to_string().contains("cannot write"));
    Ok(())
}

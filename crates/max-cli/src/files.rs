//! `max convert` and `max inspect`: files of weights.

use std::io::{self, Write};

use max_core::Error;
use max_weights::{Inspection, MetadataValue, Size};

use crate::arguments::{Convert, Description, Inspect};
use crate::progress::Bar;
use crate::{Outcome, table};

/// The most characters of a value of metadata in a table.
const SHOWN: usize = 100;

/// Converts weights, and says what was done.
pub fn convert(arguments: &Convert, output: &mut dyn Write) -> Outcome {
    let mut bar = None;
    let done = max_weights::convert(&arguments.inputs, &arguments.output, arguments.to, |progress| {
        bar.get_or_insert_with(|| Bar::of_bytes("", progress.total)).set(progress.written);
    });
    if let Some(bar) = bar {
        bar.clear();
    }
    let done = done?;
    let (read, written) = (table::size(done.bytes_read), table::size(done.bytes_written));
    let (tensors, converted) = (done.tensors, done.converted);
    writeln!(output, "{}: {tensors} tensors, {converted} of them converted", arguments.output.display())?;
    writeln!(output, "{read} became {written}")?;
    if !done.not_whole.is_empty() {
        let names: Vec<String> = done.not_whole.iter().map(|name| table::shortened(name, SHOWN)).collect();
        writeln!(output, "left as they are, because rows are not whole blocks: {}", names.join(", "))?;
    }
    Ok(())
}

/// Describes a file.
pub fn inspect(arguments: &Inspect, output: &mut dyn Write) -> Outcome {
    let inspection = max_weights::inspect(&arguments.file)?;
    match arguments.output {
        Description::Text => Ok(describe(&inspection, output)?),
        Description::Json => {
            let text = serde_json::to_string_pretty(&inspection);
            let text =
                text.map_err(|error| Error::internal(format!("a description without JSON: {error}")))?;
            Ok(writeln!(output, "{text}")?)
        }
    }
}

fn describe(inspection: &Inspection, output: &mut dyn Write) -> io::Result<()> {
    let Inspection { kind, files, file_bytes, tensors, metadata, graph } = inspection;
    let kind = format!("{kind:?}").to_lowercase();
    for file in files {
        writeln!(output, "{}", file.display())?;
    }
    writeln!(output, "{kind}, {}, {} tensors", table::size(*file_bytes), tensors.len())?;
    if let Some(graph) = graph {
        writeln!(output, "\nGraph {}:", table::shortened(&graph.name, SHOWN))?;
        let row = |name: &str, value: String| vec![name.to_string(), value];
        let ops: Vec<String> = graph.ops.iter().map(|(op, count)| format!("{op} {count}")).collect();
        let rows = [
            row("inputs", graph.inputs.join(", ")),
            row("outputs", graph.outputs.join(", ")),
            row("ops", ops.join(", ")),
            row("constants", table::size(graph.constant_bytes)),
        ];
        table::write(&rows, output)?;
    }
    if !metadata.is_empty() {
        writeln!(output, "\nMetadata:")?;
        let rows = metadata.iter().map(|(key, value)| vec![table::shortened(key, SHOWN), brief(value)]);
        table::write(&rows.collect::<Vec<_>>(), output)?;
    }
    if !tensors.is_empty() {
        writeln!(output, "\nTensors:")?;
        let rows = tensors.iter().map(|tensor| {
            let sizes = tensor.shape.iter().map(|size| match size {
                Size::Static(size) => size.to_string(),
                Size::Symbolic(size) => size.clone(),
            });
            vec![
                table::shortened(&tensor.name, SHOWN),
                tensor.encoding.clone().unwrap_or_else(|| tensor.dtype.clone()),
                format!("[{}]", sizes.collect::<Vec<_>>().join(", ")),
                tensor.num_bytes.map(table::size).unwrap_or_default(),
            ]
        });
        table::write(&rows.collect::<Vec<_>>(), output)?;
    }
    Ok(())
}

/// A value of metadata; of many values the first ones.
fn brief(value: &MetadataValue) -> String {
    const FIRST: usize = 8;
    match value.as_array() {
        Some(array) if array.len() > FIRST => {
            let first: Vec<String> =
                array.iter().take(FIRST).map(|value| table::shortened(&value.to_string(), 20)).collect();
            format!("[{}, ... {} values]", first.join(", "), array.len())
        }
        _ => table::shortened(&value.to_string(), SHOWN),
    }
}

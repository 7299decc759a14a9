//! `max list`: what can be run.

use std::io::Write;

use max_pipelines::hub::Hub;
use max_pipelines::{ARCHITECTURES, EMBEDDED};

use crate::{Outcome, table};

pub fn run(output: &mut dyn Write) -> Outcome {
    writeln!(output, "Architectures:")?;
    let rows =
        ARCHITECTURES.iter().map(|known| vec![known.name.into(), format!("max {}", known.kind.task())]);
    table::write(&rows.collect::<Vec<_>>(), output)?;

    writeln!(output, "\nBuilt-in models:")?;
    let rows = EMBEDDED
        .iter()
        .map(|model| vec![model.name.into(), table::size(model.num_bytes() as u64), model.about.into()]);
    table::write(&rows.collect::<Vec<_>>(), output)?;

    let hub = Hub::from_environment();
    writeln!(output, "\nModels in {}:", hub.cache.display())?;
    let models = hub.models();
    if models.is_empty() {
        writeln!(output, "  none")?;
    }
    let rows = models.iter().map(|model| vec![table::shortened(&model.name, 96), table::size(model.bytes)]);
    Ok(table::write(&rows.collect::<Vec<_>>(), output)?)
}

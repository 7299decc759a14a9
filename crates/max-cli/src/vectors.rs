//! How vectors are written.

use std::io::{self, Write};

use max_pipelines::Embeddings;

use crate::arguments::Format;
use crate::table::shortened;

/// The numbers of a vector that a terminal shows.
const SHOWN: usize = 6;

/// The most texts whose similarities a terminal shows.
const COMPARED: usize = 10;

/// Writes vectors, or a summary of them for somebody who watches.
pub fn write(
    vectors: &Embeddings,
    texts: &[String],
    format: Format,
    watched: bool,
    output: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Json => json(vectors, output),
        Format::Npy => npy(vectors, output),
        Format::Text if watched => summary(vectors, texts, output),
        Format::Text => text(vectors, output),
    }
}

fn text(vectors: &Embeddings, output: &mut dyn Write) -> io::Result<()> {
    for vector in vectors.iter() {
        for (at, number) in vector.iter().enumerate() {
            write!(output, "{}{number}", if at > 0 { " " } else { "" })?;
        }
        writeln!(output)?;
    }
    Ok(())
}

/// Numbers have as many digits as it takes to tell them from all others. For those that are not finite, JSON has no word.
fn json(vectors: &Embeddings, output: &mut dyn Write) -> io::Result<()> {
    write!(output, "{{\"embeddings\": [")?;
    for (at, vector) in vectors.iter().enumerate() {
        write!(output, "{}[", if at > 0 { ", " } else { "" })?;
        for (at, number) in vector.iter().enumerate() {
            let separator = if at > 0 { ", " } else { "" };
            match number.is_finite() {
                true => write!(output, "{separator}{number}")?,
                false => write!(output, "{separator}null")?,
            }
        }
        write!(output, "]")?;
    }
    writeln!(output, "]}}")
}

/// The first version of NumPy's format: a header that ends at a multiple of 64 bytes, then the elements.
fn npy(vectors: &Embeddings, output: &mut dyn Write) -> io::Result<()> {
    let shape = (vectors.len(), vectors.dimension());
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape:?}, }}");
    let magic = b"\x93NUMPY\x01\x00";
    let before = magic.len() + size_of::<u16>();
    let size = (before + header.len() + 1).next_multiple_of(64) - before;
    output.write_all(magic)?;
    output.write_all(&(size as u16).to_le_bytes())?;
    writeln!(output, "{header:<padded$}", padded = size - 1)?;
    vectors.values().iter().try_for_each(|number| output.write_all(&number.to_le_bytes()))
}

/// The beginning of each vector, and how similar the texts are.
fn summary(vectors: &Embeddings, texts: &[String], output: &mut dyn Write) -> io::Result<()> {
    let dots = if vectors.dimension() > SHOWN { " ..." } else { "" };
    for (at, (vector, text)) in vectors.iter().zip(texts).enumerate() {
        write!(output, "{:3} ", at + 1)?;
        for number in vector.iter().take(SHOWN) {
            write!(output, " {number:7.4}")?;
        }
        writeln!(output, "{dots}  {}", shortened(text, 48))?;
    }
    if (2..=COMPARED).contains(&vectors.len()) {
        writeln!(output, "\nSimilarity of the texts, 1 for the same meaning:")?;
        for row in 0..vectors.len() {
            write!(output, "{:3} ", row + 1)?;
            for column in 0..=row {
                write!(output, " {:5.2}", vectors.similarity(row, column))?;
            }
            writeln!(output)?;
        }
    }
    let (count, dimension) = (vectors.len(), vectors.dimension());
    writeln!(output, "\n{count} x {dimension} numbers; --output json or --output npy has all of them")
}

//! The bytes of one file: read where they describe, mapped where they are data.
//!
//! A mapped file that another program truncates ends the process when the missing bytes are touched. So nothing is parsed
//! out of the mapping, and before a weight is handed out the file is asked whether it still has its length. Replacing a
//! file by renaming another one over it is always safe: the mapping keeps the old one.

use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use max_core::memory::try_reserve;
use max_core::{DType, Error, HostBytes, Result, ViewIndex, bail};
use max_driver::{Buffer, MmapMode};

/// One file, or bytes in memory that are like one.
pub(crate) struct Source {
    place: Place,
    /// All of its bytes.
    data: Buffer,
}

enum Place {
    File { path: Arc<Path>, file: File },
    Memory(HostBytes),
}

impl Source {
    /// Opens and maps a file.
    pub(crate) fn open(path: &Path) -> Result<Source> {
        let failed = |error: std::io::Error| Error::runtime(format!("the file cannot be read: {error}"));
        // Opening a pipe would wait for a writer, so check first.
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::value("the file does not exist"),
            _ => failed(error),
        })?;
        if !metadata.is_file() {
            bail!(runtime, "it is not a regular file");
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let Ok(len) = usize::try_from(metadata.len()) else {
            bail!(memory, "it has {} bytes", metadata.len())
        };
        if len == 0 {
            bail!(value, "the file is empty");
        }
        let data = Buffer::mmap(path, DType::UInt8, &[len], MmapMode::CopyOnWrite, 0)?;
        // What is read must be what was mapped.
        if !same_file(&metadata, &std::fs::metadata(path).map_err(failed)?) {
            bail!(runtime, "the file was replaced while it was opened");
        }
        Ok(Source { place: Place::File { path: path.into(), file }, data })
    }

    /// Bytes in memory as if they were a file.
    pub(crate) fn from_bytes(bytes: HostBytes) -> Result<Source> {
        let data = Buffer::from_host_bytes(bytes.clone(), DType::UInt8, &[bytes.len()])?;
        Ok(Source { place: Place::Memory(bytes), data })
    }

    /// Where the file is, if it is one.
    pub(crate) fn path(&self) -> Option<Arc<Path>> {
        match &self.place {
            Place::File { path, .. } => Some(path.clone()),
            Place::Memory(_) => None,
        }
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.data.num_bytes()
    }

    /// The bytes from a position on, to be read one after the other.
    pub(crate) fn reader(&self, start: usize) -> Result<Box<dyn Read + '_>> {
        Ok(match &self.place {
            Place::File { file, .. } => {
                let mut file = file;
                file.seek(SeekFrom::Start(start as u64)).map_err(unreadable)?;
                Box::new(file)
            }
            Place::Memory(bytes) => Box::new(Cursor::new(bytes.get(start..).unwrap_or_default())),
        })
    }

    /// Some of the bytes, or an error if the file ends before.
    pub(crate) fn read(&self, start: usize, len: usize) -> Result<Vec<u8>> {
        if start.checked_add(len).is_none_or(|end| end > self.len()) {
            bail!(
                value,
                "it is truncated: it has {} bytes, and {len} from byte {start} on are needed",
                self.len()
            );
        }
        let mut bytes = Vec::new();
        try_reserve(&mut bytes, len, "the description of a file")?;
        bytes.resize(len, 0);
        self.reader(start)?.read_exact(&mut bytes).map_err(unreadable)?;
        Ok(bytes)
    }

    /// Elements in the file: a view of the mapping, or a copy if they are not aligned there.
    pub(crate) fn elements(
        &self,
        start: usize,
        dtype: DType,
        shape: &[usize],
        bytes: usize,
    ) -> Result<Buffer> {
        self.check()?;
        let limit = |at: usize| i64::try_from(at).ok();
        let part = ViewIndex::Slice { start: limit(start), stop: limit(start + bytes), step: 1 };
        let elements = self.data.index(&[part])?.view(dtype, Some(shape))?;
        let aligned = elements.data_ptr().addr().is_multiple_of(dtype.align());
        if aligned { Ok(elements) } else { elements.contiguous() }
    }

    /// An error if the file has become shorter than what was mapped of it.
    fn check(&self) -> Result<()> {
        if let Place::File { path, file } = &self.place {
            let len = file.metadata().map_err(unreadable)?.len();
            if len < self.len() as u64 {
                let (path, had) = (path.display(), self.len());
                bail!(
                    runtime,
                    "'{path}' was truncated after it was loaded: it had {had} bytes and has {len}"
                );
            }
        }
        Ok(())
    }
}

fn unreadable(error: std::io::Error) -> Error {
    Error::runtime(format!("the file cannot be read: {error}"))
}

#[cfg(unix)]
fn same_file(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino(), a.len()) == (b.dev(), b.ino(), b.len())
}

#[cfg(not(unix))]
fn same_file(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    (a.len(), a.modified().ok()) == (b.len(), b.modified().ok())
}

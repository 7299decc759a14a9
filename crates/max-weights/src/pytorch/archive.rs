//! The zip archive: where its uncompressed entries are in the file.

use std::collections::HashMap;
use std::ops::Range;

use max_core::{Error, Result, bail};

use super::MOST_BYTES;
use crate::source::Source;

/// The entries of an archive by name.
pub(super) struct Archive<'a> {
    source: &'a Source,
    entries: HashMap<String, Entry>,
    /// Where the list of entries starts: the data of entries is before it.
    end: usize,
}

/// What the list of entries says about one.
struct Entry {
    /// Whether the data is in the file as it is.
    stored: bool,
    /// The size of the data.
    size: u64,
    /// Where the entry starts: a header of its own, then the data.
    start: u64,
}

/// The fixed parts of a zip file: how each begins, and its size.
const END: (u32, usize) = (0x0605_4b50, 22);
const WIDE_LOCATOR: (u32, usize) = (0x0706_4b50, 20);
const WIDE_END: (u32, usize) = (0x0606_4b50, 56);
const LISTED: (u32, usize) = (0x0201_4b50, 46);
const LOCAL: (u32, usize) = (0x0403_4b50, 30);

/// The extra field with numbers that need 64 bits.
const WIDE_FIELD: u16 = 1;

impl<'a> Archive<'a> {
    /// Reads the list of entries.
    pub(super) fn read(source: &'a Source) -> Result<Archive<'a>> {
        let start = source.read(0, source.len().min(4))?;
        if start != LOCAL.0.to_le_bytes() {
            bail!(
                value,
                "it is not a zip archive, as torch.save writes it since PyTorch 1.6; load and save older files with PyTorch"
            );
        }
        let Directory { count, start, size } = Directory::find(source)?;
        if size > MOST_BYTES || count > (size / LISTED.1) as u64 {
            bail!(
                value,
                "its list of {count} entries in {size} bytes is damaged, or longer than {MOST_BYTES} bytes"
            );
        }
        let list = source.read(start, size)?;
        let (mut entries, mut rest) = (HashMap::new(), &list[..]);
        for _ in 0..count {
            let (name, entry) =
                Entry::read(&mut rest).ok_or_else(|| Error::value("its list of entries is damaged"))?;
            if entries.insert(name, entry).is_some() {
                bail!(value, "it has two entries with one name");
            }
        }
        Ok(Archive { source, entries, end: start })
    }

    /// The folder that everything is in, with a slash if there is one.
    pub(super) fn folder(&self) -> Result<String> {
        let mut folders = self.entries.keys().filter_map(|name| {
            let folder = name.strip_suffix("data.pkl")?;
            (folder.is_empty() || folder.ends_with('/')).then_some(folder)
        });
        match (folders.next(), folders.next()) {
            (Some(folder), None) => Ok(folder.into()),
            _ => bail!(value, "it is not a checkpoint of PyTorch: it has not exactly one data.pkl"),
        }
    }

    /// The bytes of an entry, if there is one with the name.
    pub(super) fn find(&self, name: &str) -> Result<Option<Range<usize>>> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        if !entry.stored {
            bail!(value, "its entry '{name}' is compressed or encrypted, which PyTorch never does");
        }
        let damaged = || Error::value(format!("its entry '{name}' is damaged"));
        let start = usize::try_from(entry.start).map_err(|_| damaged())?;
        let local = self.source.read(start, LOCAL.1)?;
        let mut fields = &local[..];
        if take(&mut fields).map(u32::from_le_bytes) != Some(LOCAL.0) {
            return Err(damaged());
        }
        // The lengths of a name and of extra fields, at the end of the header.
        let length = |at: usize| usize::from(u16::from_le_bytes([local[at], local[at + 1]]));
        let start = start + LOCAL.1 + length(26) + length(28);
        let end = usize::try_from(entry.size).ok().and_then(|size| start.checked_add(size));
        match end.filter(|&end| end <= self.end) {
            Some(end) => Ok(Some(start..end)),
            None => Err(damaged()),
        }
    }
}

/// Where the list of entries is.
struct Directory {
    count: u64,
    start: usize,
    size: usize,
}

impl Directory {
    /// Finds it through the record at the end of the file, which a comment may follow.
    fn find(source: &Source) -> Result<Directory> {
        let tail = (END.1 + usize::from(u16::MAX)).min(source.len());
        let before = source.len() - tail;
        let bytes = source.read(before, tail)?;
        let is_end = |at: &usize| {
            let comment = |record: &[u8]| usize::from(u16::from_le_bytes([record[20], record[21]]));
            let record =
                bytes.get(*at..*at + END.1).filter(|record| record.starts_with(&END.0.to_le_bytes()));
            record.is_some_and(|record| at + END.1 + comment(record) == tail)
        };
        let Some(at) = (0..tail.saturating_sub(END.1 - 1)).rev().find(is_end) else {
            bail!(value, "it is truncated: the end of a zip archive is missing");
        };
        let damaged = || Error::value("the end of the archive is damaged");
        let narrow = || -> Option<[u64; 3]> {
            let mut record = &bytes[at + 10..];
            let count = u16::from_le_bytes(take(&mut record)?).into();
            let size = u32::from_le_bytes(take(&mut record)?).into();
            Some([count, size, u32::from_le_bytes(take(&mut record)?).into()])
        };
        let mut fields = narrow().ok_or_else(damaged)?;
        let is_wide = fields[0] == u64::from(u16::MAX) || fields[1..].contains(&u64::from(u32::MAX));
        if let Some(locator) = (before + at).checked_sub(WIDE_LOCATOR.1).filter(|_| is_wide) {
            let locator = source.read(locator, WIDE_LOCATOR.1)?;
            if locator.starts_with(&WIDE_LOCATOR.0.to_le_bytes()) {
                let start = take(&mut &locator[8..]).map(u64::from_le_bytes).ok_or_else(damaged)?;
                let record = source.read(usize::try_from(start).map_err(|_| damaged())?, WIDE_END.1)?;
                if !record.starts_with(&WIDE_END.0.to_le_bytes()) {
                    return Err(damaged());
                }
                let mut record = &record[32..];
                for field in &mut fields {
                    *field = take(&mut record).map(u64::from_le_bytes).ok_or_else(damaged)?;
                }
            }
        }
        let [count, size, start] = fields;
        let [start, size] = [start, size].map(usize::try_from);
        Ok(Directory { count, start: start.map_err(|_| damaged())?, size: size.map_err(|_| damaged())? })
    }
}

impl Entry {
    /// The next entry of a list.
    fn read(rest: &mut &[u8]) -> Option<(String, Entry)> {
        let fields = rest.split_off(..LISTED.1)?;
        if !fields.starts_with(&LISTED.0.to_le_bytes()) {
            return None;
        }
        let short = |at: usize| u16::from_le_bytes([fields[at], fields[at + 1]]);
        let long = |at: usize| u64::from(u32::from_le_bytes([0, 1, 2, 3].map(|byte| fields[at + byte])));
        let name = rest.split_off(..short(28).into())?;
        let mut extra = rest.split_off(..short(30).into())?;
        rest.split_off(..short(32).into())?;

        // The sizes and the position are in an extra field if they need more than 32 bits.
        let (mut size, mut packed, mut start) = (long(24), long(20), long(42));
        while let (Some(kind), Some(len)) = (take(&mut extra), take(&mut extra)) {
            let mut field = extra.split_off(..u16::from_le_bytes(len).into())?;
            if u16::from_le_bytes(kind) == WIDE_FIELD {
                for number in [&mut size, &mut packed, &mut start] {
                    if *number == u64::from(u32::MAX) {
                        *number = u64::from_le_bytes(take(&mut field)?);
                    }
                }
            }
        }
        const ENCRYPTED: u16 = 1;
        let stored = short(10) == 0 && short(8) & ENCRYPTED == 0 && size == packed;
        Some((String::from_utf8(name.into()).ok()?, Entry { stored, size, start }))
    }
}

/// The next bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*bytes)
}

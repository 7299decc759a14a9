//! The functions loaded on a GPU, and how more are made.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError, RwLock};
use std::thread;

use max_core::{Error, Result};

use super::cache::{Cache, Key};
use super::overlap::{WAITING, waiting};
use super::{Function, Source, nvrtc};
use crate::cuda::Gpu;
use crate::cuda::api::OUT_OF_MEMORY;

/// The functions in memory, by source. A program is one or more sources that are compiled and loaded together.
#[derive(Default)]
pub(crate) struct Modules {
    functions: RwLock<HashMap<Source, Function>>,
    /// The programs being made now: other threads that need them wait.
    making: KeyedLock,
}

/// Deeply nested sources make the compiler recurse deeply.
const STACK_BYTES: usize = 16 << 20;

impl Modules {
    /// The functions of sources, each a program of its own.
    pub(super) fn one_by_one(&self, gpu: &'static Gpu, sources: &[Source]) -> Result<Vec<Function>> {
        let missing = self.missing(sources);
        in_parallel(&missing, |source| self.make(gpu, std::slice::from_ref(*source)))?;
        self.all(sources)
    }

    /// The functions of sources, all in one program.
    pub(super) fn together(&self, gpu: &'static Gpu, sources: &[Source]) -> Result<Vec<Function>> {
        if !self.missing(sources).is_empty() {
            self.make(gpu, sources)?;
        }
        self.all(sources)
    }

    /// The sources without a function, each once.
    fn missing<'a>(&self, sources: &'a [Source]) -> Vec<&'a Source> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let mut seen = HashSet::new();
        sources.iter().filter(|source| !functions.contains_key(source) && seen.insert(*source)).collect()
    }

    fn all(&self, sources: &[Source]) -> Result<Vec<Function>> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let found = sources.iter().map(|source| {
            let missing = || Error::internal(format!("kernel {} was not made", source.name));
            functions.get(source).cloned().ok_or_else(missing)
        });
        found.collect()
    }

    /// Makes a program: loads it from the disk cache or compiles it.
    fn make(&self, gpu: &'static Gpu, sources: &[Source]) -> Result<()> {
        let text = program(sources);
        let _turn = self.making.take(&text);
        if self.missing(sources).is_empty() {
            return Ok(());
        }
        let names = || sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(", ");
        let code = code(gpu, &text).map_err(|error| error.context(format!("in kernel {}", names())))?;
        let made = load(gpu, &code, sources).map_err(|error| {
            let compiler = nvrtc::compiler().map(nvrtc::Compiler::title).unwrap_or_default();
            error.context(format!("in kernel {}, compiled by {compiler}", names()))
        })?;
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        for (source, function) in sources.iter().zip(made) {
            functions.entry(source.clone()).or_insert(function);
        }
        Ok(())
    }
}

/// The text of sources as one program: each prelude once, then the code of each source, whose function waits.
pub(super) fn program(sources: &[Source]) -> String {
    let mut seen = HashSet::new();
    let preludes = sources.iter().map(|source| &*source.prelude).filter(|prelude| seen.insert(*prelude));
    let mut text = WAITING.to_owned();
    let mut seen = HashSet::new();
    let codes = sources
        .iter()
        .filter(|source| seen.insert(*source))
        .map(|source| waiting(&source.name, &source.code).0);
    for part in preludes.map(Cow::Borrowed).chain(codes).filter(|part| !part.is_empty()) {
        text.push_str(&part);
        text.push('\n');
    }
    text
}

/// The compiled code of a program for a GPU.
fn code(gpu: &Gpu, text: &str) -> Result<Vec<u8>> {
    static DISK: OnceLock<Cache> = OnceLock::new();
    let disk = DISK.get_or_init(Cache::of_environment);
    let compiler = nvrtc::compiler()?;
    let target = compiler.target(gpu.capability)?;
    let key = Key::of(&[text.as_bytes(), compiler.facts(target).as_bytes()]);
    if let Some(code) = disk.get(&key) {
        return Ok(code);
    }
    let code = compiler.compile(text, target)?;
    disk.put(&key, &code);
    Ok(code)
}

/// Loads code on a GPU; it is never unloaded.
fn load(gpu: &'static Gpu, code: &[u8], sources: &[Source]) -> Result<Vec<Function>> {
    let _entered = gpu.enter()?;
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is intact: it is what the compiler made.
    let mut read = || unsafe { gpu.api.cuModuleLoadData(&raw mut module, code.as_ptr().cast()) };
    // Memory for code does not come from the pool, which may hold all of the device's memory.
    let status = match read() {
        OUT_OF_MEMORY if gpu.make_room() => read(),
        status => status,
    };
    gpu.api.check(status, "cuModuleLoadData")?;
    let functions = sources.iter().map(|source| {
        let name = CString::new(source.name.as_str()).map_err(|_| {
            Error::internal(format!("the name {:?} of a kernel contains a zero byte", source.name))
        })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle; the module is alive, and the name ends with a zero.
        let status = unsafe { gpu.api.cuModuleGetFunction(&raw mut handle, module, name.as_ptr()) };
        gpu.api.check(status, &format!("cuModuleGetFunction of {}", source.name))?;
        Function::new(gpu, &source.name, handle, waiting(&source.name, &source.code).1)
    });
    functions.collect()
}

/// Runs all jobs on as many threads as there are cores; returns the first failure in the order of the jobs.
fn in_parallel<T: Sync>(jobs: &[T], work: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len());
    if threads <= 1 {
        return jobs.iter().try_for_each(work);
    }
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { return };
            if let Err(error) = work(job) {
                failures.lock().unwrap_or_else(PoisonError::into_inner).push((number, error));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            // If the system refuses more threads, the existing ones do the work.
            if thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, worker).is_err() {
                break;
            }
        }
    });
    // Nothing is left to do here unless no thread could be started.
    worker();
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.into_iter().min_by_key(|(number, _)| *number).map_or(Ok(()), |(_, error)| Err(error))
}

/// A lock per name.
#[derive(Default)]
struct KeyedLock {
    taken: Mutex<HashSet<String>>,
    given_back: Condvar,
}

/// Holds the lock of a name until dropped.
struct KeyedGuard<'a> {
    turns: &'a KeyedLock,
    name: &'a str,
}

impl KeyedLock {
    /// Locks a name, waiting while another thread holds it.
    fn take<'a>(&'a self, name: &'a str) -> KeyedGuard<'a> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.given_back.wait_while(taken, |taken| taken.contains(name));
        waited.unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        KeyedGuard { turns: self, name }
    }
}

impl Drop for KeyedGuard<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(self.name);
        self.turns.given_back.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use max_core::bail;
    use std::sync::Barrier;

    fn source(name: &str, prelude: &'static str, code: &str) -> Source {
        Source { name: name.into(), prelude: prelude.into(), code: code.into() }
    }

    #[test]
    fn a_program_has_each_prelude_and_each_source_once() {
        let sources = [
            source("a", "struct One;", "A"),
            source("b", "struct Two;", "B"),
            source("c", "struct One;", "C"),
            source("d", "", "D"),
            source("a", "struct One;", "A"),
        ];
        let program = |sources| program(sources).strip_prefix(WAITING).map(String::from);
        assert_eq!(program(&sources).unwrap(), "struct One;\nstruct Two;\nA\nB\nC\nD\n");
        assert_eq!(program(&sources[..1]).unwrap(), "struct One;\nA\n");
    }

    #[test]
    fn work_in_parallel_is_done_once_each_and_fails_in_order() {
        let jobs: Vec<usize> = (0..100).collect();
        let done = Mutex::new(Vec::new());
        in_parallel(&jobs, |job| {
            done.lock().unwrap().push(*job);
            Ok(())
        })
        .unwrap();
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, jobs);
        let error = in_parallel(&jobs, |job| match job {
            7 | 40 | 99 => bail!(value, "job {job}"),
            _ => Ok(()),
        });
        assert_eq!(error.unwrap_err().message(), "job 7");
        in_parallel(&[] as &[usize], |_| bail!(internal, "there is no job")).unwrap();
    }

    #[test]
    fn one_thread_at_a_time_has_a_name() {
        let (turns, start, inside) = (KeyedLock::default(), Barrier::new(8), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..100 {
                        let _turn = turns.take("name");
                        let own = format!("{:?}", thread::current().id());
                        let _other = turns.take(&own);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(turns.taken.lock().unwrap().is_empty());
    }
}

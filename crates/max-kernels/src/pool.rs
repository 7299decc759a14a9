//! Threads that run the parts of a kernel.
//!
//! A pool has room for one job at a time. A run publishes its job there; workers join it, and caller and workers claim
//! its tasks from a counter. A caller that finds another job there (of another thread, or the one it is itself a task
//! of) runs its tasks alone, so that threads never wait for each other in a cycle. The caller can always run all tasks
//! itself: workers that sleep, are slow or do not exist only cost speed.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most threads a pool has.
const MOST: usize = 1024;

/// How long a thread spins before it sleeps.
const SPIN_TIME: Duration = Duration::from_micros(40);

/// A fixed number of threads.
pub struct Pool {
    threads: usize,
    shared: Arc<Shared>,
    workers: OnceLock<Vec<JoinHandle<()>>>,
}

/// A job, on the stack of the caller of a run.
struct Job {
    f: &'static (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What callers and workers share. The state holds the number of runs (from bit 32), two flags, and the number of
/// workers in the job; a worker may access the job only between entering it, while it is open, and leaving it.
struct Shared {
    taken: AtomicBool,
    job: AtomicPtr<Job>,
    state: AtomicU64,
    quit: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    left: Condvar,
}

const INSIDE: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const CALLER_SLEEPS: u64 = 1 << 17;
const ONE_RUN: u64 = 1 << 32;

impl Pool {
    /// A pool of `threads` threads, including the caller's. Workers start when first needed.
    pub fn new(threads: usize) -> Pool {
        let shared = Shared {
            taken: AtomicBool::new(false),
            job: AtomicPtr::new(null_mut()),
            state: AtomicU64::new(0),
            quit: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            left: Condvar::new(),
        };
        Pool { threads: threads.clamp(1, MOST), shared: Arc::new(shared), workers: OnceLock::new() }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls a function once for each task and returns when all are done. If a task panics, no further ones are
    /// started, and the panic resumes here.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if self.threads == 1 || tasks <= 1 || shared.taken.swap(true, Acquire) {
            return (0..tasks).for_each(f);
        }
        self.workers.get_or_init(|| start(&self.shared, self.threads - 1));
        // SAFETY: only the lifetime changes. Workers use the reference only while they are in the job, and `finish`
        // returns only when none is and none can enter; nothing in between unwinds.
        let f = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f) };
        let job = Job { f, tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
        shared.publish(&job);
        job.work();
        shared.finish();
        shared.taken.store(false, Release);
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }
}

/// Starts workers, as many as the system allows.
fn start(shared: &Arc<Shared>, count: usize) -> Vec<JoinHandle<()>> {
    let spawn = |number: usize| {
        let shared = Arc::clone(shared);
        let name = format!("max-worker-{number}");
        std::thread::Builder::new().name(name).spawn(move || shared.serve()).ok()
    };
    (1..=count).map_while(spawn).collect()
}

impl Job {
    /// Runs tasks until none are left.
    fn work(&self) {
        let claim = || Some(self.next.fetch_add(1, Relaxed)).filter(|&task| task < self.tasks);
        let all = || std::iter::from_fn(claim).for_each(self.f);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            self.next.store(self.tasks, Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

impl Shared {
    /// Opens a job to the workers.
    fn publish(&self, job: &Job) {
        self.job.store(std::ptr::from_ref(job).cast_mut(), Relaxed);
        let runs = self.state.load(Relaxed) & !(ONE_RUN - 1);
        self.state.store(runs.wrapping_add(ONE_RUN) | OPEN, SeqCst);
        // Either this sees a worker that is about to sleep, or the worker sees the open job before it sleeps.
        let sleepers = self.sleepers.load(SeqCst);
        if sleepers > 0 {
            drop(self.locked());
            if sleepers < job.tasks {
                self.wake.notify_all();
            } else {
                (1..job.tasks).for_each(|_| self.wake.notify_one());
            }
        }
    }

    /// Closes the job and waits until no worker is in it.
    fn finish(&self) {
        self.state.fetch_and(!OPEN, SeqCst);
        if spin_until(|| self.state.load(Acquire) & INSIDE == 0) {
            return;
        }
        let mut guard = self.locked();
        self.state.fetch_or(CALLER_SLEEPS, SeqCst);
        while self.state.load(SeqCst) & INSIDE != 0 {
            guard = self.left.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The main loop of a worker.
    fn serve(&self) {
        let mut last = 0;
        while !self.quit.load(SeqCst) {
            if let Some(run) = self.enter(last) {
                last = run;
                // SAFETY: this worker is in the job, so the caller that holds it on its stack has not returned.
                unsafe { &*self.job.load(Relaxed) }.work();
                self.leave();
            } else if !spin_until(|| self.has_news(last)) {
                self.sleep(last);
            }
        }
    }

    /// Enters the job if it is open and newer than the last one; returns its number.
    fn enter(&self, last: u64) -> Option<u64> {
        let fresh = |state: u64| state & OPEN != 0 && state / ONE_RUN != last;
        let entered = self.state.fetch_update(Acquire, Acquire, |state| fresh(state).then_some(state + 1));
        entered.ok().map(|state| state / ONE_RUN)
    }

    fn leave(&self) {
        let state = self.state.fetch_sub(1, SeqCst);
        if state & (INSIDE | CALLER_SLEEPS) == 1 | CALLER_SLEEPS {
            drop(self.locked());
            self.left.notify_one();
        }
    }

    fn has_news(&self, last: u64) -> bool {
        let state = self.state.load(SeqCst);
        state & OPEN != 0 && state / ONE_RUN != last || self.quit.load(SeqCst)
    }

    fn sleep(&self, last: u64) {
        let mut guard = self.locked();
        self.sleepers.fetch_add(1, SeqCst);
        while !self.has_news(last) {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
    }

    fn locked(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spins on a condition for a while; returns whether it came true. Yields in between, so that a thread with work to do
/// gets the core.
fn spin_until(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > SPIN_TIME {
            return false;
        }
        std::thread::yield_now();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        drop(self.shared.locked());
        self.shared.wake.notify_all();
        for worker in self.workers.take().into_iter().flatten() {
            // A worker catches the panics of its tasks, so the result of join carries no information.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each task ran.
    fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, &|task| {
            counts[task].fetch_add(1, Relaxed);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in (0..200).chain([5000]) {
                assert_eq!(counts(&pool, tasks), vec![1; tasks]);
            }
        }
    }

    #[test]
    fn workers_take_part_and_have_names() {
        let pool = Pool::new(2);
        let names = Mutex::new(std::collections::BTreeSet::new());
        // Two tasks that wait for each other need two threads.
        let barrier = std::sync::Barrier::new(2);
        pool.run(2, &|_| {
            barrier.wait();
            names.lock().unwrap().insert(std::thread::current().name().map(str::to_string));
        });
        let names = names.into_inner().unwrap();
        assert!(names.len() == 2 && names.contains(&Some("max-worker-1".to_string())), "{names:?}");
    }

    #[test]
    fn many_callers_share_a_pool() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for caller in 0..6 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..300 {
                        let tasks = (caller * 7 + round) % 40;
                        assert_eq!(counts(pool, tasks), vec![1; tasks]);
                    }
                });
            }
        });
    }

    #[test]
    fn runs_nest() {
        let pool = Pool::new(3);
        for _ in 0..50 {
            let sum = AtomicUsize::new(0);
            pool.run(7, &|i| {
                pool.run(5, &|j| {
                    pool.run(3, &|k| {
                        sum.fetch_add(i * 100 + j * 10 + k, Relaxed);
                    });
                });
            });
            assert_eq!(sum.into_inner(), 15 * 2100 + 21 * 100 + 35 * 3);
        }
    }

    #[test]
    fn panics_reach_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for round in 0..50 {
            let running = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|task| {
                    running.fetch_add(1, SeqCst);
                    let guard = Leaving(&running);
                    if task == round % 20 {
                        resume_unwind(Box::new(task));
                    }
                    drop(guard);
                });
            }));
            assert_eq!(*result.unwrap_err().downcast::<usize>().unwrap(), round % 20);
            assert_eq!(running.into_inner(), 0);
            assert_eq!(counts(&pool, 20), vec![1; 20]);
        }

        struct Leaving<'a>(&'a AtomicUsize);
        impl Drop for Leaving<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, SeqCst);
            }
        }
    }

    #[test]
    fn pools_end_asleep_or_awake() {
        for round in 0..40 {
            let pool = Pool::new(4);
            assert_eq!(counts(&pool, 9), vec![1; 9]);
            if round % 4 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(counts(&pool, 2), vec![1; 2]);
        }
    }

    #[test]
    fn slow_tasks_put_the_caller_to_sleep() {
        let pool = Pool::new(3);
        let barrier = std::sync::Barrier::new(3);
        pool.run(3, &|_| {
            barrier.wait();
            if std::thread::current().name().is_some_and(|name| name.starts_with("max-worker")) {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        assert_eq!(counts(&pool, 30), vec![1; 30]);
    }
}

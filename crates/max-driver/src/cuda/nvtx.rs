//! Ranges that NVIDIA's profilers show: nothing happens unless one is attached.
//!
//! A profiler names a library in the environment. It is opened at the first range and initialized once: it asks for
//! tables of function slots and writes its callbacks into them. This is version 3 of NVTX, which has no library of its
//! own.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// A range on the calling thread, which ends when dropped. Ranges nest.
pub struct Range {
    pop: Option<Pop>,
    /// It must end on the thread on which it began.
    _thread: PhantomData<*const ()>,
}

/// Begins a range.
pub fn range(name: &str) -> Range {
    let tool = tool();
    if let Some(Tool { push, .. }) = tool {
        let bytes: Vec<u8> = name.bytes().filter(|&byte| byte != 0).collect();
        let name = CString::new(bytes).unwrap_or_default();
        // SAFETY: the string is zero-terminated and copied by the call.
        unsafe { push(name.as_ptr()) };
    }
    Range { pop: tool.map(|tool| tool.pop), _thread: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(pop) = self.pop {
            // SAFETY: this thread began the range.
            unsafe { pop() };
        }
    }
}

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// The callbacks of an attached profiler.
struct Tool {
    push: Push,
    pop: Pop,
}

/// The profiler, if one is attached.
fn tool() -> Option<&'static Tool> {
    static TOOL: OnceLock<Option<Tool>> = OnceLock::new();
    TOOL.get_or_init(attach).as_ref()
}

fn attach() -> Option<Tool> {
    type Initialize = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
    let path = std::env::var_os("NVTX_INJECTION64_PATH").filter(|path| !path.is_empty())?;
    // SAFETY: whoever set the variable wants the library in this process.
    let library = unsafe { Library::new(path) }.ok()?;
    // SAFETY: this is the type of the function of that name.
    let initialize = unsafe { library.get::<Initialize>("InitializeInjectionNvtx2") }.ok()?;
    // SAFETY: the tables have the layout of the protocol and live as long as the process.
    if unsafe { initialize(export_table) } == 0 {
        return None;
    }
    // Functions of the library are called until the process ends.
    std::mem::forget(library);
    let [push, pop] = [RANGE_PUSH, RANGE_POP].map(|number| SLOTS[CORE][number].load(Ordering::Acquire));
    if push.is_null() || pop.is_null() {
        return None;
    }
    // SAFETY: the profiler wrote functions of these types to these slots.
    unsafe {
        Some(Tool {
            push: std::mem::transmute::<*mut c_void, Push>(push),
            pop: std::mem::transmute::<*mut c_void, Pop>(pop),
        })
    }
}

/// The number of slots of each module of functions, by its published number. Only those of ranges are called, but a
/// profiler may fill in all of them.
const SIZES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const CORE: usize = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;
/// A table ends with a null after its last slot.
const ROOM: usize = 17;

/// The slots that a profiler writes functions to.
static SLOTS: [[AtomicPtr<c_void>; ROOM]; SIZES.len()] =
    [const { [const { AtomicPtr::new(std::ptr::null_mut()) }; ROOM] }; SIZES.len()];

/// The address of a slot, or null.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct SlotPointer(*const AtomicPtr<c_void>);

// SAFETY: the address of a static of atomics.
unsafe impl Sync for SlotPointer {}

/// The tables of slots, as the protocol wants them: the first entry of each is not a function.
static TABLES: [[SlotPointer; ROOM]; SIZES.len()] = {
    let mut tables = [[SlotPointer(std::ptr::null()); ROOM]; SIZES.len()];
    let mut module = 0;
    while module < SIZES.len() {
        let mut number = 1;
        while number < SIZES[module] {
            tables[module][number] = SlotPointer(&raw const SLOTS[module][number]);
            number += 1;
        }
        module += 1;
    }
    tables
};

/// What a profiler gets when it asks for callbacks.
#[repr(C)]
struct Callbacks {
    size: usize,
    module_table: extern "C" fn(c_int, *mut *const SlotPointer, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module_table };

/// What a profiler gets when it asks for the version.
#[repr(C)]
struct VersionInfo {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

static VERSION_INFO: VersionInfo =
    VersionInfo { size: size_of::<VersionInfo>(), version: 3, reserved: 0, set_tool_version };

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION_INFO).cast(),
        _ => std::ptr::null(),
    }
}

extern "C" fn module_table(module: c_int, table: *mut *const SlotPointer, size: *mut c_uint) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|module| (1..SIZES.len()).contains(module)) else {
        return 0;
    };
    // SAFETY: each is null or points to a variable for the answer.
    unsafe {
        if let Some(size) = size.as_mut() {
            *size = SIZES[module] as c_uint;
        }
        if let Some(table) = table.as_mut() {
            *table = TABLES[module].as_ptr();
        }
    }
    1
}

/// A profiler reports its version; all are accepted.
extern "C" fn set_tool_version(_version: u32) {}

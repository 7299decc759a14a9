//! AMX: a unit with eight registers, each a matrix of up to sixteen rows of sixty-four bytes.
//!
//! Its instructions multiply whole registers. They have no intrinsics in stable Rust, so they are written in assembly.
//! A process has to ask the system once before it may use them. Whoever uses registers gives them their shapes first and
//! releases them at the end.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// The rows of a register, and the groups of four bytes in each row.
pub(crate) const SIDE: usize = 16;

/// Whether this machine has AMX for bf16 and bytes, and the system lets this process use it.
pub(crate) fn is_there() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| {
        let has_xsave = std::is_x86_feature_detected!("xsave") && __cpuid_count(1, 0).ecx >> 27 & 1 == 1;
        let wanted = 1 << 22 | 1 << 24 | 1 << 25;
        has_xsave && __cpuid_count(7, 0).edx & wanted == wanted && is_kept() && permitted()
    })
}

/// Whether the system saves the state of tiles.
fn is_kept() -> bool {
    let low: u32;
    // SAFETY: the system has enabled the instruction, as `is_there` has checked.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack)) };
    low >> 17 & 3 == 3
}

/// Asks Linux for permission to use tiles.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST: isize = 0x1023;
    const TILE_DATA: isize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call changes the permissions of this process and accesses no memory.
    unsafe {
        asm!("syscall", inout("rax") result, in("rdi") REQUEST, in("rsi") TILE_DATA,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of the eight registers.
#[repr(C, align(64))]
pub(crate) struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Registers with these rows, and bytes in each row.
    pub(crate) const fn new(all: [(usize, usize); 8]) -> Shapes {
        let mut shapes = Shapes { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        let mut i = 0;
        while i < all.len() {
            (shapes.rows[i], shapes.bytes[i]) = (all[i].0 as u8, all[i].1 as u16);
            i += 1;
        }
        shapes
    }

    /// Gives the registers of this thread their shapes.
    ///
    /// # Safety
    ///
    /// AMX [is there](is_there).
    #[inline(always)]
    pub(crate) unsafe fn set(&self) {
        // SAFETY: guaranteed by the caller.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly, preserves_flags)) };
    }
}

/// Leaves the registers of this thread without shapes and contents.
///
/// # Safety
///
/// AMX [is there](is_there).
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: guaranteed by the caller.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

//! Functions that start before the work ahead of them in their stream has ended: their blocks are on the multiprocessors already
//! and wait there, which hides most of the time between two functions.
//!
//! A function that is launched so must wait before it touches memory. Waiting is its first statement, which is written into
//! the text of every function here, so that nothing else has to think of it. What it waits for has waited itself, so the work
//! of a stream is still done in order. A text that waits by itself stays as it is, and does not start early unless whoever
//! launches it says so: what it may do before it waits depends on the work ahead of it.

use std::borrow::Cow;

/// The start of every function.
const DECLARED: &str = "extern \"C\" __global__";

/// Lets the next function start as soon as all blocks of this one have, and waits until the one before is done.
const WAIT: &str = " MAX_WAIT;";

/// What that means, which precedes all functions: the lines of their texts keep their numbers.
pub(super) const WAITING: &str = "#if __CUDA_ARCH__ >= 900\n#define MAX_WAIT asm volatile(\"griddepcontrol.launch_dependents;\\n\\t\
                                  griddepcontrol.wait;\" ::: \"memory\")\n#else\n#define MAX_WAIT\n#endif\n";

/// The compute capability of GPUs that can do it, and the version of CUDA whose driver can record it.
const CAPABILITY: (u32, u32) = (9, 0);
const VERSION: i32 = 12030;

/// Whether functions may start early on a GPU.
pub(in crate::cuda) fn is_possible(capability: (u32, u32), driver: i32) -> bool {
    capability >= CAPABILITY && driver >= VERSION
}

/// How a function waits for the work ahead of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Not at all.
    Never,
    /// Before it does anything.
    First,
    /// When its text says so.
    Itself,
}

/// The code of a source whose function waits, and how it does: what does not look like a single function stays as it is, and
/// so does a text whose only function is not seen to be the one that is launched, by its name or the macro `NAME`.
pub(super) fn waiting<'a>(name: &str, code: &'a str) -> (Cow<'a, str>, Waits) {
    if code.contains("griddepcontrol.wait") {
        return (code.into(), Waits::Itself);
    }
    let mut functions = code.match_indices(DECLARED);
    let (Some((start, _)), None) = (functions.next(), functions.next()) else {
        return (code.into(), Waits::Never);
    };
    let is_own = |head: &str| [name, "NAME"].iter().any(|name| declares(head, name));
    match code[start..].find(['{', ';']).map(|at| start + at) {
        Some(at) if code.as_bytes()[at] == b'{' && is_own(&code[start..at]) => {
            let (head, body) = code.split_at(at + 1);
            ([head, WAIT, body].concat().into(), Waits::First)
        }
        _ => (code.into(), Waits::Never),
    }
}

/// Whether a declaration is that of a function of a name.
fn declares(head: &str, name: &str) -> bool {
    head.match_indices(name).any(|(at, _)| {
        let (before, after) = (&head[..at], &head[at + name.len()..]);
        before.ends_with(char::is_whitespace) && after.trim_start().starts_with('(')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_wait_before_anything_else() {
        let code =
            "struct A { int x; };\nextern \"C\" __global__ void __launch_bounds__(32) f(A *a) { a->x = 1; }";
        let (text, waits) = waiting("f", code);
        assert_eq!(waits, Waits::First);
        let start = text.find("f(A *a) {").unwrap() + "f(A *a) {".len();
        assert!(text[start..].starts_with(WAIT) && text.ends_with(" a->x = 1; }"), "{text}");
        assert_eq!(text.replacen(WAIT, "", 1), code);
    }

    #[test]
    fn what_is_no_single_function_stays_as_it_is() {
        let function = "extern \"C\" __global__ void f() {}";
        let declared = "extern \"C\" __global__ void f();\nstruct A { int x; };";
        for code in [&[function, function].concat(), declared, "__global__ void f() {}", ""] {
            assert_eq!(waiting("f", code), (code.into(), Waits::Never));
        }
    }

    #[test]
    fn only_the_function_that_is_launched_waits() {
        let code = "extern \"C\" __global__ void f(int *a) {}\nextern \"C\"\n__global__ void g(int *f) {}";
        assert_eq!(waiting("f", code).1, Waits::First);
        assert_eq!(waiting("g", code), (code.into(), Waits::Never));
        let code = "#define NAME f\nextern \"C\" __global__ void\nNAME(int *a) {}";
        assert_eq!(waiting("f", code).1, Waits::First);
        assert_eq!(waiting("f", "extern \"C\" __global__ void ff(int *f) {}").1, Waits::Never);
    }

    #[test]
    fn a_text_may_wait_by_itself() {
        let code = "extern \"C\" __global__ void f() { asm(\"griddepcontrol.wait;\"); }";
        assert_eq!(waiting("f", code), (code.into(), Waits::Itself));
    }

    #[test]
    fn old_gpus_and_drivers_cannot() {
        assert!(is_possible((9, 0), 12030) && is_possible((12, 0), 13000));
        assert!(!is_possible((8, 9), 13000) && !is_possible((9, 0), 12020));
    }
}

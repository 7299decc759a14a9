//! The settings of a session, set by methods and environment variables.

use std::fmt::Display;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use max_core::{Error, Result};

/// Declares an enum whose variants users write by name.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            const ALL: &[$name] = &[$($name::$variant),*];

            /// As users write it.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }

            fn from_number(number: u8) -> $name {
                Self::ALL[usize::from(number).min(Self::ALL.len() - 1)]
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<$name> {
                Self::ALL.iter().copied().find(|own| own.name() == text).ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|own| own.name()).collect();
                    Error::value(format!("{} must be one of {}; got {text:?}", $what, known.join(", ")))
                })
            }
        }
    )*};
}

names! {
    /// How much a session logs to standard error.
    LogLevel: "log level" {
        /// As the environment says, or warnings if it says nothing.
        NotSet = "notset",
        /// Every kernel launch.
        Trace = "trace",
        /// Each kernel of a model, and when sizes are bound.
        Debug = "debug",
        /// What was compiled, and how long it took.
        Info = "info",
        /// Suspicious conditions.
        Warning = "warning",
        /// Failures.
        Error = "error",
        /// Only fatal errors.
        Critical = "critical",
    }
    /// How much is checked in addition to safety, which is always checked.
    AssertLevel: "assert level" {
        /// Nothing else.
        None = "none",
        /// Warns about values that are not finite.
        Warn = "warn",
        /// Proves memory plans free of overlap.
        Safe = "safe",
        /// Proves memory plans, and makes a value that is not finite an error that names the op.
        All = "all",
    }
    /// The precision in which the parts of a long sum are combined.
    SplitKReductionPrecision: "split-k reduction precision" {
        /// The precision of the accumulator.
        Accum = "ACCUM",
        /// At least the precision of the output; sums on the CPU are always combined in the accumulator's.
        Output = "OUTPUT",
    }
    /// Whether kernels are timed.
    ProfilingMode: "profiling mode" {
        /// No.
        Off = "off",
        /// Each launch is timed.
        On = "on",
        /// Each launch is timed, and shown with its ops.
        Detailed = "detailed",
    }
}

/// The settings of a session. The log level applies to all models, the others to models that are loaded afterwards.
#[derive(Debug)]
pub(crate) struct Settings {
    log_level: AtomicU8,
    assert_level: AtomicU8,
    split_k: AtomicU8,
    profiling: AtomicU8,
    old_top_k: AtomicU8,
    allow_tf32: AtomicBool,
}

/// Declares the getter and setter of each setting.
macro_rules! accessors {
    ($($field:ident: $type:ident, $get:ident, $set:ident;)*) => {
        impl Settings {
            $(pub(crate) fn $get(&self) -> $type {
                $type::from_number(self.$field.load(Ordering::Relaxed))
            }

            pub(crate) fn $set(&self, value: $type) {
                self.$field.store(value as u8, Ordering::Relaxed);
            })*
        }
    };
}

accessors! {
    log_level: LogLevel, log_level, set_log_level;
    assert_level: AssertLevel, assert_level, set_assert_level;
    split_k: SplitKReductionPrecision, split_k, set_split_k;
    profiling: ProfilingMode, profiling, set_profiling;
}

impl Settings {
    /// The settings from the environment; an unknown value is reported and ignored.
    pub(crate) fn from_environment() -> Settings {
        let profiling = from_variable("MODULAR_ENABLE_PROFILING").unwrap_or(ProfilingMode::Off);
        let log_level = from_variable("MAX_LOG_LEVEL").unwrap_or(LogLevel::NotSet);
        let assert_level = from_variable("MAX_ASSERT_LEVEL").unwrap_or(AssertLevel::None);
        Settings {
            log_level: AtomicU8::new(log_level as u8),
            assert_level: AtomicU8::new(assert_level as u8),
            split_k: AtomicU8::new(SplitKReductionPrecision::Accum as u8),
            profiling: AtomicU8::new(profiling as u8),
            old_top_k: AtomicU8::new(0),
            allow_tf32: AtomicBool::new(switch("MAX_ALLOW_TF32")),
        }
    }

    pub(crate) fn old_top_k(&self) -> bool {
        self.old_top_k.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_old_top_k(&self, old: bool) {
        self.old_top_k.store(u8::from(old), Ordering::Relaxed);
    }

    pub(crate) fn allow_tf32(&self) -> bool {
        self.allow_tf32.load(Ordering::Relaxed)
    }

    pub(crate) fn set_allow_tf32(&self, allow: bool) {
        self.allow_tf32.store(allow, Ordering::Relaxed);
    }

    /// Writes a line to standard error if the log level allows it.
    pub(crate) fn log(&self, level: LogLevel, line: impl FnOnce() -> String) {
        let least = match self.log_level() {
            LogLevel::NotSet => LogLevel::Warning,
            own => own,
        };
        if level >= least {
            say(format_args!("[max {}] {}", level.name(), line()));
        }
    }
}

/// Writes a line to standard error. A failure is ignored: there is nowhere to report it.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether an environment variable turns something on.
fn switch(name: &str) -> bool {
    let text = std::env::var(name).unwrap_or_default().to_lowercase();
    match text.as_str() {
        "1" | "true" | "on" | "yes" => true,
        "" | "0" | "false" | "off" | "no" => false,
        _ => {
            say(format_args!("[max warning] {name} is ignored: it must be 0 or 1; got {text:?}"));
            false
        }
    }
}

fn from_variable<T: FromStr<Err = Error>>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    match text.parse() {
        Ok(value) => Some(value),
        Err(error) => {
            say(format_args!("[max warning] {name} is ignored: {}", error.message()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_others_refused() {
        for &level in LogLevel::ALL {
            assert_eq!(level.name().parse(), Ok(level));
            assert_eq!(LogLevel::from_number(level as u8), level);
        }
        let error = "loud".parse::<AssertLevel>().unwrap_err();
        assert!(error.message().contains("none, warn, safe, all") && error.message().contains("loud"));
        assert!("accum".parse::<SplitKReductionPrecision>().is_err());
    }

    #[test]
    fn settings_keep_what_they_are_told() {
        let settings = Settings::from_environment();
        settings.set_profiling(ProfilingMode::Detailed);
        settings.set_split_k(SplitKReductionPrecision::Output);
        settings.set_old_top_k(true);
        settings.set_allow_tf32(true);
        assert_eq!(
            (settings.profiling(), settings.split_k()),
            (ProfilingMode::Detailed, SplitKReductionPrecision::Output)
        );
        assert!(settings.old_top_k() && settings.allow_tf32());
    }
}

//! Dependencies point one way: which crate may use which, and which one contains each quarantined dependency.

use super::manifest::{Kind, Manifest};
use super::{File, Finding};

/// Every crate, lowest first, and the crates of this repository it may use.
const LAYERS: &[(&str, &[&str])] = &[
    ("max-core", &[]),
    ("max-driver", &["max-core"]),
    ("max-kernels", &["max-core", "max-driver"]),
    ("max-graph", &["max-core"]),
    ("max-compiler", &["max-core", "max-graph"]),
    ("max-engine", &["max-core", "max-driver", "max-kernels", "max-graph", "max-compiler"]),
    ("max-tensor", &["max-core", "max-driver", "max-graph", "max-engine"]),
    ("max-weights", &["max-core", "max-driver", "max-graph"]),
    ("max-nn", &["max-core", "max-driver", "max-graph", "max-engine", "max-tensor", "max-weights"]),
    (
        "max-pipelines",
        &["max-core", "max-driver", "max-graph", "max-engine", "max-tensor", "max-weights", "max-nn"],
    ),
    ("max-serve", &["max-core", "max-pipelines"]),
    ("max-cli", LIBRARIES),
    ("max", LIBRARIES),
    ("max-py", &["max", "max-cli"]),
    ("xtask", &[]),
];

/// What the facade and the command-line program combine.
const LIBRARIES: &[&str] = &[
    "max-core",
    "max-driver",
    "max-kernels",
    "max-graph",
    "max-compiler",
    "max-engine",
    "max-tensor",
    "max-weights",
    "max-nn",
    "max-pipelines",
    "max-serve",
];

/// Additional crates that the tests of a crate may use.
const FOR_TESTS: &[(&str, &[&str])] = &[
    // Kernels are compared with the reference interpreter, which lives next to the ops they implement.
    ("max-kernels", &["max-graph"]),
];

/// Families of third-party crates that only one crate may use: the name itself, and `name-*`.
const QUARANTINE: &[(&str, &str)] = &[("pyo3", "max-py"), ("tokio", "max-serve")];

/// Every crate is listed, is named after its folder, and uses only what its layer allows.
pub fn check_dependencies(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, crate_name, manifest) in manifests(files) {
        match &manifest.name {
            Some((line, name)) if name != crate_name => {
                findings
                    .push(file.finding(*line, format!("package `{name}` is in the folder `{crate_name}`")));
            }
            _ => {}
        }
        let Some(allowed) = row(LAYERS, crate_name) else {
            let message = format!("crate `{crate_name}` is new: add it to the table in {}", file!());
            findings.push(file.finding(0, message));
            continue;
        };
        for dependency in manifest.dependencies {
            let name = dependency.name.as_str();
            let ours = name == "max" || name.starts_with("max-") || row(LAYERS, name).is_some();
            let for_tests = || row(FOR_TESTS, crate_name).is_some_and(|extra| extra.contains(&name));
            if !ours || allowed.contains(&name) || (dependency.kind == Kind::Dev && for_tests()) {
                continue;
            }
            let may_use = if allowed.is_empty() { "no other crate".into() } else { allowed.join(", ") };
            let message = format!("`{crate_name}` must not use `{name}`; it may use: {may_use}");
            findings.push(file.finding(dependency.line, message));
        }
    }
    findings
}

/// The Python bindings and the async runtime stay in the crates made for them.
pub fn check_quarantine(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, crate_name, manifest) in manifests(files) {
        for dependency in manifest.dependencies {
            for (foreign, home) in QUARANTINE {
                let rest = dependency.name.strip_prefix(foreign);
                let of_family = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
                if of_family && crate_name != *home {
                    let message = format!("only `{home}` may use `{}`", dependency.name);
                    findings.push(file.finding(dependency.line, message));
                }
            }
        }
    }
    findings
}

fn manifests(files: &[File]) -> impl Iterator<Item = (&File, &str, Manifest)> {
    files.iter().filter_map(|file| match file.in_crate()? {
        (crate_name, "Cargo.toml") => Some((file, crate_name, Manifest::read(&file.text))),
        _ => None,
    })
}

fn row<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::super::findings_of;
    use super::*;

    fn dependencies(crate_name: &str, text: &str) -> Vec<String> {
        findings_of(check_dependencies, &format!("crates/{crate_name}/Cargo.toml"), text)
    }

    #[test]
    fn the_table_points_up_only() {
        for (index, (name, allowed)) in LAYERS.iter().enumerate() {
            for dependency in *allowed {
                let above = LAYERS[..index].iter().any(|(earlier, _)| earlier == dependency);
                assert!(above, "`{name}` may use `{dependency}`, which is not above it");
            }
        }
    }

    #[test]
    fn a_dependency_up_the_table_is_fine() {
        let text =
            "[package]\nname = \"max-graph\"\n[dependencies]\nmax-core.workspace = true\nhalf = \"2\"\n";
        assert_eq!(dependencies("max-graph", text), [""; 0]);
    }

    #[test]
    fn a_dependency_down_the_table_is_reported() {
        let text =
            "[dependencies]\nmax-core = { workspace = true }\nmax-engine = { path = \"../max-engine\" }\n";
        let expected =
            "crates/max-graph/Cargo.toml:3: `max-graph` must not use `max-engine`; it may use: max-core";
        assert_eq!(dependencies("max-graph", text), [expected]);
    }

    #[test]
    fn renaming_and_targets_hide_nothing() {
        let text = "[target.'cfg(unix)'.dependencies]\ncore = { package = \"max-tensor\", path = \"..\" }\n";
        assert_eq!(dependencies("max-core", text).len(), 1);
        assert_eq!(dependencies("max-core", "[build-dependencies.xtask]\npath = \"../xtask\"\n").len(), 1);
    }

    #[test]
    fn tests_may_use_what_is_listed_for_them() {
        assert_eq!(dependencies("max-kernels", "[dev-dependencies]\nmax-graph.workspace = true\n"), [""; 0]);
        assert_eq!(dependencies("max-kernels", "[dependencies]\nmax-graph.workspace = true\n").len(), 1);
        assert_eq!(dependencies("max-core", "[dev-dependencies]\nmax-graph.workspace = true\n").len(), 1);
    }

    #[test]
    fn unknown_and_misnamed_crates_are_reported() {
        let new = dependencies("max-magic", "[package]\nname = \"max-magic\"\n");
        assert!(new[0].contains("crate `max-magic` is new: add it to the table"), "{new:?}");
        let misnamed = dependencies("max-core", "[package]\nname = \"core\"\n");
        assert!(misnamed[0].contains("package `core` is in the folder `max-core`"), "{misnamed:?}");
        let unknown = dependencies("max-engine", "[dependencies]\nmax-magic = \"1\"\n");
        assert!(unknown[0].contains("must not use `max-magic`"), "{unknown:?}");
    }

    #[test]
    fn foreign_worlds_stay_in_their_crate() {
        let text = "[dependencies]\npyo3 = \"1\"\ntokio-util = \"1\"\ntokiolike = \"1\"\n";
        let found = |name: &str| findings_of(check_quarantine, &format!("crates/{name}/Cargo.toml"), text);
        let (no_python, no_tokio) = ("only `max-py` may use `pyo3`", "only `max-serve` may use `tokio-util`");
        assert_eq!(found("max-py"), [format!("crates/max-py/Cargo.toml:3: {no_tokio}")]);
        assert_eq!(found("max-serve"), [format!("crates/max-serve/Cargo.toml:2: {no_python}")]);
        assert_eq!(found("max-cli").len(), 2);
    }
}

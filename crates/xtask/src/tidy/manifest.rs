//! What the rules need from a `Cargo.toml`: the package's name and its dependencies.
//!
//! Not a full TOML parser: it understands tables, dotted keys, inline tables and multi-line values, which
//! is all that manifests use, and leaves checking the syntax to cargo.

/// The parts of a manifest the rules look at; lines are counted from zero.
#[derive(Debug, Default)]
pub struct Manifest {
    pub name: Option<(usize, String)>,
    pub dependencies: Vec<Dependency>,
}

/// One dependency, by the name of its package.
#[derive(Debug, PartialEq)]
pub struct Dependency {
    pub name: String,
    pub kind: Kind,
    pub line: usize,
    /// What the manifest calls it; differs from `name` when renamed.
    key: String,
}

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Normal,
    Dev,
    Build,
}

impl Manifest {
    /// Reads a manifest's text.
    pub fn read(text: &str) -> Self {
        let mut manifest = Self::default();
        let mut table = Vec::new();
        let mut open_brackets = 0;
        for (line, content) in text.lines().map(without_comment).enumerate() {
            let inside_value = open_brackets > 0;
            if !inside_value && content.trim_start().starts_with('[') {
                table = key_parts(content.trim().trim_matches(['[', ']']));
                manifest.add(line, &table, "");
                continue;
            }
            if !inside_value && let Some((key, value)) = content.split_once('=') {
                let path = [table.clone(), key_parts(key)].concat();
                manifest.add(line, &path, value.trim());
            }
            open_brackets += bracket_balance(content);
        }
        manifest
    }

    /// Records the value at a path such as `["dependencies", "half", "version"]`.
    fn add(&mut self, line: usize, path: &[String], value: &str) {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let path = match path.as_slice() {
            ["package", "name"] => {
                self.name = Some((line, unquoted(value).to_owned()));
                return;
            }
            ["target", _, rest @ ..] => rest,
            all => all,
        };
        let (kind, key, field) = match path {
            ["dependencies", key, field @ ..] => (Kind::Normal, *key, field),
            ["dev-dependencies", key, field @ ..] => (Kind::Dev, *key, field),
            ["build-dependencies", key, field @ ..] => (Kind::Build, *key, field),
            _ => return,
        };
        let renamed = match field {
            ["package"] => Some(unquoted(value)),
            [] => inline_package(value),
            _ => None,
        };
        // A dependency with a table of its own appears several times: once per line.
        let known = self.dependencies.iter().position(|known| known.key == key && known.kind == kind);
        match (known, renamed) {
            (Some(index), Some(name)) => self.dependencies[index].name = name.to_owned(),
            (Some(_), None) => {}
            (None, _) => self.dependencies.push(Dependency {
                name: renamed.unwrap_or(key).to_owned(),
                kind,
                line,
                key: key.to_owned(),
            }),
        }
    }
}

/// `a."b.c".d` as its three parts.
fn key_parts(key: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for c in key.trim().chars() {
        match c {
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            '.' if quote.is_none() => parts.push(String::new()),
            _ => parts.last_mut().expect("it starts with one part").push(c),
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

/// The value of `package` in `{ package = "max-core", path = ".." }`.
fn inline_package(value: &str) -> Option<&str> {
    let fields = value.strip_prefix('{')?;
    fields.split(['{', ',']).find_map(|field| {
        let (key, value) = field.split_once('=')?;
        (key.trim() == "package").then(|| unquoted(value))
    })
}

fn unquoted(value: &str) -> &str {
    value.trim().trim_end_matches('}').trim().trim_matches(['"', '\''])
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (index, c) in line.char_indices() {
        match c {
            '#' if quote.is_none() => return &line[..index],
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            _ => {}
        }
    }
    line
}

/// Opening minus closing brackets, outside strings.
fn bracket_balance(line: &str) -> i32 {
    let mut quote = None;
    let mut balance = 0;
    for c in line.chars() {
        match c {
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            '[' | '{' if quote.is_none() => balance += 1,
            ']' | '}' if quote.is_none() => balance -= 1,
            _ => {}
        }
    }
    balance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<(Kind, String, usize)> {
        let manifest = Manifest::read(text);
        manifest.dependencies.into_iter().map(|found| (found.kind, found.name, found.line)).collect()
    }

    #[test]
    fn every_way_to_write_a_dependency_is_understood() {
        let text = r##"
[package]
name = "max-nn" # not "max"
[dependencies]
a = "1"
b.workspace = true
c = { version = "1", features = [
    "d = e",
] }
[dependencies.f]
version = "1"
features = ["g"]
[dev-dependencies]
h = { package = "i" }
[target.'cfg(target_os = "linux")'.build-dependencies]
"j" = "1"
[features]
k = ["dep:a"]
"##;
        let expected = [
            (Kind::Normal, "a", 4),
            (Kind::Normal, "b", 5),
            (Kind::Normal, "c", 6),
            (Kind::Normal, "f", 9),
            (Kind::Dev, "i", 13),
            (Kind::Build, "j", 15),
        ];
        assert_eq!(names(text), expected.map(|(kind, name, line)| (kind, name.to_owned(), line)));
        assert_eq!(Manifest::read(text).name, Some((2, "max-nn".into())));
    }

    #[test]
    fn a_renamed_dependency_goes_by_its_package() {
        let text = "[dependencies.short]\npath = \"..\"\npackage = \"max-core\"\n";
        assert_eq!(names(text), [(Kind::Normal, "max-core".into(), 0)]);
        assert_eq!(names("dependencies.short = { package = 'max-core' }")[0].1, "max-core");
    }

    #[test]
    fn the_same_name_may_serve_twice() {
        assert_eq!(names("[dependencies]\na = \"1\"\n[dev-dependencies]\na = \"1\"\n").len(), 2);
    }
}

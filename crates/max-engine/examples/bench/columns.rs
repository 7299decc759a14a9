//! Tables of text: aligned for the screen, and as Markdown.

/// A column with its name and its width on the screen.
#[derive(Clone, Copy)]
pub struct Column {
    name: &'static str,
    width: usize,
    number: bool,
}

impl Column {
    pub const fn text(name: &'static str, width: usize) -> Column {
        Column { name, width, number: false }
    }

    pub const fn number(name: &'static str, width: usize) -> Column {
        Column { name, width, number: true }
    }
}

/// The line above the rows.
pub fn header(columns: &[Column]) -> String {
    line(columns, &names(columns))
}

/// A row for the screen: text to the left, numbers to the right.
pub fn line(columns: &[Column], cells: &[String]) -> String {
    let cells = columns.iter().zip(cells).map(|(column, cell)| {
        let width = column.width;
        if column.number { format!("{cell:>width$}") } else { format!("{cell:width$}") }
    });
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

/// The whole table as Markdown.
pub fn markdown(columns: &[Column], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = |column: &Column| if column.number { "---:".to_owned() } else { "---".to_owned() };
    let rules: Vec<String> = columns.iter().map(rule).collect();
    let head = line(&names(columns)) + &line(&rules);
    rows.fold(head, |table, cells| table + &line(&cells))
}

fn names(columns: &[Column]) -> Vec<String> {
    columns.iter().map(|column| column.name.to_owned()).collect()
}

/// Sizes as `2x3`.
pub fn shape(sizes: &[usize]) -> String {
    match sizes.is_empty() {
        true => "scalar".into(),
        false => sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

/// Several shapes side by side.
pub fn shapes<'a>(shapes: impl IntoIterator<Item = &'a Vec<usize>>) -> String {
    shapes.into_iter().map(|sizes| shape(sizes)).collect::<Vec<_>>().join(" ")
}

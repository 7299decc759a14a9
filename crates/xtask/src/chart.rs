//! `cargo xtask bench --chart`: the figures of `benches/speed.tsv` as a picture, `docs/speed.svg`.

use std::fmt::Write;

use crate::tidy::{File, Finding};

const DATA: &str = "benches/speed.tsv";
const PICTURE: &str = "docs/speed.svg";

/// Whose figures there are, in the order of the columns, and their colours on light and on dark.
const SIDES: [(&str, &str, &str); 4] = [
    ("max-rs", "#d9480f", "#ff8a4c"),
    ("PyTorch", "#adb5bd", "#5c6773"),
    ("ONNX Runtime", "#74a9cf", "#3f6f96"),
    ("the original", "#9d8bb8", "#6d5b8a"),
];

/// Sizes in the picture.
const WIDTH: f64 = 860.0;
const LEFT: f64 = 310.0;
const RIGHT: f64 = 770.0;
const BAR: f64 = 10.0;
const GAP: f64 = 11.0;
const MARGIN: f64 = 28.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Times,
    Seconds,
}

#[derive(Debug, PartialEq)]
struct Panel {
    title: String,
    scale: Scale,
    rows: Vec<(String, [Option<f64>; SIDES.len()])>,
}

/// Draws the picture.
pub fn run() -> Result<(), String> {
    let data = std::fs::read_to_string(DATA).map_err(|error| format!("cannot read {DATA}: {error}"))?;
    let picture = draw(&parse(&data)?);
    std::fs::write(PICTURE, picture).map_err(|error| format!("cannot write {PICTURE}: {error}"))?;
    println!("{PICTURE} shows {DATA}");
    Ok(())
}

/// A rule of `tidy`: the picture shows the figures.
pub fn check(files: &[File]) -> Vec<Finding> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let Some(data) = find(DATA) else { return Vec::new() };
    match parse(&data.text) {
        Err(message) => vec![data.finding(0, message)],
        Ok(panels) if find(PICTURE).is_some_and(|picture| picture.text == draw(&panels)) => Vec::new(),
        Ok(_) => {
            vec![data.finding(0, format!("{PICTURE} shows something else: run `cargo xtask bench --chart`"))]
        }
    }
}

fn parse(text: &str) -> Result<Vec<Panel>, String> {
    let mut panels: Vec<Panel> = Vec::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.is_empty());
    for (number, line) in lines {
        let wrong = |what: &str| format!("line {} of {DATA}: {what}", number + 1);
        if let Some(title) = line.strip_prefix("= ") {
            let (title, scale) = title.split_once('\t').ok_or_else(|| wrong("a title without a scale"))?;
            let scale = match scale {
                "times" => Scale::Times,
                "seconds" => Scale::Seconds,
                _ => return Err(wrong("the scale must be `times` or `seconds`")),
            };
            panels.push(Panel { title: title.into(), scale, rows: Vec::new() });
            continue;
        }
        let mut cells = line.split('\t');
        let label = cells.next().unwrap_or_default().to_string();
        let mut figures = [None; SIDES.len()];
        for (at, cell) in cells.enumerate().filter(|(_, cell)| !cell.is_empty()) {
            let figure = cell.parse::<f64>().ok().filter(|figure| figure.is_finite() && *figure > 0.0);
            let place = figures.get_mut(at).ok_or_else(|| wrong("there are too many columns"))?;
            *place = Some(figure.ok_or_else(|| wrong("a figure must be a positive number"))?);
        }
        let panel = panels.last_mut().ok_or_else(|| wrong("a row without a title above it"))?;
        panel.rows.push((label, figures));
    }
    if panels.iter().any(|panel| panel.rows.is_empty()) || panels.is_empty() {
        return Err(format!("{DATA} has a title without rows, or nothing at all"));
    }
    Ok(panels)
}

fn draw(panels: &[Panel]) -> String {
    let (mut body, mut y) = (String::new(), MARGIN);
    let shown = |side: &usize| panels.iter().any(|panel| panel.rows.iter().any(|row| row.1[*side].is_some()));
    let mut x = LEFT;
    for side in (0..SIDES.len()).filter(shown) {
        let name = SIDES[side].0;
        add(
            &mut body,
            format!("<rect class='s{side}' x='{x}' y='{}' width='11' height='11' rx='2'/>", y - 10.0),
        );
        add(&mut body, format!("<text x='{}' y='{y}'>{name}</text>", x + 17.0));
        x += 40.0 + 7.0 * name.len() as f64;
    }
    y += 30.0;
    for panel in panels {
        y = draw_panel(panel, y, &mut body);
    }
    let mut style = String::from(
        "text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#343a40}\
         .title{font-weight:600;font-size:14px}.label{text-anchor:end}.tick{text-anchor:middle;font-size:11px}\
         .tick,.figure{fill:#868e96}.figure{font-size:11px}.paper{fill:#ffffff}.grid{stroke:#e9ecef}",
    );
    let mut dark = String::from(
        "text{fill:#dee2e6}.tick,.figure{fill:#909aa5}.paper{fill:#0d1117}.grid{stroke:#262c34}",
    );
    for (side, (_, light, on_dark)) in SIDES.iter().enumerate() {
        style += &format!(".s{side}{{fill:{light}}}.f{side}{{fill:{light};font-weight:600}}");
        dark += &format!(".s{side}{{fill:{on_dark}}}.f{side}{{fill:{on_dark};font-weight:600}}");
    }
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {y}' role='img' aria-label='How fast max-rs is'>\n\
         <style>{style}@media(prefers-color-scheme:dark){{{dark}}}</style>\n\
         <rect class='paper' width='{WIDTH}' height='{y}' rx='8'/>\n{body}</svg>\n"
    )
}

/// Draws a panel from a height on; the height below it.
fn draw_panel(panel: &Panel, top: f64, body: &mut String) -> f64 {
    let figures = || panel.rows.iter().flat_map(|row| row.1.iter().flatten().copied());
    let (least, most) = (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max));
    // The ends of the axis, and where a figure is on it.
    let (first, last) = match panel.scale {
        Scale::Times => (0.0, most.ceil()),
        Scale::Seconds => ((least.log10() - 0.3).floor(), most.log10().ceil()),
    };
    let place = |figure: f64| match panel.scale {
        Scale::Times => LEFT + (figure - first) / (last - first) * (RIGHT - LEFT),
        Scale::Seconds => LEFT + (figure.log10() - first) / (last - first) * (RIGHT - LEFT),
    };
    let bars = |row: &[Option<f64>]| row.iter().flatten().count() as f64;
    let height: f64 = panel.rows.iter().map(|row| bars(&row.1) * (BAR + 1.0) + GAP).sum();
    add(body, format!("<text class='title' x='{MARGIN}' y='{top}'>{}</text>", escaped(&panel.title)));
    let (start, end) = (top + 16.0, top + 16.0 + height);
    for tick in first as i64..=last as i64 {
        let figure = if panel.scale == Scale::Times { tick as f64 } else { 10f64.powi(tick as i32) };
        let x = place(figure).round();
        add(body, format!("<line class='grid' x1='{x}' y1='{start}' x2='{x}' y2='{end}'/>"));
        add(
            body,
            format!(
                "<text class='tick' x='{x}' y='{}'>{}</text>",
                end + 14.0,
                tick_text(figure, panel.scale)
            ),
        );
    }
    let mut y = start + GAP / 2.0;
    for (label, row) in &panel.rows {
        let middle = y + bars(row) * (BAR + 1.0) / 2.0 + 4.0;
        add(body, format!("<text class='label' x='{}' y='{middle}'>{}</text>", LEFT - 12.0, escaped(label)));
        for (side, figure) in row.iter().enumerate().filter_map(|(side, figure)| Some((side, (*figure)?))) {
            let width = (place(figure) - LEFT).max(1.0);
            add(
                body,
                format!(
                    "<rect class='s{side}' x='{LEFT}' y='{y}' width='{width:.1}' height='{BAR}' rx='1.5'/>"
                ),
            );
            // What the others are compared with needs no figure.
            if panel.scale != Scale::Times || figure != 1.0 {
                let (x, below) = (LEFT + width + 6.0, y + BAR - 1.0);
                let class = if side == 0 { "figure f0" } else { "figure" };
                let figure = text(figure, panel.scale);
                add(body, format!("<text class='{class}' x='{x:.1}' y='{below}'>{figure}</text>"));
            }
            y += BAR + 1.0;
        }
        y += GAP;
    }
    end + 14.0 + MARGIN
}

fn add(body: &mut String, line: String) {
    // Writing to a string does not fail.
    let _ = writeln!(body, "{line}");
}

/// A figure with its unit.
fn text(figure: f64, scale: Scale) -> String {
    match scale {
        Scale::Times if figure >= 2.0 => format!("{figure:.1}"),
        Scale::Times => format!("{figure:.2}"),
        Scale::Seconds => {
            let (number, unit) = unit(figure);
            if number < 9.95 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
        }
    }
}

fn tick_text(figure: f64, scale: Scale) -> String {
    match scale {
        Scale::Times => format!("{figure}"),
        Scale::Seconds => {
            let (number, unit) = unit(figure);
            format!("{} {unit}", (number * 10.0).round() / 10.0)
        }
    }
}

fn unit(seconds: f64) -> (f64, &'static str) {
    // A power of ten may be a little less than what it is written as.
    let seconds = seconds * (1.0 + 1e-12);
    match seconds {
        1.0.. => (seconds, "s"),
        1e-3.. => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "us"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read() {
        let panels = parse("# a comment\n= Speed\ttimes\none < two\t7.0\t1\nthree\t0.5\t\t\t2\n").unwrap();
        assert_eq!(panels.len(), 1);
        assert_eq!((panels[0].title.as_str(), panels[0].scale), ("Speed", Scale::Times));
        assert_eq!(panels[0].rows[1], ("three".into(), [Some(0.5), None, None, Some(2.0)]));
        let picture = draw(&panels);
        assert!(picture.contains("one &lt; two") && picture.contains(">7.0<") && picture.contains(">0.50<"));
        assert!(picture.contains("the original") && !picture.contains("ONNX"));
    }

    #[test]
    fn what_is_wrong_has_a_line() {
        for (text, expected) in [
            ("a\t1\n", "line 1 of benches/speed.tsv: a row without a title"),
            ("= a\n", "line 1 of benches/speed.tsv: a title without a scale"),
            ("= a\tmiles\n", "the scale must be"),
            ("\n= a\ttimes\nb\t-1\n", "line 3 of benches/speed.tsv: a figure must be"),
            ("= a\ttimes\nb\t1\t2\t3\t4\t5\n", "too many columns"),
            ("= a\ttimes\n", "without rows"),
            ("", "nothing at all"),
        ] {
            assert!(parse(text).unwrap_err().contains(expected), "{text:?}");
        }
    }

    #[test]
    fn times_have_units() {
        let shown = [1.8e-6, 54e-6, 2.4e-4, 0.0057, 2.9, 96.0].map(|figure| text(figure, Scale::Seconds));
        assert_eq!(shown, ["1.8 us", "54 us", "240 us", "5.7 ms", "2.9 s", "96 s"]);
        let ticks = [1e-7, 1e-4, 1e-3, 10.0].map(|figure| tick_text(figure, Scale::Seconds));
        assert_eq!(ticks, ["0.1 us", "100 us", "1 ms", "10 s"]);
    }

    #[test]
    fn an_old_picture_is_found() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let data = "= Speed\ttimes\na\t2\t1\n";
        let picture = draw(&parse(data).unwrap());
        assert!(check(&[file(DATA, data), file(PICTURE, &picture)]).is_empty());
        for files in
            [vec![file(DATA, data), file(PICTURE, "<svg/>")], vec![file(DATA, data)], vec![file(DATA, "?")]]
        {
            assert_eq!(check(&files).len(), 1);
        }
    }
}

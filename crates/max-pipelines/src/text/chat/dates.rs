//! Dates as templates ask for them.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A time in UTC, in a format of `strftime`. What it does not know stays as it is. As in the C library of GNU, a `-` before a
/// letter leaves out the zeros and spaces in front of a number.
pub(super) fn formatted(format: &str, time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, of_year) = civil(days);
    let (weekday, month_name) = (DAYS[(days % 7) as usize], MONTHS[month - 1]);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let is_bare = letters.as_str().starts_with('-');
        if is_bare {
            letters.next();
        }
        let digits = |number: u64, width: usize| {
            if is_bare { number.to_string() } else { format!("{number:0width$}") }
        };
        // Writing to a string cannot fail.
        let _ = match letters.next() {
            Some('Y') => write!(text, "{year}"),
            Some('y') => write!(text, "{}", digits(year % 100, 2)),
            Some('m') => write!(text, "{}", digits(month as u64, 2)),
            Some('B') => write!(text, "{month_name}"),
            Some('b' | 'h') => write!(text, "{}", &month_name[..3]),
            Some('d') => write!(text, "{}", digits(day, 2)),
            Some('e') if !is_bare => write!(text, "{day:2}"),
            Some('e') => write!(text, "{day}"),
            Some('j') => write!(text, "{}", digits(of_year + 1, 3)),
            Some('A') => write!(text, "{weekday}"),
            Some('a') => write!(text, "{}", &weekday[..3]),
            Some('H') => write!(text, "{}", digits(hour, 2)),
            Some('I') => write!(text, "{}", digits((hour + 11) % 12 + 1, 2)),
            Some('p') => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(text, "{}", digits(minute, 2)),
            Some('S') => write!(text, "{}", digits(second, 2)),
            Some('F') => write!(text, "{year}-{month:02}-{day:02}"),
            Some('D' | 'x') => write!(text, "{month:02}/{day:02}/{:02}", year % 100),
            Some('R') => write!(text, "{hour:02}:{minute:02}"),
            Some('T' | 'X') => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            Some('c') => {
                let (weekday, month_name) = (&weekday[..3], &month_name[..3]);
                write!(text, "{weekday} {month_name} {day:2} {hour:02}:{minute:02}:{second:02} {year}")
            }
            // In Python, too, the time has no zone that it knows of.
            Some('Z' | 'z') => Ok(()),
            Some('%') => write!(text, "%"),
            other => {
                text.push_str(if is_bare { "%-" } else { "%" });
                text.extend(other);
                Ok(())
            }
        };
    }
    text
}

/// The year, month and day of a number of days since 1970, and how many days of the year are before it.
fn civil(mut days: u64) -> (u64, usize, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let (of_year, mut month) = (days, 1);
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1, of_year)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_formatted() {
        let at = |seconds, format: &str| formatted(format, UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0, "%A %d %B %Y, %H:%M:%S"), "Thursday 01 January 1970, 00:00:00");
        assert_eq!(at(951_782_399, "%a %e %b %y %j %I%p"), "Mon 28 Feb 00 059 11PM");
        assert_eq!(at(951_782_400, "%F %T %Z"), "2000-02-29 00:00:00 ");
        assert_eq!(at(1_798_761_600, "%d %b %Y %% %q %-q %-"), "01 Jan 2027 % %q %-q %-");
        assert_eq!(at(951_699_661, "%-d.%-m.%-y %-I:%-M:%-S %-j|%-e|%B"), "28.2.0 1:1:1 59|28|February");
        assert_eq!(
            at(951_699_661, "%c | %x %X | %D %R"),
            "Mon Feb 28 01:01:01 2000 | 02/28/00 01:01:01 | 02/28/00 01:01"
        );
    }
}

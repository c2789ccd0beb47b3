//! Draws the screen: a line of figures, the limiters, the keys of the one that is selected, and what can be pressed.
//!
//! Colours mean the same everywhere: green is allowed, red is denied, yellow would be denied. In a narrow terminal the last columns are left out.

use super::figures::{Limiter, Listing};
use super::screen::{KeyOrder, LimiterOrder, Message, Pane, Prompt, Purpose, Rates, Screen, Tone};
use crate::human;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Cell, Paragraph, Row, Table, TableState, Wrap};

/// Where the tables are scrolled to.
#[derive(Default)]
pub(super) struct View {
    limiters: TableState,
    keys: TableState,
}

/// A column of limiters.
struct Column {
    head: &'static str,
    width: u16,
    /// It is shown in terminals that are at least so wide.
    from: u16,
    cell: fn(&Limiter, &Rates) -> Cell<'static>,
}

const COLUMNS: [Column; 7] = [
    Column { head: "ALLOWED/S", width: 10, from: 0, cell: |_, rates| rate(rates.allowed, Color::Green) },
    Column { head: "DENIED/S", width: 9, from: 0, cell: |_, rates| rate(rates.denied, Color::Red) },
    Column { head: "DENIED", width: 10, from: 60, cell: |limiter, _| number(limiter.counts.denied, Color::Red) },
    Column { head: "WOULD DENY/S", width: 12, from: 100, cell: would_deny },
    Column {
        head: "KEYS",
        width: 10,
        from: 80,
        cell: |limiter, _| right(limiter.entries.map_or("·".to_owned(), human::count)),
    },
    Column {
        head: "MEMORY",
        width: 10,
        from: 110,
        cell: |limiter, _| right(limiter.bytes.map_or("·".to_owned(), human::bytes)),
    },
    Column { head: "LATELY", width: 20, from: 90, cell: |_, rates| Cell::from(spark(rates).cyan()) },
];

impl View {
    pub(super) fn draw(&mut self, screen: &Screen, frame: &mut Frame<'_>) {
        // As many lines as there are limiters, but not more than the keys have.
        let area = frame.area();
        let wanted = u16::try_from(screen.limiters().len()).unwrap_or(u16::MAX).saturating_add(3);
        let limiters = wanted.clamp(5, (area.height / 2).max(5));
        let last = bottom_line(screen);
        let rows = [1, limiters].map(Constraint::Length).into_iter();
        let rows = rows.chain([Constraint::Min(3), Constraint::Length(lines_of(&last, area.width))]);
        let [top, upper, lower, bottom] = Layout::vertical(rows).areas(area);
        frame.render_widget(title(screen, top.width), top);
        self.draw_limiters(screen, frame, upper);
        self.draw_keys(screen, frame, lower);
        frame.render_widget(Paragraph::new(last).wrap(Wrap { trim: false }), bottom);
    }

    fn draw_limiters(&mut self, screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
        let columns: Vec<&Column> = COLUMNS.iter().filter(|column| area.width >= column.from).collect();
        let shown = screen.limiters();
        let idle = Rates::default();
        let row = |limiter: &&Limiter| {
            let rates = screen.rates.get(&limiter.name).unwrap_or(&idle);
            let cells = columns.iter().map(|column| (column.cell)(limiter, rates));
            Row::new([name(limiter)].into_iter().chain(cells))
        };
        let rows: Vec<Row<'_>> = shown.iter().map(row).collect();
        let heads = [Cell::from("LIMITER")].into_iter().chain(columns.iter().map(|column| head(column.head)));
        let widths =
            [Constraint::Min(12)].into_iter().chain(columns.iter().map(|column| Constraint::Length(column.width)));
        let order = match screen.limiter_order {
            LimiterOrder::Denied => "most denied first",
            LimiterOrder::Allowed => "most allowed first",
            LimiterOrder::Name => "by name",
        };
        let block =
            pane(format!(" limiters, {order}{} ", filtered(&screen.limiter_filter)), screen.focus == Pane::Limiters);
        let selected = screen.selected_limiter().map(|limiter| limiter.name.as_str());
        self.limiters.select(shown.iter().position(|limiter| Some(limiter.name.as_str()) == selected));
        let table = table(rows, widths, heads, block, screen.focus == Pane::Limiters);
        frame.render_stateful_widget(table, area, &mut self.limiters);
    }

    fn draw_keys(&mut self, screen: &Screen, frame: &mut Frame<'_>, area: Rect) {
        let block = pane(listings(screen), screen.focus == Pane::Keys);
        if let Some(why) = nothing(screen) {
            let text = Paragraph::new(why).dim().alignment(Alignment::Center).block(block);
            return frame.render_widget(text, area);
        }
        let (shown, heads) = (screen.keys(), screen.listing.heads());
        let is_number = screen.listing != Listing::Overridden;
        let cell = |text: &String| if is_number { right(text.clone()) } else { Cell::from(text.clone()) };
        let row = |row: &&super::figures::KeyRow| {
            let cells = row.cells.iter().map(cell);
            Row::new([Cell::from(row.shown.clone())].into_iter().chain(cells))
        };
        let rows: Vec<Row<'_>> = shown.iter().map(row).collect();
        let titles = heads.iter().map(|text| if is_number { head(text) } else { Cell::from(*text) });
        let titles = [Cell::from("KEY")].into_iter().chain(titles);
        let widths = [Constraint::Fill(2)].into_iter().chain(heads.iter().map(|text| width_of(text)));
        let selected = screen.selected_key().map(|row| row.path.as_str());
        self.keys.select(shown.iter().position(|row| Some(row.path.as_str()) == selected));
        frame.render_stateful_widget(
            table(rows, widths, titles, block, screen.focus == Pane::Keys),
            area,
            &mut self.keys,
        );
    }
}

fn table<'a>(
    rows: Vec<Row<'a>>,
    widths: impl IntoIterator<Item = Constraint>,
    heads: impl Iterator<Item = Cell<'a>>,
    block: Block<'a>,
    has_focus: bool,
) -> Table<'a> {
    let selected = if has_focus { Style::new().reversed() } else { Style::new().add_modifier(Modifier::BOLD) };
    let heads = Row::new(heads).style(Style::new().dim());
    Table::new(rows, widths)
        .header(heads)
        .block(block)
        .column_spacing(1)
        .row_highlight_style(selected)
        .highlight_symbol("▸ ")
}

fn pane(title: impl Into<Line<'static>>, has_focus: bool) -> Block<'static> {
    let style = if has_focus { Style::new().cyan() } else { Style::new().dark_gray() };
    Block::bordered().border_type(BorderType::Rounded).border_style(style).title(title)
}

/// The listings, of which one is shown.
fn listings(screen: &Screen) -> Line<'static> {
    let of = screen.selected_limiter().map_or(String::new(), |limiter| format!(" keys of {}: ", limiter.name));
    let mut spans = vec![Span::from(of)];
    for (number, listing) in Listing::ALL.into_iter().enumerate() {
        let text = format!("{} {}", number + 1, listing.title());
        let is_shown = listing == screen.listing;
        spans.push(if is_shown { text.bold().underlined() } else { text.dim() });
        spans.push(Span::from(if number + 1 < Listing::ALL.len() { "  " } else { "" }));
    }
    let order = if screen.key_order == KeyOrder::Name { ", by name" } else { "" };
    spans.push(Span::from(format!("{order}{} ", filtered(&screen.key_filter))));
    Line::from(spans)
}

/// Why there are no keys to show.
fn nothing(screen: &Screen) -> Option<String> {
    let Some(listed) = screen.listed() else {
        return Some(if screen.limiters().is_empty() { "no limiter" } else { "…" }.to_owned());
    };
    match &listed.rows {
        Err(why) => Some(why.clone()),
        Ok(rows) if rows.is_empty() => Some("none".to_owned()),
        Ok(_) if screen.keys().is_empty() => Some("none that the filter finds".to_owned()),
        Ok(_) => None,
    }
}

fn title(screen: &Screen, width: u16) -> Line<'static> {
    let mut spans = vec![" tidegate top ".bold().reversed(), Span::from(format!(" {} ", screen.server))];
    let Some(seen) = &screen.seen else { return Line::from(spans) };
    let health = Span::from(format!(" {} ", seen.health));
    spans.push(if seen.health == "ok" { health.green() } else { health.red().bold() });
    let sum = |read: fn(&Rates) -> f64| screen.rates.values().map(read).sum::<f64>();
    let rates = [(sum(|of| of.allowed), "allowed/s", Color::Green), (sum(|of| of.denied), "denied/s", Color::Red)];
    for (rate, what, colour) in rates {
        spans.push(Span::from(format!("  {} ", short(rate))).style(Style::new().fg(colour).bold()));
        spans.push(Span::from(what));
    }
    if width >= 100 {
        let all = |read: fn(&Limiter) -> Option<u64>| seen.limiters.iter().filter_map(read).sum::<u64>();
        let keys = all(|limiter| limiter.entries);
        spans.push(Span::from(format!(
            "  {} in {}",
            human::plural(keys, "key"),
            human::bytes(all(|limiter| limiter.bytes))
        )));
    }
    Line::from(spans)
}

fn bottom_line(screen: &Screen) -> Line<'static> {
    if let Some(Prompt { text, purpose }) = &screen.prompt {
        let (what, hint) = match purpose {
            Purpose::Filter => (" filter: ".to_owned(), "  Enter keeps it, Esc clears it"),
            Purpose::Override(key) => {
                let what = format!(" limits of {}: ", human::short_key(key.shown.as_bytes()));
                (what, "  such as: 9 per hour for 2h; Enter sets them, Esc leaves")
            }
        };
        return Line::from(vec![what.bold(), Span::from(text.clone()), "█".slow_blink(), hint.dim()]);
    }
    let lost = screen.lost.as_ref().map(|why| (why, Tone::Bad));
    if let Some((text, tone)) = screen.message.as_ref().map(|Message { text, tone }| (text, *tone)).or(lost) {
        let text = format!(" {}", human::key(text.as_bytes()));
        return Line::from(if tone == Tone::Good { text.green().bold() } else { text.red().bold() });
    }
    let keys = [
        ("Tab", "pane"),
        ("↑↓", "select"),
        ("s", "sort"),
        ("/", "filter"),
        ("v", "listing"),
        ("u", "unblock"),
        ("o", "override"),
        ("c", "clear override"),
        ("q", "quit"),
    ];
    Line::from(
        keys.iter().flat_map(|(key, does)| [format!(" {key} ").bold(), Span::from(*does).dim()]).collect::<Vec<_>>(),
    )
}

/// How many lines it takes: a refusal is read to its end.
fn lines_of(line: &Line<'_>, width: u16) -> u16 {
    // Words are not cut, so that lines are a little shorter than the terminal is wide.
    let room = usize::from(width.saturating_sub(8).max(1));
    u16::try_from(line.width().div_ceil(room)).unwrap_or(u16::MAX).clamp(1, 3)
}

fn filtered(filter: &str) -> String {
    if filter.is_empty() { String::new() } else { format!(", with \"{}\"", human::key(filter.as_bytes())) }
}

fn name(limiter: &Limiter) -> Cell<'static> {
    let text = limiter.name.clone();
    match (limiter.enabled, limiter.role.as_str()) {
        (false, _) => Cell::from(format!("{text} (disabled)").dim()),
        (true, "candidate") => Cell::from(format!("{text} (candidate)").yellow()),
        (true, _) => Cell::from(text),
    }
}

fn would_deny(limiter: &Limiter, rates: &Rates) -> Cell<'static> {
    match limiter.candidate {
        Some(_) => rate(rates.would_deny, Color::Yellow),
        None => right("·".to_owned()),
    }
}

fn head(text: &'static str) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(if text == "LATELY" { Alignment::Left } else { Alignment::Right }))
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

fn rate(rate: f64, colour: Color) -> Cell<'static> {
    let cell = right(short(rate));
    if rate > 0.0 { cell.style(Style::new().fg(colour)) } else { cell.style(Style::new().dim()) }
}

fn number(number: u64, colour: Color) -> Cell<'static> {
    let cell = right(human::count(number));
    if number > 0 { cell.style(Style::new().fg(colour)) } else { cell.style(Style::new().dim()) }
}

/// `0`, `0.4`, `37`, `1,204`.
fn short(rate: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is not negative, and shown whole"
    )]
    match rate {
        0.0 => "0".to_owned(),
        few if few < 9.95 => format!("{few:.1}"),
        many => human::count(many.round() as u64),
    }
}

/// The rates of late, each as high as its part of the highest.
fn spark(rates: &Rates) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = rates.history.iter().copied().fold(0.0, f64::max);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 7")]
    let bar = |rate: &f64| if highest > 0.0 { BARS[(rate / highest * 7.0).round() as usize] } else { BARS[0] };
    rates.history.iter().map(bar).collect()
}

fn width_of(head: &str) -> Constraint {
    match head {
        "LIMITS" | "WHY" => Constraint::Fill(1),
        "UNTIL" => Constraint::Length(23),
        "FOR ANOTHER" => Constraint::Length(24),
        _ => Constraint::Length(12),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::top::screen::tests::screen;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// The screen as text.
    fn drawn(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| View::default().draw(&screen(), frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_selected_limiter_and_its_keys_are_shown() {
        let text = drawn(120, 20);
        for part in
            ["▸ mail", "1.0", "most denied first", "keys of mail: 1 busiest", "▸ Alice", "100 allowed/s", "u unblock"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn any_size_is_drawn() {
        for (width, height) in [(120, 40), (80, 24), (60, 12), (40, 10), (20, 5), (3, 3), (1, 1)] {
            let text = drawn(width, height);
            assert!(width < 40 || text.contains("mail"), "{width}×{height}\n{text}");
        }
    }
}

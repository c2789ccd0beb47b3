//! What is on the screen, and what key presses do to it. Nothing here draws, asks or waits.
//!
//! A row is selected by its name, not by its line: it stays selected while others overtake it.

use super::figures::{Counts, KeyRow, Keys, Limiter, Listing, Seen};
use super::worker::{Ask, Change, Look, What};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use tidegate::Micros;

/// Everything that is shown.
pub(super) struct Screen {
    pub(super) server: String,
    pub(super) seen: Option<Seen>,
    pub(super) rates: HashMap<String, Rates>,
    pub(super) focus: Pane,
    pub(super) listing: Listing,
    pub(super) limiter_order: LimiterOrder,
    pub(super) key_order: KeyOrder,
    limiter: Option<String>,
    key: Option<String>,
    pub(super) limiter_filter: String,
    pub(super) key_filter: String,
    pub(super) prompt: Option<Prompt>,
    /// What came of the last key press.
    pub(super) message: Option<Message>,
    /// Why the server cannot be looked at: what is shown is old.
    pub(super) lost: Option<String>,
    /// What the worker was last told to look at.
    looked_at: Option<Look>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pane {
    Limiters,
    Keys,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LimiterOrder {
    Denied,
    Allowed,
    Name,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyOrder {
    Figure,
    Name,
}

/// A line that is being typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    pub(super) purpose: Purpose,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Filter,
    Override(KeyRow),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub(super) text: String,
    pub(super) tone: Tone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tone {
    Good,
    Bad,
}

/// What a key press comes to outside of the screen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    Quit,
    Ask(Ask),
}

/// How fast a limiter decides.
#[derive(Clone, Default, Debug)]
pub(super) struct Rates {
    last: Option<(Micros, Counts, Counts)>,
    /// In a second.
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) would_deny: f64,
    /// All decisions in a second, the latest last.
    pub(super) history: VecDeque<f64>,
}

/// Looks that the history of rates goes back.
const HISTORY: usize = 20;
/// Lines of a page.
const PAGE: isize = 10;
const NO_KEY: &str = "no key is selected; choose a limiter with keys, or another listing with v";
/// The longest line that can be typed.
const PROMPT_MAX: usize = 600;

impl Screen {
    pub(super) fn new(server: &str) -> Screen {
        Screen {
            server: server.to_owned(),
            seen: None,
            rates: HashMap::new(),
            focus: Pane::Limiters,
            listing: Listing::Busiest,
            limiter_order: LimiterOrder::Denied,
            key_order: KeyOrder::Figure,
            limiter: None,
            key: None,
            limiter_filter: String::new(),
            key_filter: String::new(),
            prompt: None,
            message: None,
            lost: None,
            looked_at: None,
        }
    }

    /// What the server told.
    pub(super) fn take(&mut self, seen: Seen) {
        self.rates.retain(|name, _| seen.limiters.iter().any(|limiter| limiter.name == *name));
        for limiter in &seen.limiters {
            self.rates.entry(limiter.name.clone()).or_default().note(seen.at, limiter);
        }
        self.lost = None;
        self.seen = Some(seen);
    }

    /// Says something until a key is pressed.
    pub(super) fn tell(&mut self, text: String, tone: Tone) {
        self.message = Some(Message { text, tone });
    }

    /// The server cannot be looked at.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// What the worker should look at.
    pub(super) fn look(&mut self) -> Look {
        let limiter = self.selected_limiter().map_or(String::new(), |limiter| limiter.name.clone());
        let look = Look { limiter, listing: self.listing };
        self.looked_at = Some(look.clone());
        look
    }

    /// The same, if it is not what it was told last.
    pub(super) fn looks_elsewhere(&mut self) -> Option<Look> {
        let before = self.looked_at.clone();
        let now = self.look();
        (before.as_ref() != Some(&now)).then_some(now)
    }

    /// The limiters that pass the filter, in order.
    pub(super) fn limiters(&self) -> Vec<&Limiter> {
        let all = self.seen.iter().flat_map(|seen| &seen.limiters);
        let mut shown: Vec<&Limiter> = all.filter(|limiter| contains(&limiter.name, &self.limiter_filter)).collect();
        let rate = |limiter: &Limiter, read: fn(&Rates) -> f64| self.rates.get(&limiter.name).map_or(0.0, read);
        match self.limiter_order {
            LimiterOrder::Name => shown.sort_by(|a, b| a.name.cmp(&b.name)),
            LimiterOrder::Denied => shown.sort_by(|a, b| {
                let (a, b) = ((rate(a, |of| of.denied), a.counts.denied), (rate(b, |of| of.denied), b.counts.denied));
                b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
            }),
            LimiterOrder::Allowed => shown.sort_by(|a, b| {
                let (a, b) =
                    ((rate(a, |of| of.allowed), a.counts.allowed), (rate(b, |of| of.allowed), b.counts.allowed));
                b.0.total_cmp(&a.0).then(b.1.cmp(&a.1))
            }),
        }
        shown
    }

    /// The listing of the selected limiter, if it has come.
    pub(super) fn listed(&self) -> Option<&Keys> {
        let keys = self.seen.as_ref()?.keys.as_ref()?;
        let is_current =
            keys.listing == self.listing && Some(&keys.limiter) == self.selected_limiter().map(|one| &one.name);
        is_current.then_some(keys)
    }

    /// The keys that pass the filter, in order.
    pub(super) fn keys(&self) -> Vec<&KeyRow> {
        let rows = self.listed().and_then(|keys| keys.rows.as_ref().ok()).into_iter().flatten();
        let mut shown: Vec<&KeyRow> = rows.filter(|row| contains(&row.shown, &self.key_filter)).collect();
        match self.key_order {
            KeyOrder::Figure => shown.sort_by_key(|row| Reverse(row.figure)),
            KeyOrder::Name => shown.sort_by(|a, b| a.shown.cmp(&b.shown)),
        }
        shown
    }

    pub(super) fn selected_limiter(&self) -> Option<&Limiter> {
        let shown = self.limiters();
        let selected = shown.iter().copied().find(|limiter| Some(&limiter.name) == self.limiter.as_ref());
        selected.or(shown.first().copied())
    }

    pub(super) fn selected_key(&self) -> Option<&KeyRow> {
        let shown = self.keys();
        shown.iter().copied().find(|row| Some(&row.path) == self.key.as_ref()).or(shown.first().copied())
    }

    /// Does what a key is pressed for.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Deed> {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Deed::Quit);
        }
        if let Some(prompt) = self.prompt.take() {
            return self.type_in(prompt, key);
        }
        self.message = None;
        // No letter is meant: it would unblock where a line was to be cleared.
        if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
            return None;
        }
        match key.code {
            KeyCode::Char('q') => return Some(Deed::Quit),
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => self.change_focus(),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-PAGE),
            KeyCode::PageDown => self.move_by(PAGE),
            KeyCode::Home => self.move_by(isize::MIN / 2),
            KeyCode::End => self.move_by(isize::MAX / 2),
            KeyCode::Char('s') => self.change_order(),
            KeyCode::Char('v') => self.list(self.listing.next()),
            KeyCode::Char(digit @ '1'..='4') => self.list(Listing::ALL[digit as usize - '1' as usize]),
            KeyCode::Char('/') => {
                let text = self.filter().clone();
                self.prompt = Some(Prompt { text, purpose: Purpose::Filter });
            }
            KeyCode::Esc => self.filter().clear(),
            KeyCode::Char('u') => return self.change(What::Unblock),
            KeyCode::Char('c') => return self.change(What::Clear),
            KeyCode::Char('o') => self.begin_override(),
            _ => {}
        }
        None
    }

    /// What a filter is typed into.
    fn filter(&mut self) -> &mut String {
        match self.focus {
            Pane::Limiters => &mut self.limiter_filter,
            Pane::Keys => &mut self.key_filter,
        }
    }

    fn change_focus(&mut self) {
        self.focus = match self.focus {
            Pane::Limiters => Pane::Keys,
            Pane::Keys => Pane::Limiters,
        };
    }

    fn change_order(&mut self) {
        match self.focus {
            Pane::Limiters => {
                self.limiter_order = match self.limiter_order {
                    LimiterOrder::Denied => LimiterOrder::Allowed,
                    LimiterOrder::Allowed => LimiterOrder::Name,
                    LimiterOrder::Name => LimiterOrder::Denied,
                };
            }
            Pane::Keys => {
                self.key_order = match self.key_order {
                    KeyOrder::Figure => KeyOrder::Name,
                    KeyOrder::Name => KeyOrder::Figure,
                };
            }
        }
    }

    fn list(&mut self, listing: Listing) {
        (self.listing, self.key) = (listing, None);
    }

    fn move_by(&mut self, lines: isize) {
        match self.focus {
            Pane::Limiters => {
                let names: Vec<&String> = self.limiters().iter().map(|limiter| &limiter.name).collect();
                let moved = moved(&names, self.selected_limiter().map(|limiter| &limiter.name), lines).cloned();
                (self.limiter, self.key) = (moved, None);
            }
            Pane::Keys => {
                let paths: Vec<&String> = self.keys().iter().map(|row| &row.path).collect();
                self.key = moved(&paths, self.selected_key().map(|row| &row.path), lines).cloned();
            }
        }
    }

    /// A change of the selected key.
    fn change(&mut self, what: What) -> Option<Deed> {
        let key = self.selected_key().cloned();
        match key {
            Some(key) => Some(self.change_of(key, what)),
            None => {
                self.tell(NO_KEY.to_owned(), Tone::Bad);
                None
            }
        }
    }

    fn change_of(&self, key: KeyRow, what: What) -> Deed {
        let limiter = self.selected_limiter().map_or(String::new(), |limiter| limiter.name.clone());
        Deed::Ask(Ask::Change(Change { limiter, key, what }))
    }

    fn begin_override(&mut self) {
        match (self.selected_key().cloned(), self.selected_limiter()) {
            (Some(key), Some(limiter)) => {
                let text = limiter.limits.join(", ");
                self.prompt = Some(Prompt { text, purpose: Purpose::Override(key) });
            }
            _ => self.tell(NO_KEY.to_owned(), Tone::Bad),
        }
    }

    fn type_in(&mut self, mut prompt: Prompt, key: KeyEvent) -> Option<Deed> {
        match key.code {
            KeyCode::Esc => {
                if prompt.purpose == Purpose::Filter {
                    self.filter().clear();
                }
                return None;
            }
            KeyCode::Enter => {
                return match prompt.purpose {
                    Purpose::Filter => None,
                    Purpose::Override(key) => Some(self.change_of(key, overriding(&prompt.text))),
                };
            }
            KeyCode::Backspace => drop(prompt.text.pop()),
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => prompt.text.clear(),
            KeyCode::Char(c) if !c.is_control() && prompt.text.len() < PROMPT_MAX => prompt.text.push(c),
            _ => {}
        }
        if prompt.purpose == Purpose::Filter {
            self.filter().clone_from(&prompt.text);
        }
        self.prompt = Some(prompt);
        None
    }
}

impl Rates {
    fn note(&mut self, at: Micros, limiter: &Limiter) {
        let tried = limiter.candidate.as_ref().map_or(Counts::default(), |candidate| candidate.counts);
        let now = (at, limiter.counts, tried);
        let Some((before, counts, candidate)) = self.last.replace(now) else { return };
        let seconds = seconds_between(before, at);
        if seconds <= 0.0 {
            return;
        }
        // A server that was started anew counts from 0 again.
        let rate = |now: u64, before: u64| f64_of(now.saturating_sub(before)) / seconds;
        self.allowed = rate(limiter.counts.allowed, counts.allowed);
        self.denied = rate(limiter.counts.denied, counts.denied);
        self.would_deny = rate(tried.denied, candidate.denied);
        self.history.push_back(self.allowed + self.denied);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }
}

fn seconds_between(before: Micros, at: Micros) -> f64 {
    f64_of(at.saturating_sub(before).get()) / 1e6
}

/// For display: past 2^53 the last digits are lost.
#[expect(clippy::cast_precision_loss, reason = "for display")]
fn f64_of(number: u64) -> f64 {
    number as f64
}

/// `100 per minute, 500 per hour for 2h`: limits, and for how long.
fn overriding(text: &str) -> What {
    let (limits, span) = match text.rsplit_once(" for ") {
        Some((limits, span)) => (limits, Some(span.trim().to_owned())),
        None => (text, None),
    };
    What::Override { limits: limits.split(',').map(|limit| limit.trim().to_owned()).collect(), span }
}

fn contains(text: &str, filter: &str) -> bool {
    text.to_lowercase().contains(&filter.to_lowercase())
}

/// So many lines on from the selected one, and not past the ends.
fn moved<'a>(rows: &[&'a String], selected: Option<&String>, lines: isize) -> Option<&'a String> {
    let place = rows.iter().position(|row| Some(*row) == selected).unwrap_or(0);
    let last = rows.len().checked_sub(1)?;
    rows.get(place.saturating_add_signed(lines).min(last)).copied()
}

#[cfg(test)]
pub(super) mod tests;

//! Key presses as words, and what is on the screen then.

use super::*;

fn limiter(name: &str, allowed: u64, denied: u64) -> Limiter {
    Limiter {
        name: name.to_owned(),
        enabled: true,
        limits: vec!["3 per 1m".to_owned()],
        role: "enforced".to_owned(),
        entries: Some(1),
        bytes: Some(1),
        counts: Counts { allowed, denied },
        candidate: None,
    }
}

fn row(key: &str, figure: u64) -> KeyRow {
    KeyRow { shown: key.to_owned(), path: key.to_owned(), figure, cells: vec![figure.to_string()] }
}

/// Two looks, a second apart: `mail` denies most then, `api` allows most.
pub(in crate::client::top) fn screen() -> Screen {
    let mut screen = Screen::new("http://server");
    let keys = |limiter: &str| {
        let rows = Ok(vec![row("bob", 3), row("Alice", 7), row("carol", 5)]);
        Some(Keys { limiter: limiter.to_owned(), listing: Listing::Busiest, rows })
    };
    for (second, counts) in [(10, [(0, 0), (0, 0), (5, 5)]), (11, [(90, 1), (10, 20), (5, 5)])] {
        let limiters = ["api", "mail", "web"].into_iter().zip(counts);
        let limiters = limiters.map(|(name, (allowed, denied))| limiter(name, allowed, denied)).collect();
        screen.take(Seen { at: Micros::from_secs(second), limiters, health: "ok".to_owned(), keys: keys("mail") });
    }
    screen
}

/// Presses the keys of these words: a word of one letter or a name is one key, any other is typed.
fn press(screen: &mut Screen, words: &str) -> Option<Deed> {
    let mut deed = None;
    for word in words.split(' ') {
        let codes: Vec<KeyCode> = match word {
            "tab" => vec![KeyCode::Tab],
            "enter" => vec![KeyCode::Enter],
            "esc" => vec![KeyCode::Esc],
            "up" => vec![KeyCode::Up],
            "down" => vec![KeyCode::Down],
            "end" => vec![KeyCode::End],
            "back" => vec![KeyCode::Backspace],
            typed => typed.chars().map(|c| KeyCode::Char(if c == '_' { ' ' } else { c })).collect(),
        };
        for code in codes {
            deed = screen.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
    }
    deed
}

/// Limiters and keys in order, each selected one in brackets.
#[track_caller]
fn check(words: &str, limiters: &str, keys: &str) {
    let mut screen = screen();
    press(&mut screen, words);
    let marked = |name: &str, selected: bool| if selected { format!("[{name}]") } else { name.to_owned() };
    let selected = screen.selected_limiter().map(|one| one.name.clone());
    let shown: Vec<String> =
        screen.limiters().iter().map(|one| marked(&one.name, Some(&one.name) == selected.as_ref())).collect();
    assert_eq!(shown.join(" "), limiters, "{words}");
    let selected = screen.selected_key().map(|row| row.path.clone());
    let shown: Vec<String> =
        screen.keys().iter().map(|row| marked(&row.shown, Some(&row.path) == selected.as_ref())).collect();
    assert_eq!(shown.join(" "), keys, "{words}");
}

#[test]
fn rows_are_sorted_filtered_and_selected() {
    let keys = "[Alice] carol bob";
    check("x", "[mail] api web", keys);
    check("s", "[api] mail web", "");
    check("s s", "[api] mail web", "");
    check("s s s", "[mail] api web", keys);
    check("down", "mail [api] web", "");
    check("down s", "[api] mail web", "");
    check("end", "mail api [web]", "");
    check("end down up", "mail [api] web", "");
    check("/ A", "[mail] api", keys);
    check("/ ap", "[api]", "");
    check("/ ap back enter", "[mail] api", keys);
    check("/ ap esc", "[mail] api web", keys);
    check("/ ap enter esc", "[mail] api web", keys);
    check("tab s", "[mail] api web", "[Alice] bob carol");
    check("tab down", "[mail] api web", "Alice [carol] bob");
    check("tab down s", "[mail] api web", "Alice bob [carol]");
    check("tab / CAR", "[mail] api web", "[carol]");
    check("tab / x", "[mail] api web", "");
    check("v", "[mail] api web", "");
    check("v 1", "[mail] api web", keys);
}

#[test]
fn changes_are_of_the_selected_key() {
    let change = |words: &str| match press(&mut screen(), words) {
        Some(Deed::Ask(Ask::Change(Change { limiter, key, what }))) => format!("{limiter} {} {what:?}", key.path),
        other => format!("{other:?}"),
    };
    assert_eq!(change("u"), "mail Alice Unblock");
    assert_eq!(change("tab down u"), "mail carol Unblock");
    assert_eq!(change("tab / bo enter c"), "mail bob Clear");
    assert_eq!(change("o enter"), "mail Alice Override { limits: [\"3 per 1m\"], span: None }");
    assert_eq!(
        change("o ,_9_per_hour_for_2h enter"),
        "mail Alice Override { limits: [\"3 per 1m\", \"9 per hour\"], span: Some(\"2h\") }"
    );
    assert_eq!(change("o q"), "None", "it is typed");
    assert_eq!(change("o esc q"), "Some(Quit)");
    assert_eq!(change("down u"), "None", "its keys have not come yet");
    assert_eq!(press(&mut screen(), "q"), Some(Deed::Quit));
    let with_control = |letter| screen().press(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    assert_eq!((with_control('u'), with_control('c')), (None, Some(Deed::Quit)));
}

#[test]
fn rates_are_of_the_time_between_two_looks() {
    let screen = screen();
    let Rates { allowed, denied, .. } = screen.rates["api"];
    assert_eq!((allowed, denied), (90.0, 1.0));
    assert_eq!(screen.rates["web"].allowed, 0.0);
}

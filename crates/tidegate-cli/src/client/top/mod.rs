//! `tidegate top`: limiters and keys as they are asked, live in a terminal.
//!
//! `screen.rs` is what is shown and what key presses do to it, pure; `view.rs` draws it; `worker.rs` asks the server, on a thread of its own, so
//! that the terminal never waits for it. Here is the terminal. Invariant: it is given back as it was, whatever ends this.

mod figures;
mod screen;
mod view;
mod worker;

use super::Reach;
use super::http::Failure;
use crate::exit;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use screen::{Deed, Screen, Tone};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tidegate::Clock;
use view::View;
use worker::{Ask, News};

/// The live view.
#[derive(clap::Args, Debug)]
pub(crate) struct Top {
    #[command(flatten)]
    reach: Reach,
}

/// How long a key press or news may wait to be looked at.
const GLANCE: Duration = Duration::from_millis(50);

pub(super) fn run(top: &Top) -> Result<ExitCode, Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let message = "top draws on a terminal, and this is none; for scripts there is: tidegate limiters --json";
        return Err(Failure::new(message.to_owned()));
    }
    let server = top.reach.connect()?;
    let clock = Clock::process();
    // A server that is not there, or does not let us, is told of on a terminal as it was.
    let first = worker::look(&server, &clock, None)?;
    let (asks, asked) = channel();
    let (news, told) = channel();
    std::thread::Builder::new()
        .name("tidegate-top".to_owned())
        .spawn(move || worker::run(&server, &clock, &asked, &news))
        .map_err(|error| Failure::new(format!("no thread can be started: {error}; free some memory")))?;
    let mut screen = Screen::new(&top.reach.server);
    screen.take(first);
    let terminal = ratatui::init();
    let ended = show(terminal, screen, &asks, &told);
    ratatui::restore();
    ended.map_err(|error| Failure::new(format!("the terminal failed: {error}; try another one")))?;
    Ok(exit::OK)
}

/// Draws and listens until it is told to quit.
fn show(
    mut terminal: DefaultTerminal,
    mut screen: Screen,
    asks: &Sender<Ask>,
    news: &Receiver<News>,
) -> std::io::Result<()> {
    let mut view = View::default();
    let send = |ask: Ask| {
        // Without its worker nothing is asked any more, which the screen says by its age.
        let _ = asks.send(ask);
    };
    send(Ask::Look(screen.look()));
    loop {
        terminal.draw(|frame| view.draw(&screen, frame))?;
        if event::poll(GLANCE)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match screen.press(key) {
                Some(Deed::Quit) => return Ok(()),
                Some(Deed::Ask(ask)) => send(ask),
                None => {}
            }
        }
        for one in news.try_iter() {
            match one {
                News::Seen(seen) => screen.take(*seen),
                News::Done(text) => screen.tell(text, Tone::Good),
                News::Refused(text) => screen.tell(text, Tone::Bad),
                News::Lost(text) => screen.lose(text),
            }
        }
        // What was selected may be gone, and another is shown.
        if let Some(look) = screen.looks_elsewhere() {
            send(Ask::Look(look));
        }
    }
}

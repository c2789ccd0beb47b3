//! The streams of a replay: each on a timeline of its own, all started with the trace's first line.
//!
//! Time goes from one due moment to the next, as it would in a server, so that every message comes
//! at its time and in its order.

use tidegate::Micros;
use tidegate_core::timeline::{Outcome, Step, Timeline};
use tidegate_events::{StreamSpec, message};

/// Most key frames between two lines of a stream; more is a trace whose times are far apart.
const KEY_FRAMES_MAX: u64 = 1_000_000;

/// All streams of the configuration.
pub(super) struct Streams {
    streams: Vec<Stream>,
    started: bool,
}

struct Stream {
    spec: StreamSpec,
    timeline: Timeline,
    /// Messages since the stream's last line.
    messages: Vec<String>,
}

impl Streams {
    pub(super) fn new(specs: Vec<StreamSpec>) -> Streams {
        let stream = |spec| Stream { spec, timeline: Timeline::default(), messages: Vec::new() };
        Streams { streams: specs.into_iter().map(stream).collect(), started: false }
    }

    /// Told of every line's time; the first starts the streams.
    pub(super) fn start_once(&mut self, at: Micros) {
        if !std::mem::replace(&mut self.started, true) {
            self.streams.iter_mut().for_each(|stream| stream.start(at));
        }
    }

    /// Advances a stream to `at`, submits the event if there is one, and gives the submission's status and all
    /// messages since the stream's last line.
    ///
    /// # Errors
    /// A sentence with the remedy.
    pub(super) fn line(
        &mut self,
        name: &str,
        at: Micros,
        event: Option<&str>,
    ) -> Result<(Option<&'static str>, Vec<String>), String> {
        let names: Vec<&str> = self.streams.iter().map(|stream| stream.spec.name.as_str()).collect();
        let Some(index) = names.iter().position(|known| *known == name) else {
            return Err(match names.as_slice() {
                [] => "stream: the configuration has no stream; add a [[stream]]".to_owned(),
                names => format!("stream: \"{}\" is unknown; there are: {}", name.escape_debug(), names.join(", ")),
            });
        };
        if let Some(event) = event {
            tidegate_events::check_event(event.as_bytes()).map_err(|error| format!("submit: {error}"))?;
        }
        self.streams[index].line(at, event)
    }
}

impl Stream {
    fn start(&mut self, at: Micros) {
        let (spec, messages) = (&self.spec, &mut self.messages);
        self.timeline.start(&spec.rules, spec.overdue, at, &mut |step, timeline| tell(messages, step, timeline));
    }

    fn line(&mut self, at: Micros, event: Option<&str>) -> Result<(Option<&'static str>, Vec<String>), String> {
        let rules = self.spec.rules;
        let since_ms = at.get() / 1_000 - self.timeline.horizon_ms().min(at.get() / 1_000);
        if since_ms / rules.snapshot_every_ms > KEY_FRAMES_MAX {
            return Err(format!(
                "at: there would be more than {KEY_FRAMES_MAX} key frames of stream \"{}\" before it; raise its snapshot_every",
                self.spec.name
            ));
        }
        let messages = &mut self.messages;
        while let Some(wake) = self.timeline.wake_at(&rules).filter(|wake| *wake <= at) {
            self.timeline.advance(&rules, wake, &mut |step, timeline| tell(messages, step, timeline));
        }
        let outcome = event
            .map(|event| self.timeline.submit(&rules, event, at, &mut |step, timeline| tell(messages, step, timeline)));
        let status = outcome.map(|outcome| match outcome {
            Outcome::Submitted { .. } => "submitted",
            Outcome::Conflict { .. } => "conflict",
            Outcome::Full { .. } => "full",
        });
        Ok((status, std::mem::take(&mut self.messages)))
    }
}

fn tell(messages: &mut Vec<String>, step: &Step, timeline: &Timeline) {
    messages.extend(message::of_step(step, timeline, None));
}

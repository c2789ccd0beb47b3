//! One subscription: a topic's messages into MESSAGE frames, and those to the socket.

use super::writer::{Gone, Writer};
use crate::access::{Lasting, Refusal, Scope, What};
use crate::listener::{Account, Backlog, TooMuchUnread};
use crate::pace::Paced;
use crate::turns::in_turns;
use bytes::Bytes;
use std::sync::Arc;
use tidegate::Gate;
use tidegate_events::{Cut, Message, Seen, Stream, Unavailable};
use tidegate_wire::stomp;
use tidegate_wire::websocket::{self, Opcode};
use tokio::io::AsyncWrite;
use tokio::sync::broadcast;

/// A body of more bytes is not copied for each subscriber.
const COPIED_MAX: usize = 4 << 10;

/// What every frame of a subscription says.
pub(super) struct Label {
    pub(super) id: String,
    pub(super) destination: String,
    /// Whether the client wants to acknowledge: then frames carry an id for it. Nothing depends on that.
    pub(super) acknowledges: bool,
}

/// Why a subscription ended.
pub(super) enum Ended {
    Cut(Cut),
    /// Clients have not read as much as may be.
    TooMuchUnread,
    /// Its frames cannot be written: the client is gone.
    Gone,
    /// The client may not read it, or not any more.
    Refused(Refusal),
    /// The stream cannot be read now.
    Unavailable(Unavailable),
    /// There is nothing more to tell.
    Over,
}

/// Follows a stream. What its client has not read is counted in `backlog`, for this account.
pub(super) async fn follow<W: AsyncWrite + Unpin>(
    stream: Arc<Stream>,
    from: Option<Seen>,
    label: Label,
    out: Arc<Writer<W>>,
    (backlog, account): (Arc<Backlog>, Account),
    (mut caller, gate): (Lasting, Gate),
) -> Ended {
    let mut subscription = match Paced::subscribe(&stream, from).await {
        Ok(subscription) => subscription,
        Err(unavailable) => return Ended::Unavailable(unavailable),
    };
    loop {
        let messages = match subscription.next().await {
            Ok(messages) => messages,
            Err(cut) => return Ended::Cut(cut),
        };
        if let Err(refusal) = caller.check(Scope::Subscribe, What::Stream(&stream.spec().name), gate.now()) {
            return Ended::Refused(refusal);
        }
        let written: Result<Result<(), Gone>, TooMuchUnread> = in_turns(async {
            let _messages = backlog.hold_all(messages.iter().map(|message| &message.body), &account)?;
            let out = out.take().await;
            let frames = label.frames(&messages);
            let _frames = backlog.hold_all(frames.iter(), &account)?;
            Ok(out.write(frames).await)
        })
        .await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(Gone)) => return Ended::Gone,
            Err(TooMuchUnread) => {
                stream.note_cut();
                return Ended::TooMuchUnread;
            }
        }
    }
}

/// Follows the time.
pub(super) async fn follow_time<W: AsyncWrite + Unpin>(
    mut times: broadcast::Receiver<Bytes>,
    label: Label,
    out: Arc<Writer<W>>,
    (mut caller, gate): (Lasting, Gate),
) -> Ended {
    let mut count = 0_u64;
    loop {
        match times.recv().await {
            Ok(time) => {
                if let Err(refusal) = caller.check_scope(Scope::Subscribe, gate.now()) {
                    return Ended::Refused(refusal);
                }
                count += 1;
                let mut frame = Vec::new();
                label.push_head(&mut frame, (count, None), "text/plain", time.len());
                frame.extend_from_slice(&time);
                frame.push(0);
                if let Err(Gone) = out.write([frame.into()]).await {
                    return Ended::Gone;
                }
            }
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return Ended::Over,
        }
    }
}

impl Label {
    /// Frames of all these messages; large bodies are shared, small ones copied into one buffer.
    fn frames(&self, messages: &[Message]) -> Vec<Bytes> {
        let (mut parts, mut buffer) = (Vec::new(), Vec::new());
        for Message { clock, epoch, body, .. } in messages {
            self.push_head(&mut buffer, (*clock, Some(epoch.to_string())), "application/json", body.len());
            if body.len() > COPIED_MAX {
                parts.push(std::mem::take(&mut buffer).into());
                parts.push(body.clone());
            } else {
                buffer.extend_from_slice(body);
            }
            buffer.push(0);
        }
        parts.push(buffer.into());
        parts
    }

    /// The heads of the WebSocket and the STOMP frame; the body and a NUL must follow.
    fn push_head(
        &self,
        out: &mut Vec<u8>,
        (message_id, epoch): (u64, Option<String>),
        content_type: &str,
        body_len: usize,
    ) {
        let (message_id, length) = (message_id.to_string(), body_len.to_string());
        let ack = self.acknowledges.then(|| format!("{} {message_id}", self.id));
        let always = [
            ("subscription", self.id.as_str()),
            ("message-id", &message_id),
            ("destination", &self.destination),
            ("content-type", content_type),
            ("content-length", &length),
        ];
        let sometimes = [("epoch", epoch.as_deref()), ("ack", ack.as_deref())];
        let sometimes = sometimes.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let headers: Vec<(&str, &str)> = always.into_iter().chain(sometimes).collect();
        let mut head = Vec::with_capacity(224);
        stomp::push_head(&mut head, "MESSAGE", &headers);
        out.reserve(head.len() + body_len + 16);
        websocket::push_head(out, Opcode::Text, head.len() + body_len + 1);
        out.extend_from_slice(&head);
    }
}

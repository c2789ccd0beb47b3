//! One connection: reads what is there, has it answered, writes the answers, and reads on.

use super::buffers::Buffers;
use super::door::Door;
use super::session::{After, Error, Session};
use crate::access::Known;
use crate::listener::{Connection, Order, Watched};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use tidegate::panic_point;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::task::yield_now;

/// Serves one connection to its end.
pub(super) async fn serve(door: Arc<Door>, connection: Arc<Connection>) {
    {
        let secured = tokio::select! {
            secured = connection.secure() => secured,
            // Whatever the order is: nothing is under way yet.
            _ = connection.ordered() => return,
        };
        if secured.is_err() {
            return;
        }
    }
    connection.switch_protocol();
    let known = Known::of(connection.certificate());
    let mut session = Session::new(door, connection.peer().ip(), known);
    let mut io = pin!(Watched::new(Arc::clone(&connection), |_: &mut [u8]| false));
    let end = match session.count() {
        Ok(()) => converse(&mut session, &connection, io).await,
        // A certificate's connection that is one too many.
        Err(Error { code, text }) => {
            let mut told = format!("-{code} {text}\r\n").into_bytes();
            let _ = write(io.as_mut(), &mut told).await;
            End::Closing
        }
    };
    if end == End::Closing {
        // A client that is still sending would lose the last answer.
        tokio::select! {
            () = connection.linger() => {}
            _ = connection.ordered() => {}
        }
    }
}

/// How a conversation ended.
#[derive(PartialEq, Eq)]
enum End {
    /// There is nobody left to be told anything.
    Gone,
    /// The last answer is on its way.
    Closing,
}

async fn converse<Io>(session: &mut Session, connection: &Connection, mut io: Pin<&mut Io>) -> End
where
    Io: tokio::io::AsyncRead + AsyncWrite,
{
    let mut buffers = Buffers::new(session.door.counters().large(), session.peer);
    note(connection, session, false, false);
    let mut ordered = pin!(connection.ordered());
    loop {
        if buffers.make_room(session.caller.caller()).is_err() {
            let told = if session.is_known() { NO_ROOM } else { NO_ROOM_FOR_STRANGERS };
            let _ = write(io.as_mut(), &mut told.to_vec()).await;
            return End::Closing;
        }
        let before = buffers.input.len();
        let read = tokio::select! {
            biased;
            read = io.read_buf(&mut buffers.input) => read,
            // Nothing is under way, so that both orders mean the same.
            _ = &mut ordered => return End::Gone,
        };
        if !matches!(read, Ok(1..)) {
            return End::Gone;
        }
        panic_point("resp");
        let (filled, mut used) = (buffers.input.len() == buffers.input.capacity(), 0);
        let after = loop {
            let most = buffers.output_max(session.caller.caller());
            let ran = session.run(&buffers.input[used..], &mut buffers.output, most).await;
            used += ran.used;
            if !buffers.output.is_empty() {
                let mut writing = pin!(write(io.as_mut(), &mut buffers.output));
                let written = loop {
                    tokio::select! {
                        biased;
                        written = &mut writing => break written,
                        order = &mut ordered => {
                            if order == Order::Cut {
                                return End::Gone;
                            }
                            session.finish();
                            ordered.set(connection.ordered());
                        }
                    }
                };
                if written.is_err() {
                    return End::Gone;
                }
            }
            if ran.after != After::GoOn {
                break ran.after;
            }
        };
        if after == After::Close {
            return End::Closing;
        }
        buffers.input.drain(..used);
        note(connection, session, used > 0, !buffers.input.is_empty());
        buffers.fit(filled, before, session.caller.caller());
        if filled {
            // It is ahead, and the next read is there already: others of this thread have their turn first. Without this a few clients with
            // pipelines that do not end would have the thread for seconds.
            yield_now().await;
        }
    }
}

/// Notes what came, for the time limits: whole commands, and perhaps the beginning of another. A client that has yet to show who it is has the
/// time of one command for that, whatever it sends.
fn note(connection: &Connection, session: &Session, any_whole: bool, in_command: bool) {
    let is_known = session.is_known();
    connection.note_messages(any_whole && is_known, in_command || !is_known);
    if any_whole && is_known {
        connection.note_admitted();
    }
}

const NO_ROOM: &[u8] = b"-ERR the command is too long for now: clients have sent as much as there is room for; \
                         send shorter ones, or read answers as they come\r\n";
const NO_ROOM_FOR_STRANGERS: &[u8] =
    b"-NOAUTH the command is too long for a client that has shown no token; send AUTH first\r\n";

async fn write<Io: AsyncWrite>(mut io: Pin<&mut Io>, output: &mut Vec<u8>) -> io::Result<()> {
    io.write_all(output).await?;
    io.flush().await?;
    output.clear();
    Ok(())
}

//! One connection: reads what is there, has it answered, writes the answers, and reads on.

use super::door::Door;
use super::session::{After, Error, Session};
use crate::access::Known;
use crate::listener::{Connection, Order, Watched};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Room for a read, while reads are small: a dozen commands or so. It doubles when it is filled.
const READ_MIN: usize = 4 << 10;
/// Most room for a read. A command fits, and many small ones are read together.
const READ_MAX: usize = 64 << 10;

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
    let (mut input, mut output) = (Vec::with_capacity(READ_MIN), Vec::new());
    let mut ordered = pin!(connection.ordered());
    loop {
        make_room(&mut input);
        let before = input.len();
        let read = tokio::select! {
            biased;
            read = io.read_buf(&mut input) => read,
            // Nothing is under way, so that both orders mean the same.
            _ = &mut ordered => return End::Gone,
        };
        if !matches!(read, Ok(1..)) {
            return End::Gone;
        }
        let (filled, mut used) = (input.len() == input.capacity(), 0);
        let after = loop {
            let ran = session.run(&input[used..], &mut output).await;
            used += ran.used;
            if !output.is_empty() {
                let mut writing = pin!(write(io.as_mut(), &mut output));
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
        input.drain(..used);
        connection.note_messages(used > 0, !input.is_empty());
        fit(&mut input, &mut output, filled, before);
    }
}

async fn write<Io: AsyncWrite>(mut io: Pin<&mut Io>, output: &mut Vec<u8>) -> io::Result<()> {
    io.write_all(output).await?;
    io.flush().await?;
    output.clear();
    Ok(())
}

fn make_room(input: &mut Vec<u8>) {
    if input.capacity() - input.len() < READ_MIN / 4 {
        input.reserve(READ_MIN);
    }
}

/// Room for the next read by how much the last one brought: a connection that is idle keeps little.
fn fit(input: &mut Vec<u8>, output: &mut Vec<u8>, filled: bool, before: usize) {
    if filled && input.capacity() < READ_MAX {
        input.reserve((2 * input.capacity()).min(READ_MAX) - input.len());
    } else if input.is_empty() && before == 0 && input.capacity() > READ_MIN && !filled {
        input.shrink_to(READ_MIN);
        output.shrink_to(READ_MIN);
    }
}

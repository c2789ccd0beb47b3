//! What holds of any bytes whatsoever that a client of the RESP door could send. The fuzz target checks the same.

use tidegate_wire::resp::command;
use tidegate_wire::resp::command::{COMMAND_LEN_MAX, INLINE_LEN_MAX, Malformed, PART_LEN_MAX, PARTS_MAX, Read, read};

/// Reads the bytes as commands; true when a whole command was in them.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let (at_once, end) = read_all(bytes, bytes.len().max(1));
    // In however many pieces they come, they say the same.
    for piece in [1, 3, 64] {
        assert_eq!(read_all(bytes, piece), (at_once.clone(), end), "in pieces of {piece}: {bytes:?}");
    }
    for parts in &at_once {
        assert!(parts.len() <= PARTS_MAX && parts.iter().all(|part| part.len() <= PART_LEN_MAX.max(INLINE_LEN_MAX)));
        // Written as clients write it, it is read as the same.
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let written = tidegate_wire::resp::command(&parts);
        let mut again = Vec::new();
        match read(&written, &mut again) {
            Ok(Some(Read { len, .. })) => assert_eq!((len, &again), (written.len(), &parts), "{bytes:?}"),
            other => assert!(written.len() > COMMAND_LEN_MAX, "{other:?}"),
        }
    }
    !at_once.is_empty()
}

/// The commands of bytes that come in pieces, as a door reads them; and how they end: so many bytes are half a command, or why not.
fn read_all(bytes: &[u8], piece: usize) -> (Vec<Vec<Vec<u8>>>, Result<usize, Malformed>) {
    let (mut here, mut taken) = (Vec::new(), Vec::new());
    for part in bytes.chunks(piece) {
        here.extend_from_slice(part);
        loop {
            let mut parts = Vec::new();
            match read(&here, &mut parts) {
                Ok(Some(command::Read { len, .. })) => {
                    assert!(len > 0 && len <= here.len());
                    if !parts.is_empty() {
                        taken.push(parts.iter().map(|part| part.to_vec()).collect());
                    }
                    here.drain(..len);
                }
                Ok(None) => break,
                Err(malformed) => return (taken, Err(malformed)),
            }
        }
        assert!(here.len() <= COMMAND_LEN_MAX + piece, "half a command is bounded");
    }
    (taken, Ok(here.len()))
}

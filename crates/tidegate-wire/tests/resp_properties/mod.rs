//! What holds of any bytes whatsoever that a Redis could send. The fuzz target checks the same.

use tidegate_wire::resp::{DEPTH_MAX, Garbled, LINE_LEN_MAX, Replies, Reply, command};

/// Reads the bytes as replies; true when a whole reply was in them.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let (at_once, end) = read(bytes, bytes.len().max(1));
    // In however many pieces they come, they say the same.
    for piece in [1, 3, 64] {
        assert_eq!(read(bytes, piece), (at_once.clone(), end.clone()), "in pieces of {piece}: {bytes:?}");
    }
    let mut held = 0;
    for reply in &at_once {
        assert!(depth(reply) <= DEPTH_MAX, "{bytes:?}");
        held += size(reply);
        check_again(reply);
    }
    // An item is at least a sign, a number and an end; a broken character of an error becomes one of three bytes.
    assert!(held <= bytes.len() * 3, "{held} bytes out of {bytes:?}");
    !at_once.is_empty()
}

/// The replies of bytes that come in pieces, and how they end: whole, open or garbled.
fn read(bytes: &[u8], piece: usize) -> (Vec<Reply>, Result<bool, Garbled>) {
    let (mut replies, mut taken) = (Replies::default(), Vec::new());
    for part in bytes.chunks(piece) {
        replies.room().extend_from_slice(part);
        loop {
            match replies.take() {
                Ok(Some(reply)) => taken.push(reply),
                Ok(None) => break,
                Err(garbled) => return (taken, Err(garbled)),
            }
        }
    }
    (taken, Ok(replies.is_empty()))
}

/// A text that was read goes into a command, which says the same to a server that reads it as a list.
fn check_again(reply: &Reply) {
    let Reply::Text(text) = reply else { return };
    let command = command(&[b"ECHO", text]);
    assert!(text.len() + LINE_LEN_MAX > command.len());
    let (read, end) = read(&command, command.len());
    assert_eq!(end, Ok(true));
    assert_eq!(read, [Reply::List(vec![Reply::Text(b"ECHO".to_vec()), reply.clone()])]);
}

/// Lists within lists, without recursion: it is input that decides how deep they are.
fn depth(reply: &Reply) -> usize {
    let (mut level, mut depth) = (vec![reply], 0);
    while level.iter().any(|reply| matches!(reply, Reply::List(_))) {
        depth += 1;
        level = level.into_iter().filter_map(items).flatten().collect();
    }
    depth
}

/// How many bytes of texts and errors a reply holds, and one for each item.
fn size(reply: &Reply) -> usize {
    let (mut open, mut size) = (vec![reply], 0);
    while let Some(reply) = open.pop() {
        size += 1 + match reply {
            Reply::Text(text) => text.len(),
            Reply::Error(text) => text.len(),
            _ => 0,
        };
        open.extend(items(reply).into_iter().flatten());
    }
    size
}

fn items(reply: &Reply) -> Option<&[Reply]> {
    if let Reply::List(items) = reply { Some(items) } else { None }
}

//! What clients say on connecting, as they expect it to be answered.

use super::commands::{COMMANDS, Kind, Spec, find};
use super::session::{CLIENT_NAME_LEN_MAX, Error, Session, shown};
use tidegate::StoreHealth;
use tidegate_wire::resp::answer::{Answers, Protocol};

/// The Redis whose protocol it is: some clients look at this number.
const REDIS_VERSION: &str = "7.0.0";

pub(super) fn act(session: &mut Session, kind: Kind, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Error> {
    let protocol = session.protocol;
    let mut answers = Answers::new(out, protocol);
    match kind {
        Kind::Ping => match parts.get(1) {
            None => answers.status("PONG"),
            Some(text) => answers.text(text),
        },
        Kind::Echo => answers.text(parts[1]),
        Kind::Auth => {
            // A name may come before the token; tokens have names of their own.
            auth(session, parts[parts.len() - 1])?;
            answers.status("OK");
        }
        Kind::Select if parts[1] == b"0" => answers.status("OK"),
        Kind::Select => return Err(Error::new("DB index is out of range; there is one, 0")),
        Kind::Client => client(session, parts, &mut answers)?,
        Kind::Command => command(parts, &mut answers)?,
        Kind::Info => answers.text(info(session).as_bytes()),
        Kind::Reset => {
            session.reset();
            answers.status("RESET");
        }
        Kind::Hello => {
            hello(session, parts)?;
            push_hello(session, &mut Answers::new(out, session.protocol));
        }
        _ => answers.status("OK"),
    }
    Ok(())
}

fn auth(session: &mut Session, token: &[u8]) -> Result<(), Error> {
    if session.door.settings.access.load().tokens.is_none() {
        let text = "AUTH <password> called without any password configured for the default user; \
                    this server has no tokens, so send none";
        return Err(Error::new(text));
    }
    let now = session.door.gate.now();
    session.caller.identify(token, now).map_err(|refusal| Error { code: "WRONGPASS", text: refusal.detail })?;
    session.count()
}

/// `HELLO [protover [AUTH user token] [SETNAME name]]`.
fn hello(session: &mut Session, parts: &[&[u8]]) -> Result<(), Error> {
    let protocol = match parts.get(1).copied() {
        None => session.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(_) => return Err(Error { code: "NOPROTO", text: "unsupported protocol version; use 2 or 3".to_owned() }),
    };
    let (mut rest, mut name) = (parts.get(2..).unwrap_or_default(), None);
    while let Some((option, more)) = rest.split_first() {
        rest = match more {
            [_, token, more @ ..] if option.eq_ignore_ascii_case(b"auth") => {
                auth(session, token)?;
                more
            }
            [given, more @ ..] if option.eq_ignore_ascii_case(b"setname") => {
                name = Some(checked_name(given)?);
                more
            }
            _ => return Err(Error::new(format!("Syntax error in HELLO option '{}'", shown(option)))),
        };
    }
    if session.caller.is_unknown() {
        let text = "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
                    option can be used to authenticate the client and select the RESP protocol version at the same time";
        return Err(Error { code: "NOAUTH", text: text.to_owned() });
    }
    session.protocol = protocol;
    if let Some(name) = name {
        session.name = name.to_vec();
    }
    Ok(())
}

fn push_hello(session: &Session, answers: &mut Answers<'_>) {
    answers.map(7);
    let texts = [("server", "tidegate"), ("version", REDIS_VERSION), ("mode", "standalone"), ("role", "master")];
    for (name, text) in texts {
        answers.text(name.as_bytes());
        answers.text(text.as_bytes());
    }
    answers.text(b"proto");
    answers.number(session.protocol.number());
    answers.text(b"id");
    answers.number(i64::try_from(session.id).unwrap_or(i64::MAX));
    answers.text(b"modules");
    answers.list(0);
}

fn client(session: &mut Session, parts: &[&[u8]], answers: &mut Answers<'_>) -> Result<(), Error> {
    let is = |word: &[u8]| parts[1].eq_ignore_ascii_case(word);
    match parts.len() {
        2 if is(b"id") => answers.number(i64::try_from(session.id).unwrap_or(i64::MAX)),
        2 if is(b"getname") && session.name.is_empty() => answers.nothing(),
        2 if is(b"getname") => answers.text(&session.name),
        3 if is(b"setname") => {
            session.name = checked_name(parts[2])?.to_vec();
            answers.status("OK");
        }
        // What a client is written with is of no use here.
        4 if is(b"setinfo") => answers.status("OK"),
        3 if is(b"no-evict") || is(b"no-touch") => answers.status("OK"),
        _ => {
            let text = format!("unknown subcommand '{}' for CLIENT, or a wrong number of arguments", shown(parts[1]));
            return Err(Error::new(text));
        }
    }
    Ok(())
}

fn checked_name(name: &[u8]) -> Result<&[u8], Error> {
    let is_plain = name.iter().all(|byte| byte.is_ascii_graphic());
    if is_plain && name.len() <= CLIENT_NAME_LEN_MAX {
        return Ok(name);
    }
    let text = format!(
        "Client names cannot contain spaces, newlines or special characters, and have {CLIENT_NAME_LEN_MAX} bytes at most: '{}'",
        shown(name)
    );
    Err(Error::new(text))
}

/// `COMMAND`, `COMMAND COUNT`, `INFO`, `LIST` and `DOCS`.
fn command(parts: &[&[u8]], answers: &mut Answers<'_>) -> Result<(), Error> {
    let count = u32::try_from(COMMANDS.len()).unwrap_or(0);
    let word = parts.get(1).map(|word| word.to_ascii_lowercase());
    match word.as_deref() {
        None => {
            answers.list(count);
            COMMANDS.iter().for_each(|command| push_command(command, answers));
        }
        Some(b"count") => answers.number(count.into()),
        Some(b"list") => {
            answers.list(count);
            COMMANDS.iter().for_each(|command| answers.text(command.name.as_bytes()));
        }
        Some(b"docs") => answers.map(0),
        Some(b"info") => {
            answers.list(u32::try_from(parts.len() - 2).unwrap_or(0));
            for name in &parts[2..] {
                match find(name) {
                    Some(command) => push_command(command, answers),
                    None => answers.nothing(),
                }
            }
        }
        Some(_) => return Err(Error::new(format!("unknown subcommand '{}' for COMMAND", shown(parts[1])))),
    }
    Ok(())
}

fn push_command(command: &Spec, answers: &mut Answers<'_>) {
    answers.list(6);
    answers.text(command.name.as_bytes());
    answers.number(command.arity());
    answers.list(2);
    answers.status(if command.writes { "write" } else { "readonly" });
    answers.status("fast");
    let step = i64::from(command.key > 0);
    [command.key, command.key, step].into_iter().for_each(|number| answers.number(number));
}

fn info(session: &Session) -> String {
    let usage = session.door.gate.usage();
    let census = session.door.counters().census();
    format!(
        "# Server\r\nserver_name:tidegate\r\ntidegate_version:{}\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\n\r\n\
         # Clients\r\nconnected_clients:{}\r\n\r\n# Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\n\r\n\
         # Replication\r\nrole:master\r\n\r\n# Persistence\r\nloading:0\r\n{}",
        env!("CARGO_PKG_VERSION"),
        census.open(),
        usage.bytes,
        usage.max_bytes,
        session.door.gate.store_health().map(|health| store_info(&health)).unwrap_or_default(),
    )
}

/// How a store on other machines does. The replies to hits have no room to tell that they were decided without it.
fn store_info(health: &StoreHealth) -> String {
    let (is_up, error) = health.error.as_ref().map_or((1, "none"), |error| (0, error.label()));
    let degraded = health.degraded;
    format!("\r\n# Store\r\nstore_up:{is_up}\r\nstore_error:{error}\r\ndegraded_decisions:{degraded}\r\n")
}

//! `tidegate udp ADDR QUERY`: a question over UDP, for people.

use crate::exit;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;
use std::time::Duration;
use tidegate::text;
use tidegate_doors::udp::Client;
use tidegate_wire::udp::{Answer, Command, Request};

/// Asks a server over UDP.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit codes: 0 not over, or answered; 1 over the limit; 2 no reply, or an error.")]
pub(crate) struct Args {
    /// The server's address, such as 127.0.0.1:7401
    #[arg(value_name = "ADDR")]
    server: String,
    /// The request, such as: over_limit ws ip=192.0.2.1, check_limit JSON, get_stats ws global, get_size, ping
    #[arg(required = true, value_name = "QUERY")]
    query: Vec<String>,
    /// How long to wait for the reply
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = timeout)]
    timeout: Duration,
}

/// Asks, prints the reply and makes an exit code of it.
pub(crate) fn run(args: &Args) -> ExitCode {
    ask(args).unwrap_or_else(|message| {
        crate::say_error(&format!("error: {message}"));
        exit::error()
    })
}

fn ask(args: &Args) -> Result<ExitCode, String> {
    let query = args.query.join(" ");
    let Some(request) = Request::parse(query.as_bytes()) else {
        return Err(format!(
            "\"{}\" is no request, so no server would answer it; use over_limit KEY, check_limit JSON, get_stats KEY, get_size or ping",
            query.escape_debug()
        ));
    };
    let client = Client::connect(address(&args.server)?).map_err(|error| format!("{}: {error}", args.server))?;
    let mut client = client.with_timeout(args.timeout);
    let reply = client.ask(query.as_bytes()).map_err(|error| format!("{}: cannot send: {error}", args.server))?;
    let Some(reply) = reply else { return Err(silence(args, &request)) };
    crate::say(&String::from_utf8_lossy(&reply))?;
    let over = Answer::parse(&reply).is_some_and(|answer| answer.over);
    Ok(if over { exit::NO } else { exit::OK })
}

fn silence(args: &Args, request: &Request<'_>) -> String {
    let meaning = match request.command {
        Command::OverLimit(_) | Command::CheckLimit(_) => ", which a client takes for not over",
        Command::GetStats(_) | Command::GetSize | Command::Ping => "",
    };
    let within = args.timeout.as_millis();
    format!("no reply from {} within {within} ms{meaning}; is the address right, and is [doors] udp open?", args.server)
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| {
        format!("\"{}\" is no address: {error}; write one such as 127.0.0.1:7401", text.escape_debug())
    })?;
    found.next().ok_or_else(|| format!("\"{}\" has no address", text.escape_debug()))
}

fn timeout(text: &str) -> Result<Duration, String> {
    match text::duration(text)? {
        span if span.is_zero() => Err("it must be longer than 0".to_owned()),
        span => Ok(Duration::from_micros(span.get())),
    }
}

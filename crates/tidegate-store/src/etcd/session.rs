//! The login at etcd: a token, got for a user and a password.
//!
//! etcd hashes passwords slowly on purpose, for longer than a decision may take. So logging in is a task of its
//! own, which callers wait for until their deadlines and which goes on without them. Invariants: one login at a
//! time; after a refusal none for a while; the password is in no text.

use super::json;
use super::members::Members;
use super::url::Url;
use crate::remote::{Meaning, StoreError, unreachable};
use bytes::Bytes;
use serde_json::json;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The token, and how to get another.
pub(crate) struct Session {
    /// The request that logs in; `None`: we come without a name.
    login: Option<Bytes>,
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
enum State {
    Out,
    LoggingIn,
    In(Arc<str>),
    /// It has no users now, and takes requests without a token.
    NotWanted,
    Refused(StoreError, Instant),
}

/// How long logging in may take.
pub(crate) const LOGIN_TIME_MAX: Duration = Duration::from_secs(5);
/// How long after a refusal no request logs in: a wrong password must not keep etcd busy with hashing.
const LOGIN_PAUSE: Duration = Duration::from_secs(1);

impl Session {
    pub(crate) fn of(url: &Url) -> Session {
        let login = url.user.as_ref().map(|user| {
            let password = url.password.as_deref().unwrap_or_default();
            Bytes::from(json!({ "name": user, "password": password }).to_string())
        });
        Session { login, state: watch::Sender::new(State::Out) }
    }

    /// The token to come with, if any; waits for it until the deadline.
    pub(crate) async fn token(
        self: &Arc<Session>,
        members: &Arc<Members>,
        by: Instant,
    ) -> Result<Option<Arc<str>>, StoreError> {
        if self.login.is_none() {
            return Ok(None);
        }
        self.start_login(members);
        let mut state = self.state.subscribe();
        let settled = timeout_at(by, state.wait_for(|state| !matches!(state, State::Out | State::LoggingIn))).await;
        match settled.ok().and_then(Result::ok).as_deref() {
            Some(State::In(token)) => Ok(Some(Arc::clone(token))),
            Some(State::NotWanted) => Ok(None),
            Some(State::Refused(error, _)) => Err(error.clone()),
            Some(State::Out | State::LoggingIn) | None => {
                Err(unreachable(&members.addresses(), "logging in takes longer than the deadline".to_owned()))
            }
        }
    }

    /// Why we cannot log in, if we cannot.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        if let State::Refused(error, _) = &*self.state.borrow() { Some(error.clone()) } else { None }
    }

    /// This token is not taken any more; true: another can be got.
    pub(crate) fn forget(&self, token: Option<&Arc<str>>) -> bool {
        self.state.send_if_modified(|state| {
            let is_old = match state {
                State::In(known) => token == Some(known),
                State::NotWanted => token.is_none(),
                _ => false,
            };
            if is_old {
                *state = State::Out;
            }
            is_old
        });
        self.login.is_some()
    }

    /// Logs in, unless this process is logged in, another request is logging in, or etcd refused just now.
    fn start_login(self: &Arc<Session>, members: &Arc<Members>) {
        let starts = self.state.send_if_modified(|state| {
            let due = match state {
                State::Out => true,
                State::Refused(_, at) => at.elapsed() >= LOGIN_PAUSE,
                _ => false,
            };
            if due {
                *state = State::LoggingIn;
            }
            due
        });
        if let (true, Some(login)) = (starts, self.login.clone()) {
            let (session, members) = (Arc::clone(self), Arc::clone(members));
            // It ends within its own deadline.
            tokio::spawn(async move {
                let state = log_in(&members, &login).await;
                session.state.send_replace(state);
            });
        }
    }
}

async fn log_in(members: &Members, login: &Bytes) -> State {
    let by = Instant::now() + LOGIN_TIME_MAX;
    let refused = |error| State::Refused(error, Instant::now());
    match members.ask("/v3/auth/authenticate", login, None, by).await {
        Ok(reply) => match json::text(&reply, "token") {
            Some(token) => State::In(token.into()),
            None => refused(super::error::garbled(&members.addresses(), "a login without a token")),
        },
        Err((StoreError::Refused { meaning: Meaning::AuthOff, .. }, _)) => State::NotWanted,
        Err((error, _)) => refused(error),
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*self.state.borrow() {
            State::Out => "out",
            State::LoggingIn => "logging in",
            State::In(_) => "in",
            State::NotWanted => "not wanted",
            State::Refused(..) => "refused",
        };
        f.write_str(state)
    }
}

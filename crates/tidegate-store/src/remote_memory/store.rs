//! A memory server as a store: the questions of [`crate::Store`], one request and one reply each.

use super::Url;
use super::frame::{Reader, Writer};
use super::link::Link;
use super::message::{Operation, read_analysis, read_answers, read_listing, write_question};
use crate::clock::Clock;
use crate::store::{Answers, Asked, Backend, Capabilities, Layout, Question, StoreError, When};
use crate::table::{Listing, PageOf, Which};
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent};
use tokio::time::Instant;

/// A memory server that is kept connected.
#[derive(Debug)]
pub struct Store {
    url: Url,
    link: Link,
}

impl Store {
    /// As [`crate::Store::open`] connects. The server's clock decides, and a manual one only where a question brings it.
    pub(crate) async fn connect(url: Url, _clock: &Clock) -> Store {
        Store { link: Link::open(url.address.clone()).await, url }
    }

    /// Asks, and reads the reply, which must be no longer than what was read of it.
    async fn ask<T>(
        &self,
        operation: Operation,
        by: Instant,
        write: impl FnOnce(&mut Writer),
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> Result<T, StoreError> {
        let mut request = Writer::new();
        operation.write(&mut request);
        write(&mut request);
        let too_long = || StoreError::Unsupported("a request of more than 1 MiB; send fewer keys at once".to_owned());
        let reply = self.link.ask(request.finish().ok_or_else(too_long)?, by).await?;
        let garbled =
            || StoreError::Garbled { address: self.url.to_string(), why: format!("no answer to {operation:?}") };
        let mut reply = Reader(&reply);
        if !reply.flag().ok_or_else(garbled)? {
            return Err(StoreError::Unsupported(reply.name().ok_or_else(garbled)?.to_owned()));
        }
        read(&mut reply).filter(|_| reply.0.is_empty()).ok_or_else(garbled)
    }
}

impl Backend for Store {
    fn capabilities(&self) -> Capabilities {
        self.url.capabilities()
    }

    fn address(&self) -> String {
        self.url.to_string()
    }

    fn answers(&self) -> bool {
        self.link.answers()
    }

    fn down(&self) -> Option<StoreError> {
        self.link.down()
    }

    async fn decide(&self, questions: &[Question<'_>], asked: &Asked) -> Result<Answers, StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, asked.now);
            to.flag(asked.intent == Intent::Hit);
            to.flag(asked.explain);
            to.count(questions.len());
            questions.iter().for_each(|question| write_question(to, question));
        };
        let read = |from: &mut Reader<'_>| read_answers(from).filter(|(_, told)| told.len() == questions.len());
        self.ask(Operation::Decide, asked.by, write, read).await
    }

    async fn disabled(&self, limiters: &[(&str, Layout)], when: When) -> Result<Vec<bool>, StoreError> {
        let write = |to: &mut Writer| {
            to.count(limiters.len());
            limiters.iter().for_each(|(limiter, _)| to.text(limiter.as_bytes()));
        };
        let read = |from: &mut Reader<'_>| from.list(|from| from.flag()).filter(|flags| flags.len() == limiters.len());
        self.ask(Operation::Disabled, when.by, write, read).await
    }

    async fn set_disabled(&self, limiter: &str, _: Layout, disabled: bool, when: When) -> Result<(), StoreError> {
        let write = |to: &mut Writer| {
            to.text(limiter.as_bytes());
            to.flag(disabled);
        };
        self.ask(Operation::SetDisabled, when.by, write, |_| Some(())).await
    }

    async fn increment(
        &self,
        question: &Question<'_>,
        count: u32,
        at: Option<Micros>,
        when: When,
    ) -> Result<(Micros, bool), StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, when.now);
            write_question(to, question);
            to.number(count.into());
            write_now(to, at);
        };
        self.ask(Operation::Increment, when.by, write, |from| Some((from.micros()?, from.flag()?))).await
    }

    async fn analyze(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, when.now);
            write_question(to, question);
            to.flag(if_blocked == IfBlocked::Tell);
        };
        self.ask(Operation::Analyze, when.by, write, |from| Some((from.micros()?, read_analysis(from)?))).await
    }

    async fn block(&self, question: &Question<'_>, span: Micros, when: When) -> Result<Option<Micros>, StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, when.now);
            write_question(to, question);
            to.number(span.get());
        };
        self.ask(Operation::Block, when.by, write, |from| from.maybe_micros()).await
    }

    async fn unblock(&self, question: &Question<'_>, when: When) -> Result<bool, StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, when.now);
            write_question(to, question);
        };
        self.ask(Operation::Unblock, when.by, write, |from| from.flag()).await
    }

    async fn unblock_all(&self, question: &Question<'_>, when: When) -> Result<u64, StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, when.now);
            write_question(to, question);
        };
        self.ask(Operation::UnblockAll, when.by, write, |from| from.number()).await
    }

    async fn list(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        let write = |to: &mut Writer| {
            write_now(to, when.now);
            write_question(to, question);
            to.flag(page.which == Which::Blocked);
            to.maybe(page.after);
            to.count(page.most);
        };
        self.ask(Operation::List, when.by, write, read_listing).await
    }
}

fn write_now(to: &mut Writer, now: Option<Micros>) {
    to.maybe(now.map(Micros::get));
}

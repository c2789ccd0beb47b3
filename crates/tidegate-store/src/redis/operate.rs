//! What people do with a limiter whose states live in Redis: block, unblock, list, switch.

use super::ask::{int, limit_arguments, list, micros, now_argument, rule_arguments};
use super::names::{self, GROUPS, Names};
use super::resp::{Reply, command};
use super::script::{Purpose, place, script};
use super::{Question, Redis, StoreError};
use crate::table::{Listing, Which};
use tidegate_core::{Micros, Rules};

/// Groups of keys that are listed in one go.
const GROUPS_AT_ONCE: u32 = 32;

impl Redis {
    /// Blocks a key for `span` from now, and says until when.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn block(
        &self,
        now: Option<Micros>,
        question: &Question<'_>,
        span: Micros,
    ) -> Result<Micros, StoreError> {
        let names = Names::of(question.limiter, question.key);
        let keys = self.keys(question, &names);
        let reply = self.run(script(Purpose::Block, []), &keys, 4, |args| {
            now_argument(args, now);
            args.part(question.key);
            args.part(&[place(question.rules.algorithm()).1]);
            args.number(span.get());
        });
        let reply = reply.await?;
        let until = list(&reply).and_then(|reply| micros(reply.get(1)?));
        until.ok_or_else(|| self.link.garbled("not a time"))
    }

    /// Forgets a key's history and block; was it blocked?
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn unblock(&self, now: Option<Micros>, question: &Question<'_>) -> Result<bool, StoreError> {
        let names = Names::of(question.limiter, question.key);
        let keys = self.keys(question, &names);
        let reply = self.run(script(Purpose::Unblock, []), &keys, 2, |args| {
            now_argument(args, now);
            args.part(question.key);
        });
        let reply = reply.await?;
        let was = list(&reply).and_then(|reply| int(reply.get(1)?));
        was.map(|was| was == 1).ok_or_else(|| self.link.garbled("not an answer"))
    }

    /// Forgets every blocked key; how many were there?
    ///
    /// # Errors
    /// When the server does not answer; some may be unblocked then.
    pub async fn unblock_all(&self, now: Option<Micros>, limiter: &str, rules: &Rules) -> Result<u64, StoreError> {
        let (mut unblocked, mut after) = (0, None);
        loop {
            let page = self.list(now, limiter, rules, Which::Blocked, after, usize::MAX).await?;
            for key in &page.keys {
                let question = Question { limiter, rules, names: true, key };
                unblocked += u64::from(self.unblock(now, &question).await?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(unblocked),
            }
        }
    }

    /// Names of keys, group by group from `after`, until there are `most`.
    ///
    /// # Errors
    /// When the server does not answer, or its keys are spread over shards that cannot be asked.
    pub async fn list(
        &self,
        now: Option<Micros>,
        limiter: &str,
        rules: &Rules,
        which: Which,
        after: Option<u64>,
        most: usize,
    ) -> Result<Listing, StoreError> {
        if self.is_sharded() && which == Which::Tracked {
            return Err(StoreError::Unsupported("tracked keys of a sharded Redis (twemproxy) cannot be listed"));
        }
        let mut group = after.map_or(0, |after| u32::try_from(after).unwrap_or(GROUPS));
        let mut keys = Vec::new();
        while group < GROUPS && keys.len() < most {
            let groups = group..GROUPS.min(group + GROUPS_AT_ONCE);
            group = groups.end;
            let asked = groups.map(|group| self.list_group(now, limiter, rules, which, group));
            for found in futures_util::future::try_join_all(asked).await? {
                keys.extend(found);
            }
        }
        keys.sort_unstable();
        Ok(Listing { keys, next: (group < GROUPS).then_some(group.into()) })
    }

    async fn list_group(
        &self,
        now: Option<Micros>,
        limiter: &str,
        rules: &Rules,
        which: Which,
        group: u32,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let (index, letter) = match which {
            Which::Tracked => (names::tracked(limiter, group), b"t"),
            Which::Blocked => (names::blocked(limiter, group), b"b"),
        };
        let script = script(Purpose::List, [rules.algorithm()]);
        let keys = [index.as_bytes()];
        let reply = self.run(script, &keys, 5 + limit_arguments(rules), |args| {
            now_argument(args, now);
            args.part(letter);
            args.part(names::prefix(limiter, group).as_bytes());
            rule_arguments(args, rules);
        });
        let Reply::List(found) = reply.await? else { return Err(self.link.garbled("not a list")) };
        let name = |reply| match reply {
            Reply::Text(name) => Ok(name),
            _ => Err(self.link.garbled("not a name")),
        };
        found.into_iter().skip(1).map(name).collect()
    }

    /// Sets or clears the flag that disables a limiter for every process.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn set_disabled(&self, limiter: &str, disabled: bool) -> Result<(), StoreError> {
        let flag = names::disabled(limiter);
        match disabled {
            true => self.link.call(&[b"SET", flag.as_bytes(), b"1"]).await?,
            false => self.link.call(&[b"DEL", flag.as_bytes()]).await?,
        };
        Ok(())
    }

    /// Which of these limiters are disabled; one round trip for all.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn disabled(&self, limiters: &[&str]) -> Result<Vec<bool>, StoreError> {
        let flags = limiters.iter().map(|limiter| names::disabled(limiter));
        let sent = flags.map(|flag| self.link.send(|bytes| bytes.extend(command(&[b"GET", flag.as_bytes()]))));
        let sent: Vec<_> = sent.collect::<Result<_, _>>()?;
        let mut disabled = Vec::with_capacity(sent.len());
        for sent in sent {
            disabled.push(self.link.receive(sent).await? != Reply::Nil);
        }
        Ok(disabled)
    }

    fn keys<'a>(&self, question: &Question<'_>, names: &'a Names) -> Vec<&'a [u8]> {
        match self.is_sharded() {
            true => vec![&names.state],
            false => vec![&names.state, names.tracked_if(question.names), names.blocked.as_bytes()],
        }
    }
}

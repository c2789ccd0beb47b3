//! What operators and applications do with a limiter whose states live in Redis: increment and analyze, give back, block,
//! unblock, list, switch. Where the keys are on different shards, see `sharded.rs`.

use super::ask::{int, list, micros, now_argument, subject_len};
use super::names::{self, GROUPS};
use super::resp::Reply;
use super::script::{Purpose, later_names, script};
use super::{Kind, Redis, StoreError};
use crate::store::{Asked, Backend as _, Layout, Question, When};
use crate::table::{Listing, PageOf, PartAnswer, Which};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_core::all_or_nothing::{Analysis, IfBlocked, Intent};
use tokio::time::Instant;

/// Groups of keys that are listed in one go.
const GROUPS_AT_ONCE: u32 = 32;
/// Keys that one step of a scan looks at.
const SCAN_COUNT: &[u8] = b"1000";
/// How long the server may take to tell how it is configured.
const CONFIG_WITHIN: Duration = Duration::from_secs(2);
/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

impl Redis {
    /// Counts for a key of buckets at a time of the caller's, `None`: now; whatever its limits say. Returns the
    /// server's time, and whether it was counted: not when that time is older than what is kept.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn increment(
        &self,
        question: &Question<'_>,
        count: u32,
        at: Option<Micros>,
        when: When,
    ) -> Result<(Micros, bool), StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Increment, &[*question])?;
        let reply = self.run(when.by, script, &keys, 4 + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(width);
            now_argument(args, at);
            args.number(count.into());
            self.subject(args, question);
        });
        let reply = self.noted(question, reply.await?, when.by).await?;
        let counted = |reply: &[Reply]| Some((micros(reply.first()?)?, int(reply.get(1)?)? == 1));
        list(&reply).and_then(counted).ok_or_else(|| self.garbled("not an answer"))
    }

    /// Has a key of buckets reached a limit? Blocks it then. Returns the server's time with the answer.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn analyze(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        if self.is_sharded() {
            return self.analyze_sharded(question, if_blocked, when).await;
        }
        self.analyze_key(question, if_blocked, when).await
    }

    pub(super) async fn analyze_key(
        &self,
        question: &Question<'_>,
        if_blocked: IfBlocked,
        when: When,
    ) -> Result<(Micros, Analysis), StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Analyze, &[*question])?;
        let reply = self.run(when.by, script, &keys, 3 + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(width);
            args.part(if if_blocked == IfBlocked::Tell { b"tell" } else { b"anew" });
            self.subject(args, question);
        });
        let reply = self.noted(question, reply.await?, when.by).await?;
        list(&reply).and_then(analysis).ok_or_else(|| self.garbled("not an answer"))
    }

    /// Gives back what a key was charged, the latest first, and then looks how the key stands: one after the other, as a script
    /// that the server does not know yet is sent a second time.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn give_back(
        &self,
        question: &Question<'_>,
        cost: u32,
        when: When,
    ) -> Result<(Micros, PartAnswer), StoreError> {
        let (script, keys, width) = self.scripted(Purpose::GiveBack, &[*question])?;
        let reply = self.run(when.by, script, &keys, 3 + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(width);
            args.number(cost.into());
            self.subject(args, question);
        });
        drop(reply.await?);
        self.look(question, &Asked { now: when.now, cost: 0, intent: Intent::Peek, explain: false, by: when.by }).await
    }

    /// Enters a name that the script left for us to enter; what remains of the reply.
    async fn noted(&self, question: &Question<'_>, reply: Reply, by: Instant) -> Result<Reply, StoreError> {
        let garbled = || self.garbled("not an answer");
        let Reply::List(mut parts) = reply else { return Err(garbled()) };
        let listed = parts.pop().as_ref().and_then(micros).ok_or_else(garbled)?;
        let at = parts.first().and_then(micros).ok_or_else(garbled)?;
        self.note_name(by, question, at, listed).await;
        Ok(Reply::List(parts))
    }

    /// Blocks a key for `span` from now, and says until when.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn block(&self, question: &Question<'_>, span: Micros, when: When) -> Result<Option<Micros>, StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Block, &[*question])?;
        let reply = self.run(when.by, script, &keys, 3 + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(width);
            args.number(span.get());
            self.subject(args, question);
        });
        let reply = self.noted(question, reply.await?, when.by).await?;
        let times = |reply: &[Reply]| Some((micros(reply.first()?)?, micros(reply.get(1)?)?));
        let (at, until) = list(&reply).and_then(times).ok_or_else(|| self.garbled("not a time"))?;
        if self.is_sharded() {
            self.note_block(when.by, question, at, until).await?;
        }
        Ok(Some(until))
    }

    /// Forgets a key's history and block; was it blocked?
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn unblock(&self, question: &Question<'_>, when: When) -> Result<bool, StoreError> {
        let (script, keys, width) = self.scripted(Purpose::Unblock, &[*question])?;
        self.forget_reservations(question, when.by).await?;
        let noted = if self.is_sharded() { self.forget_block(question, when.by).await? } else { None };
        let reply = self.run(when.by, script, &keys, 2 + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(width);
            self.subject(args, question);
        });
        let reply = reply.await?;
        let was = |reply: &[Reply]| Some((micros(reply.first()?)?, int(reply.get(1)?)? == 1));
        let (at, was) = list(&reply).and_then(was).ok_or_else(|| self.garbled("not an answer"))?;
        Ok(was || noted.is_some_and(|until| until > at))
    }

    /// Forgets every blocked key of the question's limiter; how many were there?
    ///
    /// # Errors
    /// When the server does not answer; some may be unblocked then.
    pub async fn unblock_all(&self, question: &Question<'_>, when: When) -> Result<u64, StoreError> {
        let (mut unblocked, mut after) = (0, None);
        // Each step has this long: how many there are is not known.
        let within = when.by.saturating_duration_since(Instant::now());
        let step = || When { by: Instant::now() + within, ..when };
        loop {
            let blocked = PageOf { which: Which::Blocked, after, most: usize::MAX };
            let page = self.list(question, blocked, step()).await?;
            for key in &page.keys {
                unblocked += u64::from(self.unblock(&Question { key, ..*question }, step()).await?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(unblocked),
            }
        }
    }

    /// Names of keys of the question's limiter.
    ///
    /// # Errors
    /// When the server does not answer, or its keys are spread over shards that cannot be asked.
    pub async fn list(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        match (page.which, question.layout) {
            (Which::Tracked, layout) if !self.url().capabilities().lists_in(layout) => {
                let what = match layout {
                    Layout::Native => "list tracked keys",
                    Layout::Pause => "list tracked keys in Pause's layout",
                };
                Err(self.cannot(what))
            }
            (Which::Tracked, Layout::Pause) => self.scan(question.limiter, page, when).await,
            (Which::Blocked, Layout::Pause) => self.later(&names::blocks(question.limiter), SECOND, when).await,
            (Which::Blocked, Layout::Native) if self.url().kind == Kind::Twemproxy => {
                self.later(&names::blocked(question.limiter, 0), 1, when).await
            }
            (_, Layout::Native) => self.list_groups(question, page, when).await,
        }
    }

    async fn list_groups(&self, question: &Question<'_>, page: PageOf, when: When) -> Result<Listing, StoreError> {
        let PageOf { which, after, most } = page;
        let mut group = after.map_or(0, |after| u32::try_from(after).unwrap_or(GROUPS));
        let mut keys = Vec::new();
        while group < GROUPS && keys.len() < most {
            let groups = group..GROUPS.min(group + GROUPS_AT_ONCE);
            group = groups.end;
            let asked = groups.map(|group| self.list_group(question, which, group, when));
            for found in futures_util::future::try_join_all(asked).await? {
                keys.extend(found);
            }
        }
        keys.sort_unstable();
        Ok(Listing { keys, next: (group < GROUPS).then_some(group.into()) })
    }

    async fn list_group(
        &self,
        question: &Question<'_>,
        which: Which,
        group: u32,
        when: When,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let (index, letter) = match which {
            Which::Tracked => (names::tracked(question.limiter, group), b"t"),
            Which::Blocked => (names::blocked(question.limiter, group), b"b"),
        };
        if self.is_sharded() {
            return self.list_split(question, which, &index, when).await;
        }
        let keys = [index.into_bytes()];
        let script = script(Purpose::List, [question.rules.algorithm()]);
        let reply = self.run(when.by, script, &keys, 4 + subject_len(question), |args| {
            now_argument(args, when.now);
            args.number(1);
            args.part(letter);
            args.part(names::prefix(question.limiter, group).as_bytes());
            self.subject(args, question);
        });
        self.names_after_time(reply.await?)
    }

    /// Names of a sorted set whose score is later than now.
    pub(super) async fn later(&self, index: &str, unit: u64, when: When) -> Result<Listing, StoreError> {
        let keys = [index.as_bytes().to_vec()];
        let reply = self.run(when.by, later_names(), &keys, 2, |args| {
            now_argument(args, when.now);
            args.number(unit);
        });
        let mut keys = self.names_after_time(reply.await?)?;
        keys.sort_unstable();
        Ok(Listing { keys, next: None })
    }

    /// Identifiers that Pause has counts of; steps of a scan until there are `most`.
    async fn scan(&self, scope: &str, page: PageOf, when: When) -> Result<Listing, StoreError> {
        let start = [b"i:", scope.as_bytes(), b":|"].concat();
        let pattern = [glob_escaped(&start).as_slice(), b"*|"].concat();
        let (mut cursor, mut keys) = (page.after.unwrap_or(0), Vec::new());
        loop {
            let words: [&[u8]; 6] =
                [b"SCAN", &cursor.to_string().into_bytes(), b"MATCH", &pattern, b"COUNT", SCAN_COUNT];
            let reply = self.call(b"", &words, when.by).await?;
            let (next, found) = scanned(reply).ok_or_else(|| self.garbled("not a page of keys"))?;
            let identifiers =
                found.into_iter().filter_map(|key| Some(key.strip_prefix(&start[..])?.strip_suffix(b"|")?.to_vec()));
            keys.extend(identifiers);
            cursor = next;
            if cursor == 0 || keys.len() >= page.most {
                keys.sort_unstable();
                keys.dedup();
                return Ok(Listing { keys, next: (cursor != 0).then_some(cursor) });
            }
        }
    }

    fn names_after_time(&self, reply: Reply) -> Result<Vec<Vec<u8>>, StoreError> {
        let Reply::List(found) = reply else { return Err(self.garbled("not a list")) };
        let name = |reply| match reply {
            Reply::Text(name) => Ok(name),
            _ => Err(self.garbled("not a name")),
        };
        found.into_iter().skip(1).map(name).collect()
    }

    /// Sets or clears the flag that disables a limiter for every process.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn set_disabled(
        &self,
        limiter: &str,
        layout: Layout,
        disabled: bool,
        when: When,
    ) -> Result<(), StoreError> {
        let flag = names::disabled(limiter, layout);
        let flag = flag.as_bytes();
        match disabled {
            true => self.call(flag, &[b"SET", flag, b"1"], when.by).await?,
            false => self.call(flag, &[b"DEL", flag], when.by).await?,
        };
        Ok(())
    }

    /// The policy for full memory, if it drops keys; `None` also when the server does not tell.
    pub async fn evicts(&self) -> Option<String> {
        if self.url().kind == Kind::Twemproxy {
            return None;
        }
        let by = Instant::now() + CONFIG_WITHIN;
        let replies = self.call_all(&[b"CONFIG", b"GET", b"maxmemory-policy"], by).await.ok()?;
        replies.iter().find_map(|reply| match list(reply)? {
            [_, Reply::Text(policy)] if policy != b"noeviction" => Some(String::from_utf8_lossy(policy).into_owned()),
            _ => None,
        })
    }

    /// Which of these limiters are disabled; one round trip for all.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn disabled(&self, limiters: &[(&str, Layout)], when: When) -> Result<Vec<bool>, StoreError> {
        let is_set = async |(limiter, layout): &(&str, Layout)| {
            let flag = names::disabled(limiter, *layout);
            let reply = self.call(flag.as_bytes(), &[b"GET", flag.as_bytes()], when.by).await?;
            Ok(reply != Reply::Nil)
        };
        futures_util::future::try_join_all(limiters.iter().map(is_set)).await
    }
}

fn analysis(reply: &[Reply]) -> Option<(Micros, Analysis)> {
    let analysis = match reply.get(1..)? {
        [Reply::Int(0)] => Analysis::Ok,
        [Reply::Int(1), index, sum, until] => Analysis::Limited {
            limit_index: u8::try_from(int(index)?).ok()?,
            sum: u64::try_from(int(sum)?).ok()?,
            blocked_until: micros(until)?,
        },
        [Reply::Int(2), until] => Analysis::Blocked { until: micros(until)? },
        _ => return None,
    };
    Some((micros(reply.first()?)?, analysis))
}

fn scanned(reply: Reply) -> Option<(u64, Vec<Vec<u8>>)> {
    let Reply::List(parts) = reply else { return None };
    let [Reply::Text(cursor), Reply::List(found)] = <[Reply; 2]>::try_from(parts).ok()? else { return None };
    let name = |reply| if let Reply::Text(name) = reply { Some(name) } else { None };
    let cursor = std::str::from_utf8(&cursor).ok()?.parse().ok()?;
    Some((cursor, found.into_iter().map(name).collect::<Option<_>>()?))
}

/// The text as a pattern that matches nothing else.
fn glob_escaped(text: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(text.len());
    for byte in text {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^' | b'-') {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern
}

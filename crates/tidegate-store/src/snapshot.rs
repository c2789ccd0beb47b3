//! The store as bytes, for the file that [`Directory`](crate::Directory) keeps: a checksum over all of them finds what a disk made
//! of it. A file that does not add up is an error for people to look at, never an empty store.
//!
//! Layout, little-endian: magic, seeds, time taken, number of tables; per table its name, shape, flag,
//! limits (buckets: resolution and history too) and entries, each announced by a 1 and the last followed by a 0, then its statistics in the
//! same way if it keeps them, then the sketches of the shards that have some, then limits of single keys; the CRC-32 of all that.

use crate::budget::Fit;
use crate::layout::{Entry, Shape, from_words, to_words};
use crate::shard::SHARDS;
use crate::stats::{STRIDE, set_back};
use crate::store::Override;
use crate::table::shard_of;
use crate::{Memory, Table};
use std::io::{self, Read, Write};
use tidegate_core::buckets::{self, Grid};
use tidegate_core::sketch::Sketch;
use tidegate_core::{Algorithm, LIMITS_MAX, Limit, Micros, Rules, State, sliding_log};

const MAGIC: [u8; 8] = *b"TIDEGAT3";
/// The version before, which has no limits of single keys.
const MAGIC_BEFORE: [u8; 8] = *b"TIDEGAT2";
/// Longest encoded log we believe: 4 billion entries do not fit, a damaged length is found early.
const LOG_LEN_MAX: usize = 1 << 30;
/// Longest name of a limiter or a key that we believe; a key of a UDP datagram has up to 1000 bytes.
const NAME_LEN_MAX: usize = 1 << 10;
/// Bits of a table's byte of what it keeps.
const KEEPS_NAMES: u8 = 1;
const KEEPS_STATS: u8 = 2;

// ---- writing ----

pub(crate) fn write_store(out: &mut impl Write, store: &Memory, now: Micros) -> io::Result<()> {
    let _still = store.still();
    let tables = store.tables();
    out.write_all(&MAGIC)?;
    store.seed().iter().try_for_each(|seed| out.write_all(&seed.to_le_bytes()))?;
    out.write_all(&now.get().to_le_bytes())?;
    out.write_all(&u32::try_from(tables.len()).unwrap_or(u32::MAX).to_le_bytes())?;
    let (mut log, mut entries) = (Vec::new(), Vec::new());
    for (name, table) in tables {
        let shape = table.shape();
        write_bytes(out, name.as_bytes())?;
        let limits = u8::try_from(shape.limits).unwrap_or(u8::MAX);
        let keeps = (u8::from(shape.names) * KEEPS_NAMES) | (u8::from(shape.stats) * KEEPS_STATS);
        out.write_all(&[algorithm_code(shape.algorithm), limits, keeps, u8::from(table.is_disabled())])?;
        write_rules(out, &table.rules())?;
        for index in 0..SHARDS {
            let mut after = Some(0);
            while let Some(from) = after {
                after = table.export(index, from, &mut entries)?;
                for entry in entries.drain(..) {
                    out.write_all(&[1])?;
                    write_entry(out, &entry, &mut log)?;
                }
            }
        }
        out.write_all(&[0])?;
        if shape.stats {
            for index in 0..SHARDS {
                for words in table.export_stats(index)? {
                    out.write_all(&[1])?;
                    words.iter().try_for_each(|word| out.write_all(&word.to_le_bytes()))?;
                }
            }
            out.write_all(&[0])?;
        }
        write_sketches(out, &table, now)?;
        write_overrides(out, &table, now)?;
    }
    Ok(())
}

/// Limits of single keys: key, until when (0: until they are cleared), reason, limits.
fn write_overrides(out: &mut impl Write, table: &Table, now: Micros) -> io::Result<()> {
    for (key, one) in table.overrides_since(None, now).into_iter().flat_map(|all| all.keys) {
        out.write_all(&[1])?;
        write_bytes(out, &key)?;
        out.write_all(&one.until.unwrap_or(Micros::ZERO).get().to_le_bytes())?;
        write_bytes(out, one.reason.unwrap_or_default().as_bytes())?;
        out.write_all(&[u8::try_from(one.limits.len()).unwrap_or(u8::MAX)])?;
        one.limits.iter().try_for_each(|limit| write_bytes(out, limit.to_string().as_bytes()))?;
    }
    out.write_all(&[0])
}

/// The limits as text; behind those of buckets their resolution and history.
fn write_rules(out: &mut impl Write, rules: &Rules) -> io::Result<()> {
    rules.limits().iter().try_for_each(|limit| write_bytes(out, limit.to_string().as_bytes()))?;
    if rules.algorithm() == Algorithm::Buckets {
        let grid = rules.grid();
        [grid.resolution(), grid.history()].iter().try_for_each(|span| out.write_all(&span.get().to_le_bytes()))?;
    }
    Ok(())
}

/// What keys without a place were admitted counts on after a restart, as long as it matters.
fn write_sketches(out: &mut impl Write, table: &Table, now: Micros) -> io::Result<()> {
    for index in 0..SHARDS {
        let (until, sketches) = table.export_sketches(index)?;
        if until <= now || sketches.is_empty() {
            continue;
        }
        out.write_all(&[1])?;
        out.write_all(&u32::try_from(index).unwrap_or(0).to_le_bytes())?;
        out.write_all(&until.get().to_le_bytes())?;
        for sketch in &sketches {
            let words: Vec<u8> = sketch.words().flatten().flat_map(u64::to_le_bytes).collect();
            write_bytes(out, &words)?;
        }
    }
    out.write_all(&[0])
}

fn write_entry(out: &mut impl Write, entry: &Entry, log: &mut Vec<u8>) -> io::Result<()> {
    out.write_all(&entry.hash.to_le_bytes())?;
    out.write_all(&entry.blocked_until.get().to_le_bytes())?;
    write_bytes(out, &entry.name)?;
    for state in &entry.states {
        log.clear();
        match state {
            State::SlidingLog(state) => state.encode(log),
            State::Buckets(state) => state.encode(log),
            state => {
                to_words(state).iter().try_for_each(|word| out.write_all(&word.to_le_bytes()))?;
                continue;
            }
        }
        write_bytes(out, log)?;
    }
    Ok(())
}

fn write_bytes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes())?;
    out.write_all(bytes)
}

// ---- reading ----

pub(crate) enum Fault {
    Io(io::Error),
    Format(&'static str),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        Fault::Io(error)
    }
}

/// How far ahead of the clock saved times may be and still hold: clocks are set right by small steps all the time.
pub(crate) const AHEAD_MAX: Micros = Micros::from_secs(60);

/// Saved times that were ahead of the clock by more than a minute, and were carried to now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Carried {
    /// How far ahead they were.
    pub by: Micros,
    /// So many keys.
    pub keys: u64,
}

/// What was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The store.
    pub store: Memory,
    /// The time that it stands at: when it was saved, or now if its times were carried.
    pub at: Micros,
    /// What was carried; its span is 0 if nothing was.
    pub carried: Carried,
}

impl Carried {
    /// A time that was saved. What is left of a block stays what it was.
    fn time(&self, saved: Micros) -> Micros {
        saved.saturating_sub(self.by)
    }
}

pub(crate) fn read_store(input: &mut impl Read, max_bytes: usize, now: Micros, fit: &mut Fit) -> Result<Loaded, Fault> {
    let magic = array::<8>(input)?;
    if ![MAGIC, MAGIC_BEFORE].contains(&magic) {
        return Err(Fault::Format("it is no snapshot of this version"));
    }
    let seed = [u64::from_le_bytes(array(input)?), u64::from_le_bytes(array(input)?)];
    let saved_at = micros(input)?;
    let ahead = saved_at.saturating_sub(now);
    let mut carried = Carried { by: if ahead > AHEAD_MAX { ahead } else { Micros::ZERO }, keys: 0 };
    let at = carried.time(saved_at);
    let tables = u32::from_le_bytes(array(input)?);
    let store = Memory::new(max_bytes, Some(seed));
    for _ in 0..tables {
        let name = String::from_utf8(bytes(input, NAME_LEN_MAX)?).map_err(|_| Fault::Format("a name is no text"))?;
        let [algorithm, limits, keeps, disabled] = array(input)?;
        let algorithm = algorithm_of(algorithm).ok_or(Fault::Format("an unknown algorithm"))?;
        let limits = usize::from(limits);
        if !(1..=LIMITS_MAX).contains(&limits) {
            return Err(Fault::Format("a number of limits out of bounds"));
        }
        let shape = Shape { algorithm, limits, names: keeps & KEEPS_NAMES != 0, stats: keeps & KEEPS_STATS != 0 };
        let rules = read_rules(input, &shape)?;
        let table = store.table(&name, shape, &rules);
        table.set_disabled(disabled != 0);
        let mut frame = Reading { table: &table, shape, rules: &rules, at, carried: &mut carried };
        frame.read_entries(input, fit)?;
        if shape.stats {
            frame.read_stats(input, fit)?;
        }
        frame.read_sketches(input)?;
        if magic == MAGIC {
            frame.read_overrides(input)?;
        }
    }
    // Their width is known when all tables are.
    store.tables().iter().for_each(|(_, table)| table.narrow_sketches(at));
    Ok(Loaded { store, at, carried })
}

fn text(input: &mut impl Read) -> Result<String, Fault> {
    String::from_utf8(bytes(input, NAME_LEN_MAX)?).map_err(|_| Fault::Format("a text is none"))
}

/// The table that is being read.
struct Reading<'a> {
    table: &'a Table,
    shape: Shape,
    rules: &'a Rules,
    at: Micros,
    carried: &'a mut Carried,
}

fn read_rules(input: &mut impl Read, shape: &Shape) -> Result<Rules, Fault> {
    let mut limits = Vec::with_capacity(shape.limits);
    for _ in 0..shape.limits {
        let text = String::from_utf8(bytes(input, NAME_LEN_MAX)?).ok();
        limits.push(text.and_then(|text| text.parse::<Limit>().ok()).ok_or(Fault::Format("a limit is none"))?);
    }
    let rules = if shape.algorithm == Algorithm::Buckets {
        let grid = Grid::new(micros(input)?, micros(input)?);
        // What was in force is not to be judged anew.
        let grid = grid.map_err(|_| Fault::Format("a resolution and a history that do not fit"))?;
        Rules::buckets_of_pause(grid, &limits)
    } else {
        Rules::new(shape.algorithm, &limits)
    };
    rules.map_err(|_| Fault::Format("limits that do not go together"))
}

impl Reading<'_> {
    fn read_sketches(&self, input: &mut impl Read) -> Result<(), Fault> {
        while array::<1>(input)? != [0] {
            let index = u32::from_le_bytes(array(input)?) as usize;
            let until = self.carried.time(micros(input)?);
            let mut sketches = Vec::with_capacity(self.shape.limits);
            for check in self.rules.checks() {
                let bytes = bytes(input, LOG_LEN_MAX)?;
                let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                let sketch = Sketch::from_words(words.as_chunks().0);
                let mut sketch = sketch.ok_or(Fault::Format("a sketch without whole rows"))?;
                if !self.carried.by.is_zero() {
                    let mut carried = Sketch::new(sketch.width());
                    carried.absorb(&sketch, &check.sketched(), self.at);
                    sketch = carried;
                }
                sketches.push(sketch);
            }
            if index >= SHARDS {
                return Err(Fault::Format("a shard out of bounds"));
            }
            self.table.import_sketches(index, self.at, until, sketches);
        }
        Ok(())
    }

    fn read_overrides(&mut self, input: &mut impl Read) -> Result<(), Fault> {
        while array::<1>(input)? == [1] {
            let key = bytes(input, NAME_LEN_MAX)?;
            let until = micros(input)?;
            let until = (!until.is_zero()).then(|| self.carried.time(until));
            let reason = text(input)?;
            let [count] = array(input)?;
            let limits = (0..count).map(|_| text(input)?.parse().map_err(|_| Fault::Format("a limit is no limit")));
            let limits = limits.collect::<Result<Vec<Limit>, Fault>>()?;
            let reason = (!reason.is_empty()).then_some(reason);
            self.table.import_override(key, Override { limits, until, reason });
        }
        Ok(())
    }

    /// Entries come shard by shard; each shard's are taken in together.
    fn read_entries(&mut self, input: &mut impl Read, fit: &mut Fit) -> Result<(), Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        while array::<1>(input)? != [0] {
            let entry = self.read_entry(input)?;
            if entries.first().is_some_and(|first| shard_of(first.hash) != shard_of(entry.hash)) {
                self.table.import(std::mem::take(&mut entries), self.at, fit);
            }
            entries.push(entry);
        }
        self.table.import(entries, self.at, fit);
        Ok(())
    }

    fn read_entry(&mut self, input: &mut impl Read) -> Result<Entry, Fault> {
        let hash = u64::from_le_bytes(array(input)?);
        if hash == 0 {
            return Err(Fault::Format("an entry without a hash"));
        }
        let blocked_until = self.carried.time(micros(input)?);
        let name = bytes(input, NAME_LEN_MAX)?;
        let mut states = Vec::with_capacity(self.shape.limits);
        for _ in 0..self.shape.states() {
            states.push(read_state(input, self.shape.algorithm)?);
        }
        if !self.carried.by.is_zero() {
            // The algorithms know what a clock's step back means: counts are carried to now.
            states.iter_mut().zip(self.rules.checks()).for_each(|(state, check)| state.settle(check, self.at));
            self.carried.keys += 1;
        }
        Ok(Entry { hash, blocked_until, name, states })
    }

    fn read_stats(&self, input: &mut impl Read, fit: &mut Fit) -> Result<(), Fault> {
        while array::<1>(input)? != [0] {
            let mut words = [0; STRIDE];
            for word in &mut words {
                *word = u64::from_le_bytes(array(input)?);
            }
            if words[0] == 0 {
                return Err(Fault::Format("statistics without a hash"));
            }
            set_back(&mut words, self.carried.by);
            self.table.import_stats(&words, fit);
        }
        Ok(())
    }
}

fn read_state(input: &mut impl Read, algorithm: Algorithm) -> Result<State, Fault> {
    if algorithm == Algorithm::SlidingLog {
        let log = sliding_log::State::decode(&bytes(input, LOG_LEN_MAX)?);
        return Ok(State::SlidingLog(Box::new(log.ok_or(Fault::Format("a log that does not add up"))?)));
    }
    if algorithm == Algorithm::Buckets {
        let history = buckets::State::decode(&bytes(input, LOG_LEN_MAX)?);
        return Ok(State::Buckets(Box::new(history.ok_or(Fault::Format("blocks that do not follow each other"))?)));
    }
    Ok(from_words(algorithm, [u64::from_le_bytes(array(input)?), u64::from_le_bytes(array(input)?)]))
}

fn array<const N: usize>(input: &mut impl Read) -> Result<[u8; N], Fault> {
    let mut array = [0; N];
    input.read_exact(&mut array)?;
    Ok(array)
}

fn micros(input: &mut impl Read) -> Result<Micros, Fault> {
    Micros::new(u64::from_le_bytes(array(input)?)).ok_or(Fault::Format("a time out of bounds"))
}

fn bytes(input: &mut impl Read, most: usize) -> Result<Vec<u8>, Fault> {
    let len = u32::from_le_bytes(array(input)?) as usize;
    if len > most {
        return Err(Fault::Format("a length out of bounds"));
    }
    let mut bytes = vec![0; len];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Numbers for the file; they never change their meaning.
fn algorithm_code(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::TokenBucket => 1,
        Algorithm::FixedWindow => 2,
        Algorithm::AlignedWindow => 3,
        Algorithm::SlidingLog => 4,
        Algorithm::SlidingWindow => 5,
        Algorithm::StrictAverage => 6,
        Algorithm::LeakyAverage => 7,
        Algorithm::Buckets => 8,
    }
}

fn algorithm_of(code: u8) -> Option<Algorithm> {
    Algorithm::ALL.into_iter().find(|algorithm| algorithm_code(*algorithm) == code)
}

/// Sums what passes through.
pub(crate) struct Summed<T> {
    pub(crate) inner: T,
    pub(crate) crc: crc32fast::Hasher,
}

impl<T> Summed<T> {
    pub(crate) fn new(inner: T) -> Summed<T> {
        Summed { inner, crc: crc32fast::Hasher::new() }
    }
}

/// Counts what passes through.
pub(crate) struct Counted<T> {
    inner: T,
    pub(crate) at: u64,
}

impl<T> Counted<T> {
    pub(crate) fn new(inner: T) -> Counted<T> {
        Counted { inner, at: 0 }
    }
}

impl<T: Read> Read for Counted<T> {
    #[inline]
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.at += read as u64;
        Ok(read)
    }

    #[inline]
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        // A buffered reader has the few bytes of a number at hand.
        self.inner.read_exact(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.crc.update(&bytes[..read]);
        Ok(read)
    }
}

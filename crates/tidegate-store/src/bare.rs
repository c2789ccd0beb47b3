//! The one module with `unsafe`: a lock for a few nanoseconds of work, a hint to the processor, a word to the
//! allocator, and memory that is not the allocator's.
//!
//! **Why a lock of our own.** A decision is some twenty nanoseconds of arithmetic, and the standard
//! mutex takes as long again: its unlocking is a second atomic exchange, as it must find sleepers,
//! and two threads on one hot key spend their time waking each other. Here unlocking is a
//! plain store, and a thread that waits backs off for longer and longer, so that the other does many
//! decisions with the lines in its own cache. Measured by `cargo bench -p tidegate`.
//! **Why it is sound.** The value is reached only through a [`Guard`]; a guard exists only between
//! the exchange that made `state` held (acquire) and the store that frees it (release), so
//! there is one at a time and it sees all that earlier ones wrote. A panic drops the guard and leaves the lock broken: the
//! value may be half changed, so nobody gets it any more, neither to decide nor to save it. Whoever waits panics, too.
//!
//! **Why a prefetch.** A batch of look-ups in a large table is a row of cache misses; told the
//! addresses first, the processor fetches them side by side. **Why it is sound.** It is a hint: it
//! reads nothing that the program can see and cannot fault, whatever the address.
//!
//! **Why a word to the allocator.** glibc keeps what was freed below its highest block, so after a
//! million keys went idle a quarter of their memory stayed with the process. **Why it is sound.**
//! `malloc_trim` takes a number, locks what it walks, and touches free memory only.
//!
//! **Why memory of our own.** Every shard's slots grow by an eighth now and then, where they are: the system maps more pages
//! behind them, and moves them as a whole without a copy if it must. The allocator would copy, and what is left behind is
//! a hole in the heap that the next, larger ones do not fit. **Why it is sound.** See [`Words`].
#![allow(unsafe_code, reason = "see above; nothing else in the workspace needs it")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

/// A lock for very short sections. It does not queue, and must not be held across anything slow.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Lock<T> {
    state: AtomicU8,
    value: UnsafeCell<T>,
}

/// Nobody has it.
const FREE: u8 = 0;
const HELD: u8 = 1;
/// Whoever had it panicked.
const BROKEN: u8 = 2;

// SAFETY: the lock hands out one reference at a time, from any thread, so sharing it needs only that
// the value may move between threads.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value while it is locked.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

/// Longest pause between two tries while spinning, in processor hints.
const PAUSE_MAX: u32 = 256;
/// Tries with a yield before a waiter sleeps: the holder was most likely interrupted.
const YIELDS: u32 = 64;

impl<T> Lock<T> {
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.try_acquire() && !self.wait() {
            panic!("a panic has left this part of a table half changed; nothing is decided by it");
        }
        Guard { lock: self }
    }

    /// The same, where a value that a panic left half changed is no reason to panic, too.
    pub(crate) fn lock_whole(&self) -> Option<Guard<'_, T>> {
        (self.try_acquire() || self.wait()).then(|| Guard { lock: self })
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Did a panic leave the value half changed?
    pub(crate) fn is_broken(&self) -> bool {
        self.state.load(Ordering::Relaxed) == BROKEN
    }

    /// True once it is acquired, false if it is broken.
    #[cold]
    fn wait(&self) -> bool {
        let mut pause = 4;
        let mut yields = 0;
        loop {
            (0..pause).for_each(|_| std::hint::spin_loop());
            match self.state.load(Ordering::Relaxed) {
                FREE if self.try_acquire() => return true,
                BROKEN => return false,
                _ => {}
            }
            if pause < PAUSE_MAX {
                pause *= 2;
            } else if yields < YIELDS {
                yields += 1;
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so no other thread writes.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and it is borrowed uniquely.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let state = if std::thread::panicking() { BROKEN } else { FREE };
        self.lock.state.store(state, Ordering::Release);
    }
}

/// Hints that the line at this address will be read soon. Any address is fine, mapped or not.
#[inline(always)]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect on memory and does not fault for any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(address as *const i8);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Zeroed words from a cache line on, that can become more or fewer. Many of them are pages of their own, which the
/// system gets back with the last, and which it moves elsewhere without a copy.
///
/// **Why it is sound.** `start` is `len` words that were zeroed when they were allocated, aligned for a line, and this
/// value's alone until it is dropped, which frees them the way they came: as pages where `pages` is their length, by the
/// allocator otherwise, with the same layout. References live no longer than a borrow of it, and there is no other way to
/// the words; [`Words::resize`] has the only borrow while they move.
pub(crate) struct Words {
    start: NonNull<u64>,
    len: usize,
    /// Bytes of pages; 0: they are the allocator's.
    pages: usize,
}

// SAFETY: plain words, owned, with no tie to the thread that allocated them.
unsafe impl Send for Words {}
// SAFETY: shared references only read.
unsafe impl Sync for Words {}

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// From so many bytes on words are pages: what is lost at their end, half a page on average, is below an eighth.
const PAGES_MIN: usize = 16 << 10;
const PAGE_BYTES: usize = 4 << 10;
/// Most words that are pages, a quarter of what Linux lets a process have of them by default: the rest of the program needs some, too.
const MAPPINGS_MAX: usize = 1 << 14;
/// Words that are pages now.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

impl Words {
    pub(crate) fn zeroed(len: usize) -> Words {
        let bytes = Words::bytes_for(len);
        let is_large = bytes >= PAGES_MIN && MAPPINGS.load(Ordering::Relaxed) < MAPPINGS_MAX;
        if let Some(start) = is_large.then(|| zeroed_pages(bytes)).flatten() {
            MAPPINGS.fetch_add(1, Ordering::Relaxed);
            return Words { start, len, pages: bytes };
        }
        if len == 0 {
            return Words { start: NonNull::dangling(), len, pages: 0 };
        }
        let layout = layout_of(len);
        // SAFETY: the layout has a size above 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Words { start: start.unwrap_or_else(|| handle_alloc_error(layout)).cast(), len, pages: 0 }
    }

    /// Memory of so many.
    pub(crate) const fn bytes_for(len: usize) -> usize {
        let bytes = len * size_of::<u64>();
        if bytes < PAGES_MIN { bytes } else { bytes.next_multiple_of(PAGE_BYTES) }
    }

    /// Makes them so many: the first ones stay, new ones are zeros. Pages are not copied but mapped elsewhere.
    pub(crate) fn resize(&mut self, len: usize) {
        let bytes = Words::bytes_for(len);
        if self.pages > 0 && bytes >= PAGES_MIN {
            // What is left of the last page is zeros when it is wanted again.
            let kept = (self.pages.min(bytes)) / size_of::<u64>();
            if len < self.len {
                self[len..].iter_mut().take(kept.saturating_sub(len)).for_each(|word| *word = 0);
            }
            if let Some(start) = moved_pages(self.start, self.pages, bytes) {
                *self = Words { start, len, pages: bytes }.instead_of(self);
                return;
            }
        }
        let mut other = Words::zeroed(len);
        let kept = len.min(self.len);
        other[..kept].copy_from_slice(&self[..kept]);
        *self = other;
    }

    /// Forgets what became these, so that it is not freed.
    fn instead_of(self, before: &mut Words) -> Words {
        std::mem::forget(std::mem::replace(before, Words { start: NonNull::dangling(), len: 0, pages: 0 }));
        self
    }
}

fn layout_of(len: usize) -> Layout {
    // A table is never so large: the budget was asked before.
    Layout::from_size_align(len * size_of::<u64>(), LINE_BYTES).expect("fewer words than there is memory")
}

impl Default for Words {
    fn default() -> Words {
        Words::zeroed(0)
    }
}

impl Deref for Words {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        // SAFETY: they are there and initialized, see the type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Words {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: they are there and initialized, see the type; the borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if self.pages > 0 {
            MAPPINGS.fetch_sub(1, Ordering::Relaxed);
            free_pages(self.start, self.pages);
        } else if self.len > 0 {
            // SAFETY: the allocator gave it with this layout, and nothing else frees it.
            unsafe { dealloc(self.start.as_ptr().cast(), layout_of(self.len)) };
        }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} words", self.len)
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod system {
    use std::ffi::{c_int, c_void};

    pub(super) const PROT_READ_WRITE: c_int = 1 | 2;
    pub(super) const MAP_PRIVATE_ANONYMOUS: c_int = 2 | 0x20;
    pub(super) const MREMAP_MAYMOVE: c_int = 1;
    /// What `mmap` and `mremap` return when there is no memory.
    pub(super) const MAP_FAILED: *mut c_void = usize::MAX as *mut c_void;

    unsafe extern "C" {
        pub(super) fn mmap(
            address: *mut c_void,
            bytes: usize,
            protection: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        pub(super) fn munmap(address: *mut c_void, bytes: usize) -> c_int;
        pub(super) fn mremap(address: *mut c_void, before: usize, bytes: usize, flags: c_int, ...) -> *mut c_void;
    }
}

/// So many bytes of pages, all zeros; `None`: the system has none.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn zeroed_pages(bytes: usize) -> Option<NonNull<u64>> {
    use system::{MAP_FAILED, MAP_PRIVATE_ANONYMOUS, PROT_READ_WRITE, mmap};
    // SAFETY: a private mapping without a file, at an address of the system's choice, touches nothing that is there.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0) };
    if start == MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn free_pages(start: NonNull<u64>, bytes: usize) {
    // SAFETY: the caller owns this mapping of this length, and has no reference into it any more.
    unsafe {
        system::munmap(start.as_ptr().cast(), bytes);
    }
}

/// The same pages, as so many bytes; new ones are zeros. `None`: the system has none, and they are as they were.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
fn moved_pages(start: NonNull<u64>, before: usize, bytes: usize) -> Option<NonNull<u64>> {
    use system::{MAP_FAILED, MREMAP_MAYMOVE, mremap};
    // SAFETY: the caller owns this mapping of this length, has no reference into it, and uses the new one only.
    let start = unsafe { mremap(start.as_ptr().cast(), before, bytes, MREMAP_MAYMOVE) };
    if start == MAP_FAILED { None } else { NonNull::new(start.cast()) }
}

/// Other systems have other ways to ask for pages: there all words are boxes.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn zeroed_pages(_: usize) -> Option<NonNull<u64>> {
    None
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn moved_pages(_: NonNull<u64>, _: usize, _: usize) -> Option<NonNull<u64>> {
    None
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
fn free_pages(_: NonNull<u64>, _: usize) {}

/// Gives free memory back to the system, where the allocator has to be told. It locks the allocator
/// for a while: only for when much was freed.
pub(crate) fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: thread-safe by its manual page, and any number is a valid pad.
        unsafe {
            malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_all_writes_are_seen() {
        let lock = Lock::<(u64, u64)>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100_000 {
                        let mut pair = lock.lock();
                        assert_eq!(pair.0, pair.1);
                        pair.0 += 1;
                        pair.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (400_000, 400_000));
    }

    #[test]
    fn words_are_zeros_that_keep_what_is_written_in_boxes_and_in_pages() {
        for len in [0, 1, 100, PAGES_MIN / 8 - 1, PAGES_MIN / 8, PAGES_MIN / 8 + 1, 100_000] {
            let mut words = Words::zeroed(len);
            assert!(words.len() == len && words.iter().all(|word| *word == 0), "{len}");
            assert_eq!(words.pages > 0, len >= PAGES_MIN / 8, "{len}");
            words.iter_mut().zip(1..).for_each(|(word, number)| *word = number);
            let words = std::thread::spawn(move || words).join().unwrap();
            assert!(words.iter().copied().eq(1..=len as u64), "{len}");
        }
        assert_eq!([1, 2047, 2048, 2049].map(Words::bytes_for), [8, 16_376, 16_384, 20_480]);
    }

    #[test]
    fn words_that_become_more_or_fewer_keep_the_first_and_are_zeros_behind() {
        let mut words = Words::zeroed(0);
        let lens =
            [1, 100, 2_047, 2_048, 2_049, 2_500, 2_100, 3_000, 100_000, 2_048, 2_100, 7, 0, 5_000, 60_000, 59_999];
        for len in lens {
            let before = words.len();
            words.resize(len);
            assert!(words.len() == len && (len == 0 || words.as_ptr().addr().is_multiple_of(LINE_BYTES)));
            for (index, word) in words.iter_mut().enumerate() {
                assert_eq!(
                    *word,
                    if index < before { index as u64 + 1 } else { 0 },
                    "{index} of {len}, {before} before"
                );
                *word = index as u64 + 1;
            }
        }
    }

    /// A panic once unlocked, and what was half changed was decided by and saved.
    #[test]
    fn f4_nobody_gets_what_a_panic_left_half_changed() {
        let lock = Lock::<u64>::default();
        let panic_at = |what: &str| {
            let what = what.to_owned();
            let locked = std::panic::AssertUnwindSafe(|| {
                let _guard = lock.lock();
                panic!("{what}");
            });
            let payload = std::panic::catch_unwind(locked).unwrap_err();
            payload
                .downcast_ref::<String>()
                .map_or_else(|| payload.downcast_ref::<&str>().unwrap().to_string(), String::clone)
        };
        assert!(!lock.is_broken());
        assert_eq!(panic_at("while locked"), "while locked");
        assert!(lock.is_broken() && lock.lock_whole().is_none());
        assert!(panic_at("again").contains("half changed"));
    }

    #[test]
    fn a_long_holder_is_waited_for() {
        let lock = Lock::<u64>::default();
        std::thread::scope(|scope| {
            let mut guard = lock.lock();
            let waiter = scope.spawn(|| *lock.lock());
            std::thread::sleep(Duration::from_millis(20));
            *guard = 7;
            drop(guard);
            assert_eq!(waiter.join().unwrap(), 7);
        });
    }
}

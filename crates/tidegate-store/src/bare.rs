//! The one module with `unsafe`: a lock for a few nanoseconds of work, a hint to the processor, and a
//! word to the allocator.
//!
//! **Why a lock of our own.** A decision is some twenty nanoseconds of arithmetic, and the standard
//! mutex takes as long again: its unlocking is a second atomic exchange, as it must find sleepers,
//! and two threads on one hot key spend their time waking each other. Here unlocking is a
//! plain store, and a thread that waits backs off for longer and longer, so that the other does many
//! decisions with the lines in its own cache. Measured by `cargo bench -p tidegate`.
//! **Why it is sound.** The value is reached only through a [`Guard`]; a guard exists only between
//! the exchange that set `held` from false (acquire) and the store that clears it (release), so
//! there is one at a time and it sees all that earlier ones wrote. A panic drops the guard and so unlocks.
//!
//! **Why a prefetch.** A batch of look-ups in a large table is a row of cache misses; told the
//! addresses first, the processor fetches them side by side. **Why it is sound.** It is a hint: it
//! reads nothing that the program can see and cannot fault, whatever the address.
//!
//! **Why a word to the allocator.** glibc keeps what was freed below its highest block, so after a
//! million keys went idle a quarter of their memory stayed with the process. **Why it is sound.**
//! `malloc_trim` takes a number, locks what it walks, and touches free memory only.
#![allow(unsafe_code, reason = "see above; nothing else in the workspace needs it")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A lock for very short sections. It does not queue, and must not be held across anything slow.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Lock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

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
        if !self.try_acquire() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut pause = 4;
        let mut yields = 0;
        loop {
            (0..pause).for_each(|_| std::hint::spin_loop());
            if !self.held.load(Ordering::Relaxed) && self.try_acquire() {
                return;
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
        // SAFETY: this guard is the only one, so nobody writes.
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
        self.lock.held.store(false, Ordering::Release);
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
    fn a_panic_unlocks() {
        let lock = Lock::<u64>::default();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("while locked");
        }));
        assert!(result.is_err());
        assert_eq!(*lock.lock(), 0);
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

//! Options of the TCP connections that carry short messages, which nodes and clients share. Doors also share how often they warn that they
//! cannot accept connections, how certificates are read again when their files change, how lists of revoked ones are read, and how TLS
//! handshakes take turns.
//!
//! By default, TCP repeats a lone segment that was lost after 200 ms at the earliest, and then after twice as long each time. Everything
//! behind that segment waits, and an operation of a keyspace takes a few milliseconds. So these connections repeat after
//! some milliseconds (`REPEATS`) and the time of a round trip, and their acknowledgements are not delayed for longer than that.

mod fresh;
mod handshakes;
mod revoked;
mod warning;

use std::io;
use std::time::Duration;

use socket2::SockRef;

pub use fresh::Fresh;
pub use handshakes::Handshakes;
pub use revoked::revocation_lists;
pub use warning::LimitedWarning;

/// Bounds of the timers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Timers {
    /// For how long an acknowledgement waits for data that goes the same way.
    acknowledge_within: Duration,
    /// How long after a round trip an unacknowledged segment is sent again, at least. Too small: segments are repeated whose
    /// acknowledgement was only delayed. Too large: what is behind a lost segment waits.
    repeat_after: Duration,
}

const fn timers(acknowledge_within_ms: u64, repeat_after_ms: u64) -> Timers {
    Timers {
        acknowledge_within: Duration::from_millis(acknowledge_within_ms),
        repeat_after: Duration::from_millis(repeat_after_ms),
    }
}

/// What is asked for, until the kernel takes it: a timer has at least two ticks of its clock, which has 1000, 250 or 100 ticks a second.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
const REPEATS: [Timers; 3] = [timers(2, 5), timers(8, 12), timers(20, 30)];

/// Sets the options of a connection: what is written is sent at once, and what was lost is soon sent again. Both sides should call it. A
/// kernel that lacks an option keeps its default: Linux has those of the timers since 6.15.
///
/// # Errors
/// Fails if small messages would wait for larger ones, for example because the connection has ended.
pub fn tune<'s, S>(socket: &'s S) -> io::Result<()>
where
    SockRef<'s>: From<&'s S>,
{
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    #[cfg(target_os = "linux")]
    linux::repeat_soon(&socket);
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
    use std::time::Duration;

    use socket2::SockRef;

    use super::{REPEATS, Timers};

    /// Options of `linux/tcp.h` for which there are no names elsewhere yet.
    pub(super) const TCP_RTO_MIN_US: libc::c_int = 45;
    pub(super) const TCP_DELACK_MAX_US: libc::c_int = 46;

    pub(super) fn repeat_soon(socket: &SockRef<'_>) {
        // While little is in flight, each repeat waits as long as the first one.
        let _ = socket.set_tcp_thin_linear_timeouts(true);
        let takes = |timers: &Timers| {
            // In this order: with the second alone, repeats would be too early for the acknowledgements.
            set_us(socket.as_fd(), TCP_DELACK_MAX_US, timers.acknowledge_within)
                .and_then(|()| set_us(socket.as_fd(), TCP_RTO_MIN_US, timers.repeat_after))
                .is_ok()
        };
        REPEATS.iter().any(takes);
    }

    #[allow(unsafe_code)]
    fn set_us(socket: BorrowedFd<'_>, option: libc::c_int, time: Duration) -> io::Result<()> {
        let value = libc::c_int::try_from(time.as_micros()).unwrap_or(libc::c_int::MAX);
        let bytes = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the descriptor is open, and the length is that of `value`.
        let done = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, (&raw const value).cast(), bytes)
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn both_sides_of_a_connection_can_be_tuned() {
        let (one, other) = pair();
        for side in [&one, &other] {
            tune(side).unwrap();
            assert!(side.nodelay().unwrap());
        }
    }

    #[test]
    fn repeats_are_never_earlier_than_acknowledgements() {
        for Timers { acknowledge_within, repeat_after } in REPEATS {
            assert!(acknowledge_within < repeat_after);
            assert!(repeat_after < Duration::from_millis(200), "the default of Linux");
        }
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn option_us(stream: &TcpStream, option: libc::c_int) -> Option<u64> {
        use std::os::fd::AsRawFd;
        let (mut value, mut bytes) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the descriptor is open, and the length is that of `value`.
        let done = unsafe {
            let into = (&raw mut value).cast();
            libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, option, into, &raw mut bytes)
        };
        (done == 0).then_some(value as u64)
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_kernel_that_has_the_timers_takes_some() {
        let (one, _other) = pair();
        assert!(!SockRef::from(&one).tcp_thin_linear_timeouts().unwrap());
        let before = option_us(&one, linux::TCP_RTO_MIN_US);
        tune(&one).unwrap();
        assert!(SockRef::from(&one).tcp_thin_linear_timeouts().unwrap());
        // Older kernels have no such option.
        let Some(before) = before else { return };
        let acknowledge = option_us(&one, linux::TCP_DELACK_MAX_US).unwrap();
        let repeat = option_us(&one, linux::TCP_RTO_MIN_US).unwrap();
        assert!(acknowledge < repeat && repeat < before, "{acknowledge} {repeat} {before}");
        assert!(REPEATS.iter().any(|t| u128::from(repeat) >= t.repeat_after.as_micros()), "{repeat}");
    }
}

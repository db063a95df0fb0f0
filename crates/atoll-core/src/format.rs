//! The formats of messages and stored values, as lists that tools walk: the simulator prints frames with them, and the fuzz targets check
//! them. Each crate that has formats lists its own.

use std::fmt::Debug;

use bytes::Bytes;

use crate::codec::{Decode, DecodeError, Encode};
use crate::frame::{Frame, Message};
use crate::ids::RoleKind;
use crate::member::{Identify, Identity};

/// A decoder and an encoder that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{format}: {what}")]
pub struct Mismatch {
    /// The name of the format.
    pub format: &'static str,
    /// What is wrong.
    pub what: String,
}

/// One format: a message between nodes, or a value that is stored.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    name: &'static str,
    kind: Option<u16>,
    describe: fn(Frame) -> Result<String, DecodeError>,
    check: fn(Frame) -> Result<bool, Mismatch>,
    sample: Option<fn() -> Bytes>,
}

impl Format {
    /// Returns the format of a message.
    pub const fn message<M: Message + Clone + PartialEq + Debug>() -> Self {
        Format {
            name: M::NAME,
            kind: Some(M::KIND),
            describe: |frame| M::from_frame(frame).map(|m| format!("{m:?}")),
            check: check_message::<M>,
            sample: None,
        }
    }

    /// Returns the format of a stored value, which is the head of a frame here.
    pub const fn stored<T: Encode + Decode + PartialEq + Debug>(name: &'static str) -> Self {
        Format {
            name,
            kind: None,
            describe: |frame| T::from_bytes(frame.head).map(|value| format!("{value:?}")),
            check: check_stored::<T>,
            sample: None,
        }
    }

    /// Returns the format of a stored value that is not encoded with [`Encode`]. `check` reads and checks the head.
    pub const fn other(name: &'static str, check: fn(Frame) -> Result<bool, Mismatch>) -> Self {
        let describe = |frame: Frame| Ok(format!("{} bytes", frame.head.len()));
        Format { name, kind: None, describe, check, sample: None }
    }

    /// Returns this format with an example of a head. A format needs one if no head of zeros is valid.
    pub const fn like(mut self, sample: fn() -> Bytes) -> Self {
        self.sample = Some(sample);
        self
    }

    /// Returns the name of the message or value.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the kind of the message; None for a stored value.
    pub fn kind(&self) -> Option<u16> {
        self.kind
    }

    /// Decodes a frame and returns its fields as text.
    pub fn describe(&self, frame: Frame) -> Result<String, DecodeError> {
        (self.describe)(frame)
    }

    /// Decodes a frame and encodes it again. Returns whether it is of this format to its last byte.
    ///
    /// # Errors
    /// It was decoded, but what was decoded breaks a promise of the format.
    pub fn check(&self, frame: Frame) -> Result<bool, Mismatch> {
        (self.check)(frame)
    }

    /// Returns an example of a head, if the format has one.
    pub fn sample(&self) -> Option<Bytes> {
        self.sample.map(|sample| sample())
    }
}

fn check_message<M: Message + Clone + PartialEq + Debug>(mut frame: Frame) -> Result<bool, Mismatch> {
    let wrong = |what: String| Err(Mismatch { format: M::NAME, what });
    frame.kind = M::KIND;
    let Ok(message) = M::from_frame(frame.clone()) else { return Ok(false) };
    let written = message.clone().into_frame(frame.target);
    // Bytes after the fields belong to a later version and are dropped.
    let whole = frame.head.len() == written.head.len();
    frame.head.truncate(written.head.len());
    if written != frame {
        return wrong(format!("{frame:?} was read, and {written:?} is written"));
    }
    match M::from_frame(written) {
        Ok(again) if again == message => {}
        again => return wrong(format!("{message:?} becomes {again:?}")),
    }
    frame.kind = M::KIND.wrapping_add(1);
    match M::from_frame(frame) {
        Err(_) => Ok(whole),
        Ok(_) => wrong("a frame of another kind is decoded".to_owned()),
    }
}

fn check_stored<T: Encode + Decode + PartialEq + Debug>(frame: Frame) -> Result<bool, Mismatch> {
    let Ok(value) = T::from_bytes(frame.head.clone()) else { return Ok(false) };
    let written = value.to_bytes();
    if written == frame.head {
        return Ok(true);
    }
    let what = format!("{:?} was read, and {written:?} is written", frame.head);
    Err(Mismatch { format: std::any::type_name::<T>(), what })
}

/// Returns a frame with this head and these payloads, for [`Format::check`], which ignores kind and target.
pub fn frame_of(head: Bytes, payloads: Vec<Bytes>) -> Frame {
    Frame { kind: 0, target: RoleKind(1), head, payloads }
}

/// The messages that every node understands, whatever its protocols.
pub const FORMATS: &[Format] =
    &[Format::message::<Identify>(), Format::message::<Identity>(), Format::message::<crate::env::Refused>()];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;
    use crate::codec::Reader;

    /// Forgets its number when it is written.
    #[derive(Clone, Debug, PartialEq)]
    struct Forgetful(u8);

    impl Encode for Forgetful {
        fn encode(&self, out: &mut BytesMut) {
            out.put_u8(0);
        }
    }

    impl Decode for Forgetful {
        fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
            Ok(Forgetful(u8::decode(from)?))
        }
    }

    impl Message for Forgetful {
        const KIND: u16 = 60_000;
        const NAME: &'static str = "Forgetful";
    }

    fn head(bytes: &'static [u8]) -> Frame {
        frame_of(Bytes::from_static(bytes), Vec::new())
    }

    #[test]
    fn an_encoder_that_writes_something_else_is_found_out() {
        for format in [Format::message::<Forgetful>(), Format::stored::<Forgetful>("Forgetful")] {
            assert_eq!(format.check(head(&[0])), Ok(true));
            assert_eq!(format.check(head(&[])), Ok(false));
            assert!(format.check(head(&[7])).unwrap_err().to_string().contains("is written"));
        }
    }

    #[test]
    fn bytes_after_a_message_are_a_later_version() {
        assert_eq!(Format::message::<Identify>().check(head(&[1, 2])), Ok(false));
        assert_eq!(Format::message::<Identify>().check(head(&[])), Ok(true));
        assert_eq!(
            Format::message::<Identify>().describe(Identify {}.into_frame(RoleKind(5))).unwrap(),
            "Identify"
        );
    }
}

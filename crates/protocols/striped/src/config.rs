//! The configuration of a striped Loglet: the kind and the configuration of each stripe.

use std::fmt;
use std::str::FromStr;

use bytes::{Bytes, BytesMut};

use atoll_contract::{LogletId, PartLoglet, SealedConfig};
use atoll_core::{Decode, DecodeError, Encode, Reader};

/// Version of the byte form.
const FORMAT: u8 = 1;
/// The most stripes of a Loglet. Each has a number in the id of its Loglet, and its configuration is in the chain.
pub const MAX_STRIPES: usize = 64;

/// How the stripes share the nodes (the paper's Figure 7). It matters only when the next Loglet is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All stripes are on the same servers, and another one orders each of them.
    Rotating,
    /// Each stripe is on servers of its own.
    Sharded,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Rotating => "rotating",
            Mode::Sharded => "sharded",
        })
    }
}

impl FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "rotating" => Ok(Mode::Rotating),
            "sharded" => Ok(Mode::Sharded),
            _ => Err(()),
        }
    }
}

/// The stripes of a Loglet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripedConfig {
    /// How the stripes share the nodes.
    pub mode: Mode,
    /// The stripes, from the one of position 0 on.
    pub stripes: Vec<PartLoglet>,
}

impl StripedConfig {
    /// Returns the id of the Loglet of each stripe, and the stripe itself.
    pub fn parts(&self, whole: LogletId) -> impl Iterator<Item = (LogletId, &PartLoglet)> {
        (1..).map(move |number| whole.part(number)).zip(&self.stripes)
    }
}

impl Encode for StripedConfig {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        let mode: u8 = match self.mode {
            Mode::Rotating => 1,
            Mode::Sharded => 2,
        };
        mode.encode(out);
        (self.stripes.len() as u8).encode(out);
        for stripe in &self.stripes {
            stripe.kind.encode(out);
            stripe.config.encode(out);
        }
    }
}

impl Decode for StripedConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let invalid =
            |what, value: u8, allowed| Err(DecodeError::Invalid { what, value: value.into(), allowed });
        match u8::decode(from)? {
            FORMAT => {}
            n => return invalid("version of a striped loglet's configuration", n, "1"),
        }
        let mode = match u8::decode(from)? {
            1 => Mode::Rotating,
            2 => Mode::Sharded,
            n => return invalid("mode of a striped loglet", n, "1 or 2"),
        };
        let count = u8::decode(from)?;
        if count == 0 || usize::from(count) > MAX_STRIPES {
            return invalid("stripes of a striped loglet", count, "1 to 64");
        }
        let mut stripes = Vec::with_capacity(count.into());
        for _ in 0..count {
            stripes.push(PartLoglet { kind: String::decode(from)?, config: Bytes::decode(from)? });
        }
        Ok(StripedConfig { mode, stripes })
    }
}

pub(crate) fn parse(config: &Bytes) -> Result<StripedConfig, DecodeError> {
    StripedConfig::from_bytes(config.clone())
}

/// Returns what readers of a sealed Loglet need: the sealed configurations of the stripes (vlog-L9). Empty if all of them are.
pub(crate) fn sealed_config(stripes: Vec<SealedConfig>) -> SealedConfig {
    if stripes.iter().all(Bytes::is_empty) { SealedConfig::new() } else { stripes.to_bytes() }
}

/// Returns the sealed configurations of this many stripes.
pub(crate) fn parse_sealed(sealed: &SealedConfig, stripes: usize) -> Result<Vec<SealedConfig>, DecodeError> {
    if sealed.is_empty() {
        return Ok(vec![SealedConfig::new(); stripes]);
    }
    let all = Vec::<Bytes>::from_bytes(sealed.clone())?;
    if all.len() != stripes {
        let (what, allowed) = ("sealed configurations of a striped loglet", "one for each stripe");
        return Err(DecodeError::Invalid { what, value: all.len() as u64, allowed });
    }
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(stripes: usize) -> StripedConfig {
        let stripe = |i: usize| PartLoglet { kind: "native".into(), config: Bytes::from(vec![i as u8; 3]) };
        StripedConfig { mode: Mode::Sharded, stripes: (0..stripes).map(stripe).collect() }
    }

    #[test]
    fn a_configuration_survives_its_bytes() {
        for stripes in [1, 2, MAX_STRIPES] {
            assert_eq!(parse(&config(stripes).to_bytes()), Ok(config(stripes)));
        }
        assert!(parse(&config(0).to_bytes()).is_err());
        assert!(parse(&config(MAX_STRIPES + 1).to_bytes()).is_err());
        assert!(parse(&Bytes::new()).is_err());
    }

    #[test]
    fn sealed_configurations_nest() {
        let nested = vec![Bytes::from_static(b"a"), Bytes::new()];
        assert_eq!(parse_sealed(&sealed_config(nested.clone()), 2), Ok(nested.clone()));
        assert!(parse_sealed(&sealed_config(nested), 3).is_err());
        assert!(sealed_config(vec![Bytes::new(); 5]).is_empty());
        assert_eq!(parse_sealed(&Bytes::new(), 2).unwrap().len(), 2);
    }

    #[test]
    fn parts_have_ids_of_their_own_that_name_the_whole() {
        let whole = LogletId(7 << 90 | 99);
        let ids: Vec<LogletId> = config(3).parts(whole).map(|(id, _)| id).collect();
        assert_eq!(ids, [whole.part(1), whole.part(2), whole.part(3)]);
        assert!(ids.iter().all(|id| *id != whole && id.whole() == whole));
    }
}

//! An object with fields, each with a value.

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_core::{Decode, DecodeError, Encode};

use crate::player::Machine;

atoll_core::record! {
    /// What such an object is told: each field takes a value, or none.
    pub struct FieldWrites {
        /// The fields.
        pub writes: Vec<(Bytes, Option<Bytes>)>,
    }
}

/// The object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(BTreeMap<Bytes, Bytes>);

impl Fields {
    /// Returns the value of a field.
    pub fn get(&self, field: &[u8]) -> Option<&Bytes> {
        self.0.get(field)
    }

    /// Returns all fields that have a value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> + '_ {
        self.0.iter()
    }
}

impl Machine for Fields {
    fn apply(&mut self, _: u64, body: Bytes) -> Result<(), DecodeError> {
        for (field, value) in FieldWrites::from_bytes(body)?.writes {
            match value {
                Some(value) => self.0.insert(field, value),
                None => self.0.remove(&field),
            };
        }
        Ok(())
    }

    fn save(&self) -> Bytes {
        self.0.to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        self.0 = BTreeMap::from_bytes(state)?;
        Ok(())
    }
}

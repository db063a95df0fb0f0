//! Reads of one node: exists, getData, getACL.

use crate::acl;
use crate::jute::Jute;
use crate::jute::codes::perms;
use crate::jute::records::{Acl, Id};
use crate::jute::reply::{GetAclReply, StatReply};
use crate::tree::read::{self, ReadError, Source};

/// What is read of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// exists.
    Stat,
    /// getData.
    Data,
    /// getACL.
    Acl,
}

impl Part {
    /// Appends the body of the reply. Appends nothing if there is an error.
    ///
    /// # Errors
    /// The client is refused, or the source does not have it.
    pub(crate) fn write(
        self,
        source: &dyn Source,
        path: &str,
        client: &[Id<'_>],
        out: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        match self {
            Part::Stat => {
                let node = read::readable(source, path, client, perms::READ)?;
                StatReply { stat: node.stat() }.write(out);
            }
            Part::Data => {
                let (node, data) = read::data(source, path, client)?;
                data.as_deref().write(out);
                node.stat().write(out);
            }
            Part::Acl => {
                let node = read::readable(source, path, client, perms::READ | perms::ADMIN)?;
                let mut list = acl::of_stored(&node.acl);
                // Earlier doors stored the superuser's own scheme. A client could not set the list again that it was shown.
                list.retain(|entry| entry.id.scheme != acl::SUPER);
                if acl::stored_allows(&node.acl, client, perms::ADMIN) {
                    GetAclReply { acl: list, stat: node.stat() }.write(out);
                } else {
                    // Clients that may read but not administer the node see no password hashes.
                    let masked = acl::masked(&list);
                    let acl = masked.iter();
                    let acl = acl.map(|(perms, scheme, id)| Acl { perms: *perms, id: Id { scheme, id } });
                    GetAclReply { acl: acl.collect(), stat: node.stat() }.write(out);
                }
            }
        }
        Ok(())
    }
}

//! Lists of revoked certificates.

use std::path::Path;

use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::{Error, PemObject};

/// Reads the revocation lists in a PEM file. Whether a list is in force, and whose it is, is checked with each certificate.
///
/// # Errors
/// The file cannot be read, is not PEM, or contains no list.
pub fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, Error> {
    let lists = CertificateRevocationListDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    if lists.is_empty() { Err(Error::NoItemsFound) } else { Ok(lists) }
}

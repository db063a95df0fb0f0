//! The subject of a certificate, as an id of the scheme `x509`. It is an RFC 2253 name in the form that Java produces, because ACLs
//! that were made for ZooKeeper contain that form.

use std::fmt::Write as _;

use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

/// Object identifiers with a keyword. Others are printed as numbers.
const KEYWORDS: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// The ASN.1 tags of the kinds of strings that are decoded.
mod tag {
    pub const UTF8: u32 = 12;
    pub const PRINTABLE: u32 = 19;
    pub const T61: u32 = 20;
    pub const IA5: u32 = 22;
    pub const GENERAL: u32 = 27;
    pub const UNIVERSAL: u32 = 28;
    pub const BMP: u32 = 30;
}

/// Returns the subject's name, most specific part first. Returns None if the certificate cannot be parsed or has no subject.
pub fn rfc2253(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut parts = Vec::new();
    for rdn in certificate.subject().iter_rdn() {
        parts.push(rdn.iter().map(attribute).collect::<Vec<_>>().join("+"));
    }
    parts.reverse();
    Some(parts.join(",")).filter(|name| !name.is_empty())
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let value = attribute.attr_value();
    let keyword = KEYWORDS.iter().find(|(known, _)| *known == oid).map(|(_, keyword)| *keyword);
    match (keyword, string(value.header.tag().0, value.data)) {
        (Some(keyword), Some(text)) => format!("{keyword}={}", escaped(&text)),
        (keyword, _) => {
            let mut out = format!("{}=#", keyword.unwrap_or(&oid));
            for byte in der(value.header.tag().0, value.data) {
                // Writing to a string cannot fail.
                let _ = write!(out, "{byte:02x}");
            }
            out
        }
    }
}

/// Returns the text of an ASN.1 string, or None if the value is not a string.
fn string(kind: u32, data: &[u8]) -> Option<String> {
    let wide = |size: usize| {
        let units = data.chunks(size).map(|c| c.iter().fold(0_u32, |n, b| n << 8 | u32::from(*b)));
        units.map(char::from_u32).collect::<Option<String>>()
    };
    match kind {
        tag::UTF8 | tag::PRINTABLE | tag::IA5 | tag::GENERAL => {
            std::str::from_utf8(data).ok().map(str::to_owned)
        }
        tag::T61 => Some(data.iter().map(|b| char::from(*b)).collect()),
        tag::BMP => wide(2),
        tag::UNIVERSAL => wide(4),
        _ => None,
    }
}

/// Encodes a value with its tag and length. Names are short, so one byte of tag and at most two of length are enough.
fn der(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::try_from(kind & 0x1f).unwrap_or(0)];
    match data.len() {
        n @ 0..=0x7f => out.push(n as u8),
        n @ 0x80..=0xff => out.extend([0x81, n as u8]),
        n => out.extend([0x82, (n >> 8) as u8, n as u8]),
    }
    out.extend_from_slice(data);
    out
}

/// Escapes separators, and spaces at both ends.
fn escaped(text: &str) -> String {
    let inner = text.trim_matches(' ');
    let lead = text.len() - text.trim_start_matches(' ').len();
    let trail = if inner.is_empty() { 0 } else { text.len() - text.trim_end_matches(' ').len() };
    let mut out = "\\ ".repeat(lead);
    for c in inner.chars() {
        match c {
            ',' | '=' | '+' | '<' | '>' | '#' | ';' | '"' | '\\' => out.extend(['\\', c]),
            '\0' => out.push_str("\\00"),
            c => out.push(c),
        }
    }
    out.push_str(&"\\ ".repeat(trail));
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    #[test]
    fn names_are_as_java_has_them() {
        let mut name = DistinguishedName::new();
        name.push(DnType::CountryName, "UN");
        name.push(DnType::OrganizationName, "Reef, Inc");
        name.push(DnType::CommonName, "client #1");
        name.push(DnType::CustomDnType(vec![1, 2, 840, 113549, 1, 9, 1]), "a@b");
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(
            rfc2253(certificate.der()).unwrap(),
            "1.2.840.113549.1.9.1=#0c03614062,CN=client \\#1,O=Reef\\, Inc,C=UN"
        );
        assert_eq!(rfc2253(b"none"), None);
        assert_eq!(escaped("  a b "), "\\ \\ a b\\ ");
        assert_eq!(escaped("  "), "\\ \\ ");
        assert_eq!(string(tag::BMP, &[0, b'a', 0x20, 0xac]).unwrap(), "a€");
    }
}

//! The requests, in terms of the crate `object_store`, and what its errors mean.

use std::error::Error as _;
use std::io::ErrorKind;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, GetResult, ObjectStore, PutMode, PutPayload, UpdateVersion};

use super::{Put, StoreError, Tag};

/// What S3 answers with status 400 to credentials that it knows and does not take any more. With status 401 or 403, any code means that.
const NOT_ANY_MORE: [&str; 4] = [
    "<Code>ExpiredToken</Code>",
    "<Code>ExpiredTokenException</Code>",
    "<Code>InvalidToken</Code>",
    "<Code>TokenRefreshRequired</Code>",
];
/// What a service that speaks S3 answers if it has no room.
const NO_ROOM: [&str; 3] =
    ["507 Insufficient Storage", "<Code>XMinioStorageFull</Code>", "<Code>QuotaExceeded</Code>"];

/// Returns whether an error says for sure that nothing happened, and why. The texts of errors are dropped: they go to places where nobody
/// expects an address or a name of a key.
pub(super) fn meaning(error: &Error) -> StoreError {
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => StoreError::Credentials,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => StoreError::Unsupported,
        Error::NotFound { .. } => StoreError::Elsewhere,
        _ => by_its_cause(error),
    }
}

/// Returns what an error means that has no kind of its own.
fn by_its_cause(error: &Error) -> StoreError {
    let mut cause = error.source();
    while let Some(one) = cause {
        let text = one.to_string();
        let io = one.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if matches!(io, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
            || NO_ROOM.iter().any(|words| text.contains(words))
        {
            return StoreError::Full;
        }
        if matches!(io, Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)) {
            return StoreError::NotAllowed;
        }
        if io == Some(ErrorKind::NotADirectory) {
            return StoreError::Elsewhere;
        }
        if NOT_ANY_MORE.iter().any(|code| text.contains(code)) {
            return StoreError::Credentials;
        }
        cause = one.source();
    }
    StoreError::NoAnswer
}

pub(super) async fn put(
    store: Arc<dyn ObjectStore>,
    name: String,
    bytes: Bytes,
    how: Put,
) -> Result<bool, StoreError> {
    let mode = match how {
        Put::Create => PutMode::Create,
        Put::Replace => PutMode::Overwrite,
        Put::Update(Tag { e_tag, version }) => PutMode::Update(UpdateVersion { e_tag, version }),
    };
    match store.put_opts(&Path::from(name), PutPayload::from(bytes), mode.into()).await {
        Ok(_) => Ok(true),
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
        Err(error) => Err(meaning(&error)),
    }
}

pub(super) async fn get(
    store: Arc<dyn ObjectStore>,
    name: String,
    most: Option<u64>,
) -> Result<Option<Bytes>, StoreError> {
    let range = most.map(|most| GetRange::Bounded(0..most));
    let got = fetch(store, name, GetOptions { range, ..GetOptions::default() }).await?;
    Ok(got.map(|(bytes, _)| bytes))
}

pub(super) async fn get_tagged(
    store: Arc<dyn ObjectStore>,
    name: String,
) -> Result<Option<(Bytes, Tag)>, StoreError> {
    fetch(store, name, GetOptions::default()).await
}

async fn fetch(
    store: Arc<dyn ObjectStore>,
    name: String,
    options: GetOptions,
) -> Result<Option<(Bytes, Tag)>, StoreError> {
    let got: GetResult = match store.get_opts(&Path::from(name), options).await {
        Ok(got) => got,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(meaning(&error)),
    };
    let tag = Tag { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
    match got.bytes().await {
        Ok(bytes) => Ok(Some((bytes, tag))),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(meaning(&error)),
    }
}

pub(super) async fn delete(store: Arc<dyn ObjectStore>, names: Vec<String>) -> Result<(), StoreError> {
    let names: Vec<_> = names.into_iter().map(|name| Ok(Path::from(name))).collect();
    let mut done = store.delete_stream(futures_util::stream::iter(names).boxed());
    while let Some(one) = done.next().await {
        match one {
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(meaning(&error)),
        }
    }
    Ok(())
}
